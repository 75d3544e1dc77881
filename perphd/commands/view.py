"""The state of a host as it is shown: cores and cache ways by owner, a row per workload, the last changes.

Used by both ``perphctl top`` and the dashboard, in the words of ``perphctl status``. Pure functions of domain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from perphd.commands.render_host import host_lines
from perphd.commands.render_status import (
    batch_row,
    change_text,
    headline,
    lra_row,
    needs_lines,
    performance_of,
    why_lines,
)
from perphd.control.table import Cell, Styled
from perphd.domain import signals
from perphd.domain.allocation import KEEP
from perphd.domain.condition import BatchCondition, LraCondition
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Health
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import available
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, Mode


class Share(StrEnum):
    """Users of a CPU or a cache way."""

    LRA = "lra"  # LRAs without batch
    BATCH = "batch"  # batch without LRAs
    SHARED = "shared"  # LRAs and batch
    FREE = "free"  # no running declared workload
    ISOLATED = "isolated"  # reserved by the kernel's command line
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Owner:
    """Workloads that may use the same CPUs or ways. ``letter`` replaces the colour on displays without colours."""

    letter: str
    name: str
    share: Share


@dataclass(frozen=True, slots=True)
class CoreCell:
    """One physical core; its hardware threads, each with the place of its owner in ``View.owners``.

    ``socket`` and ``core`` are -1 for an offline CPU whose core is unknown.
    """

    socket: int
    core: int
    l3: int | None
    cpus: tuple[int, ...]
    owners: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaysStrip:
    """The ways of one last-level cache, the lowest bit first, each with the place of its owner in ``View.owners``.

    ``shareable``: ways that devices fill, too.
    """

    domain: int
    owners: tuple[int, ...]
    shareable: tuple[bool, ...]


class Severity(IntEnum):
    """Urgency of a workload; a greater value is worse."""

    GOOD = 0
    QUIET = 1  # not running, or without load
    WATCH = 2
    BAD = 3


@dataclass(frozen=True, slots=True)
class LraView:
    """An LRA. ``cells``: under ``LRA_HEADS`` of render_status. ``score``: 1 is on target; None: unknown.

    ``why``: sentences about its health and what enforce would do.
    """

    name: str
    cells: tuple[Cell, ...]
    severity: Severity
    score: float | None
    mode: Mode
    paused: bool
    why: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch workload. ``cells``: under ``BATCH_HEADS``. Cores are None if unknown."""

    name: str
    cells: tuple[Cell, ...]
    severity: Severity
    given_cores: float | None
    wanted_cores: float | None
    mode: Mode
    paused: bool


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One change. ``at_s``: on the daemon's monotonic clock."""

    at_s: float
    workload: str
    text: str
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class View:
    """The shown state of one moment. ``at_s``: on the daemon's monotonic clock."""

    at_s: float
    mode: Mode
    headline: Styled
    host: HostAccount | None
    host_lines: tuple[str, ...]
    owners: tuple[Owner, ...]
    cores: tuple[CoreCell, ...]
    ways: tuple[WaysStrip, ...]
    lras: tuple[LraView, ...]
    batch: tuple[BatchView, ...]
    changes: tuple[ChangeView, ...]
    needs: tuple[Cell, ...]


_HEALTH: Final[Mapping[Health, Severity]] = {
    Health.DEGRADED: Severity.BAD,
    Health.SUSPECT: Severity.WATCH,
    Health.UNKNOWN: Severity.QUIET,
    Health.HEALTHY: Severity.GOOD,
    Health.OVERPROVISIONED: Severity.GOOD,
}
_CONDITION: Final[Mapping[str, Severity]] = {
    LraCondition.STALLED: Severity.BAD,
    LraCondition.BELOW_TARGET: Severity.WATCH,
    LraCondition.NO_LOAD: Severity.QUIET,
    BatchCondition.STARVED: Severity.WATCH,
    BatchCondition.THROTTLED: Severity.WATCH,
    BatchCondition.FROZEN: Severity.WATCH,
    BatchCondition.IDLE: Severity.QUIET,
    BatchCondition.GONE: Severity.QUIET,
}


def view_of(status: AgentStatus, topology: Topology, now_s: float) -> View:
    """The shown parts of this status. ``now_s``: the daemon's monotonic clock when it was made."""
    owners = _Owners(status.workloads)
    cores = tuple(owners.cores(topology))
    ways = tuple(owners.ways(topology, status))
    return View(
        now_s,
        status.mode,
        headline(status),
        status.host,
        () if status.host is None else host_lines(status.host, status.workloads),
        owners.known(),
        cores,
        ways,
        tuple(_lra(item, status, now_s) for item in status.workloads if item.spec.kind is Kind.LRA),
        tuple(_batch(item, status) for item in status.workloads if item.spec.kind is Kind.BATCH),
        tuple(ChangeView(c.at_s, c.workload, change_text(c), c.mode) for c in status.changes),
        tuple(needs_lines(status)),
    )


def score(item: WorkloadStatus) -> float | None:
    """Performance divided by target, the worse of work and delay; None without a target."""
    perf = performance_of(item)
    if perf is None or item.decision is None or not item.present:
        return None
    reached = signals.score(perf, item.decision.target_work, item.decision.target_delay)
    return reached if available(reached) else None


def severity(item: WorkloadStatus) -> Severity:
    """The urgency of this workload."""
    if not item.present:
        return Severity.QUIET
    if item.condition:
        return _CONDITION.get(item.condition, Severity.GOOD)
    return Severity.QUIET if item.decision is None else _HEALTH[item.decision.verdict.health]


def _lra(item: WorkloadStatus, status: AgentStatus, now_s: float) -> LraView:
    return LraView(
        item.spec.name, lra_row(item, status), severity(item), score(item), item.mode, item.pause is not None,
        tuple(why_lines(item, status, now_s, verbose=False)),
    )  # fmt: skip


def _batch(item: WorkloadStatus, status: AgentStatus) -> BatchView:
    given = wanted = None
    if item.present and item.sample is not None and available(item.sample.cpu_usage_cores):
        given = item.sample.cpu_usage_cores
        waits = item.sample.run_delay_cores
        wanted = given + waits if available(waits) else None
    return BatchView(
        item.spec.name, batch_row(item, status), severity(item), given, wanted, item.mode,
        item.pause is not None,
    )  # fmt: skip


class _Owners:
    """Numbers all owners of CPUs or ways in the order of their first use."""

    def __init__(self, workloads: Sequence[WorkloadStatus]) -> None:
        self._present = [item for item in workloads if item.present]
        self._places: dict[tuple[Share, str], int] = {}
        self._letters = _letters([item.spec.name for item in self._present], self._present)

    def cores(self, topology: Topology) -> Iterable[CoreCell]:
        """All cores in the order of sockets, offline CPUs last."""
        for core in topology.cores:
            l3 = next((d.domain for d in topology.l3_domains if d.cpus & core.cpus), None)
            cpus = tuple(core.cpus)
            owners = tuple(self._of_cpu(cpu, topology) for cpu in cpus)
            yield CoreCell(core.socket, core.core, l3, cpus, owners)
        known = CpuSet.of(cpu for core in topology.cores for cpu in core.cpus)
        for cpu in topology.offline - known:  # the kernel does not report the core of an offline CPU
            yield CoreCell(-1, -1, None, (cpu,), (self._of_cpu(cpu, topology),))

    def ways(self, topology: Topology, status: AgentStatus) -> Iterable[WaysStrip]:
        """The ways of every last-level cache; empty if ways cannot be allocated."""
        if not status.llc_ways:
            return
        full = (1 << status.llc_ways) - 1
        for domain in topology.l3_domains:
            owners = []
            for way in range(status.llc_ways):
                users = [i for i in self._present if _mask(i, domain.domain, full) >> way & 1]
                owners.append(self._place(*self._users(users)))
            shareable = tuple(bool(status.llc_shareable >> way & 1) for way in range(status.llc_ways))
            yield WaysStrip(domain.domain, tuple(owners), shareable)

    def known(self) -> tuple[Owner, ...]:
        """All numbered owners."""
        return tuple(Owner(self._letter(share, name), name, share) for share, name in self._places)

    def _of_cpu(self, cpu: int, topology: Topology) -> int:
        if cpu not in topology.online:
            return self._place(Share.OFFLINE, "offline")
        if cpu in topology.isolated:
            return self._place(Share.ISOLATED, "isolated")
        return self._place(*self._users([i for i in self._present if cpu in _cpus(i, topology)]))

    def _users(self, users: Sequence[WorkloadStatus]) -> tuple[Share, str]:
        lras = [item.spec.name for item in users if item.spec.kind is Kind.LRA]
        batch = [item.spec.name for item in users if item.spec.kind is Kind.BATCH]
        if lras and batch:
            return Share.SHARED, "shared"
        if lras:
            return Share.LRA, lras[0] if len(lras) == 1 else "LRAs"
        if batch:
            return Share.BATCH, batch[0] if len(batch) == 1 else "batch"
        return Share.FREE, "free"

    def _place(self, share: Share, name: str) -> int:
        return self._places.setdefault((share, name), len(self._places))

    def _letter(self, share: Share, name: str) -> str:
        if share in _SIGNS:
            return _SIGNS[share]
        several = "#" if share is Share.LRA else "%"
        return self._letters.get(name, several)


_SIGNS: Final[Mapping[Share, str]] = {
    Share.SHARED: "+",
    Share.FREE: ".",
    Share.ISOLATED: "x",
    Share.OFFLINE: "-",
}


def _letters(names: Sequence[str], items: Sequence[WorkloadStatus]) -> dict[str, str]:
    """A letter for every workload: one from its name if possible, upper case for LRAs."""
    given: dict[str, str] = {}
    for name, item in zip(names, items, strict=True):
        case = str.upper if item.spec.kind is Kind.LRA else str.lower
        letters = [case(c) for c in (*name, *"abcdefghijklmnopqrstuvwxyz") if c.isascii() and c.isalpha()]
        given[name] = next((letter for letter in letters if letter not in given.values()), "?")
    return given


def _cpus(item: WorkloadStatus, topology: Topology) -> CpuSet:
    return topology.usable if item.in_force.cpus is KEEP else item.in_force.cpus


def _mask(item: WorkloadStatus, domain: int, full: int) -> int:
    masks = {} if item.in_force.llc_masks is KEEP else dict(item.in_force.llc_masks)
    return masks.get(domain, full)


def cpus_of_owner(view: View, place: int) -> CpuSet:
    """The CPUs of one of ``view.owners``."""
    return CpuSet.of(
        cpu
        for core in view.cores
        for cpu, owner in zip(core.cpus, core.owners, strict=True)
        if owner == place
    )
