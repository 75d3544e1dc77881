"""Probes whether this host can measure workloads: stall times, performance events, run-queue delay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.domain.errors import Busy, Denied
from perphd.domain.reading import Unavailable
from perphd.host.capabilities.facts import (
    CAP_PERFMON,
    CAP_SYS_ADMIN,
    CAP_SYS_RESOURCE,
    first_directories,
    has_capability,
    release,
    release_text,
)
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs, text_or_empty
from perphd.host.perf_event_types import HARDWARE_EVENTS, SOFTWARE_EVENTS, EventSupport, PerfEventKind
from perphd.host.perf_events import perf_hierarchy
from perphd.host.psi import RESOURCES, SYSTEM_ROOT, pressure_at

EventProbe = Callable[[str], EventSupport]
"""Tries perf_event_open for the cgroup with this directory."""
TaskstatsProbe = Callable[[], str]
"""Returns why taskstats does not answer this process; empty if it does."""

_PERF_CAPABILITIES: Final = ((CAP_PERFMON, "CAP_PERFMON"), (CAP_SYS_ADMIN, "CAP_SYS_ADMIN"))


def probe_measurement(
    fs: KernelFs, hierarchies: Hierarchies, events: EventProbe, taskstats: TaskstatsProbe
) -> Iterator[Capability]:
    """All sources of samples, in display order."""
    yield from _psi(fs, hierarchies)
    yield from _perf(fs, hierarchies, events)
    yield from _run_delay(fs, taskstats)


def _psi(fs: KernelFs, hierarchies: Hierarchies) -> Iterator[Capability]:
    cost = "no stall times: memory and I/O contention shows late or not at all"
    remedy = "boot with psi=1 and a kernel with CONFIG_PSI (Linux 4.20 or newer)"
    system = pressure_at(fs, f"{SYSTEM_ROOT}/{RESOURCES[0]}")
    if isinstance(system, Unavailable):
        yield Capability("psi.system", Area.MEASURE, False, system.reason, cost, remedy)
    else:
        yield Capability("psi.system", Area.MEASURE, True, f"{SYSTEM_ROOT}/{{{','.join(RESOURCES)}}}")
    unified = hierarchies.unified
    if unified is None:
        detail, remedy = (
            "no cgroup v2 hierarchy is mounted",
            "mount cgroup2; on a v1 host beside it, as a hybrid",
        )
        yield Capability("psi.cgroup", Area.MEASURE, False, detail, cost, remedy)
    else:
        tried = [pressure_at(fs, f"{path}/cpu.pressure") for path in first_directories(fs, unified)]
        refused = [found for found in tried if isinstance(found, Unavailable)]
        if len(refused) < len(tried):
            yield Capability("psi.cgroup", Area.MEASURE, True, f"*.pressure at {unified.mount}")
        else:
            yield Capability("psi.cgroup", Area.MEASURE, False, refused[0].reason, cost, remedy)
    yield _psi_triggers(fs, not isinstance(system, Unavailable))


def _psi_triggers(fs: KernelFs, psi: bool) -> Capability:
    cost = "pressure is measured only once per sampling period"
    if not psi:
        return Capability("psi.triggers", Area.MEASURE, False, "PSI is not available", cost, "see psi.system")
    if has_capability(fs, CAP_SYS_RESOURCE):
        return Capability("psi.triggers", Area.MEASURE, True, "CAP_SYS_RESOURCE: windows from 0.5 s")
    if release(fs) >= (6, 4):
        return Capability(
            "psi.triggers", Area.MEASURE, True, "without CAP_SYS_RESOURCE: windows in multiples of 2 s only"
        )
    return Capability(
        "psi.triggers",
        Area.MEASURE,
        False,
        f"Linux {release_text(fs)} gives triggers to CAP_SYS_RESOURCE only, which is not effective",
        cost,
        "add CAP_SYS_RESOURCE to the unit's CapabilityBoundingSet=",
    )


def _perf(fs: KernelFs, hierarchies: Hierarchies, events: EventProbe) -> Iterator[Capability]:
    hierarchy = perf_hierarchy(hierarchies)
    support, asked = None, ""
    if hierarchy is not None:
        # A child's result may differ from the root's, and workloads are children.
        asked = next(islice(first_directories(fs, hierarchy), 1, None), hierarchy.mount)
        support = events(asked)
    permission = _perf_permission(fs, support)
    yield permission
    yield _perf_events(
        "perf.hardware",
        HARDWARE_EVENTS,
        support,
        "no MIPS, CPI or cache misses; performance is judged by the application's indicators or by CPU time "
        "(from which a slowdown by cache or bandwidth cannot be seen)",
        "bare metal, or a virtual machine with a vPMU passed through",
        permission.remedy,
        asked,
    )
    yield _perf_events(
        "perf.software",
        SOFTWARE_EVENTS,
        support,
        "no context switches, migrations and page faults per workload",
        "mount cgroup2 (or v1's perf_event) with a kernel that has CONFIG_CGROUP_PERF",
        permission.remedy,
        asked,
    )


def _perf_events(
    name: str,
    wanted: tuple[PerfEventKind, ...],
    support: EventSupport | None,
    cost: str,
    remedy: str,
    remedy_if_denied: str,
    asked: str,
) -> Capability:
    if support is None:
        return Capability(name, Area.MEASURE, False, "no hierarchy with perf_event is mounted", cost, remedy)
    have = [kind.label for kind in wanted if kind in support.supported]
    lacking = [kind for kind in wanted if kind not in support.supported]
    # The other events are interpreted relative to the first one (instructions or task clock), so it is required.
    if wanted[0] in support.supported:
        detail = f"{', '.join(have)} (asked in {asked})"
        reasons: dict[str, list[str]] = {}
        for kind in lacking:
            why = support.missing[kind]
            reasons.setdefault(why.advice or str(why), []).append(kind.label)
        detail += "".join(f"; not {', '.join(labels)}: {why}" for why, labels in reasons.items())
        return Capability(name, Area.MEASURE, True, detail)
    refusal = support.missing[wanted[0]]
    if isinstance(refusal, Denied):
        remedy = remedy_if_denied or remedy
    elif isinstance(refusal, Busy):
        remedy = refusal.advice or remedy
    return Capability(name, Area.MEASURE, False, str(refusal), cost, remedy)


def _perf_permission(fs: KernelFs, support: EventSupport | None) -> Capability:
    level = text_or_empty(fs, "/proc/sys/kernel/perf_event_paranoid")
    shown = f"kernel.perf_event_paranoid is {level}" if level else "no /proc/sys/kernel/perf_event_paranoid"
    held = [name for bit, name in _PERF_CAPABILITIES if has_capability(fs, bit)]
    denied = support is not None and any(isinstance(why, Denied) for why in support.missing.values())
    if (held and not denied) or level in ("0", "-1"):
        detail = f"{shown}; {held[0]} is effective" if held else shown
        return Capability("perf.permission", Area.MEASURE, True, detail)
    if held:
        # Debian's kernels have levels above 2, at which CAP_PERFMON does not suffice.
        detail = f"{shown}; {held[0]} is effective, but does not suffice on this kernel"
        remedy = (
            "set kernel.perf_event_paranoid to 2, or add CAP_SYS_ADMIN to the unit's CapabilityBoundingSet="
        )
    else:
        detail = f"{shown}; neither CAP_PERFMON nor CAP_SYS_ADMIN is effective"
        remedy = "give perphd CAP_PERFMON (its unit does), or set kernel.perf_event_paranoid to 0"
    cost = "no event can be counted per cgroup"
    return Capability("perf.permission", Area.MEASURE, False, detail, cost, remedy)


def _run_delay(fs: KernelFs, taskstats: TaskstatsProbe) -> Iterator[Capability]:
    refusal = taskstats()
    if refusal:
        yield Capability(
            "taskstats",
            Area.MEASURE,
            False,
            refusal,
            "run-queue delay comes from schedstat: more costly, and threads that end between readings are missed",
            "CONFIG_TASKSTATS, CAP_NET_ADMIN and the host's network namespace (perphd's unit has both)",
        )
    else:
        yield Capability("taskstats", Area.MEASURE, True, "run-queue delay per process by netlink")
    fields = text_or_empty(fs, "/proc/self/schedstat").split()
    if len(fields) == 3 and fields[0] != "0":
        yield Capability(
            "schedstat", Area.MEASURE, True, "run-queue delay per thread in /proc/PID/task/TID/schedstat"
        )
    else:
        detail = f"/proc/self/schedstat says {' '.join(fields)!r}" if fields else "no /proc/self/schedstat"
        yield Capability(
            "schedstat",
            Area.MEASURE,
            False,
            detail,
            "without taskstats too: no run-queue delay, the best signal of CPU contention without a PMU",
            "a kernel with CONFIG_SCHED_INFO (CONFIG_SCHEDSTATS or CONFIG_TASK_DELAY_ACCT)",
        )
