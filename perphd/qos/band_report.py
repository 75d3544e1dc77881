"""Reports the mechanisms of each band on this host, and the next best one if the best is absent. Pure.

The lines are for ``perphctl doctor``: one for each workload that declares its band, one for copper, one for the host's
own daemons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perphd.domain.allocation import KEEP, Settings
from perphd.domain.units import format_bytes
from perphd.domain.workload import Kind, Touch, WorkloadSpec
from perphd.qos.band_settings import weight_for
from perphd.qos.bands import QosBand
from perphd.qos.division import SYSTEM, Division, takes_part


@dataclass(frozen=True, slots=True)
class BandMember:
    """A workload that declares its band.

    ``enforced``: perphd may write its settings. ``knobs``: settings that the host has for it. ``in_force``: the
    settings that perphd has written. ``beside_gold``: see ``division.beside_gold``.
    """

    spec: WorkloadSpec
    enforced: bool
    knobs: frozenset[str] = frozenset()
    in_force: Settings = Settings()
    beside_gold: str = ""


@dataclass(frozen=True, slots=True)
class HostControls:
    """Controls of this host that bands use.

    ``llc_ways`` 0: no cache allocation. ``copper_ways``: maximum number of ways for copper, by L3 domain; domains
    without a limit are absent. ``throttles``: memory bandwidth can be throttled. ``egress``: network devices with a
    ceiling for copper. ``smt``: physical cores have several hardware threads.
    """

    llc_ways: int = 0
    copper_ways: Mapping[int, int] | None = None
    throttles: bool = False
    egress: tuple[str, ...] = ()
    smt: bool = False


def report(members: Iterable[BandMember], division: Division | None, host: HostControls) -> tuple[str, ...]:
    """The lines of the report; empty if no workload declares a band."""
    everybody = tuple(members)
    if not everybody:
        return ()
    lines = [f"{each.spec.name} ({each.spec.band}): {_member(each, division, host)}" for each in everybody]
    return (*lines, f"copper: {_copper(division, host)}", f"system daemons: {_system(division)}")


def latency_line(
    spec: WorkloadSpec, enforced: bool, disks: Iterable[str], reason: str, others: Iterable[WorkloadSpec]
) -> str:
    """The effect of a workload's latency target on this host's disks.

    ``reason``: why it cannot be set; empty if it can. ``others``: all other workloads.
    """
    head = f"{spec.name} (io_latency_ms): "
    if reason:
        return f"{head}no target on disks: {reason}"
    if not enforced:
        return f"{head}nothing is set: it is only observed"
    if not spec.cgroup:
        return f"{head}its control group does not exist: nothing is set"
    known = list(others)
    peers = [each.name for each in known if each.cgroup and _parent(each.cgroup) == _parent(spec.cgroup)]
    apart = [
        each.name for each in known if each.kind is Kind.BATCH and each.cgroup and each.name not in peers
    ]
    words = [f"io.latency of {spec.io_latency_ms:g} ms on {', '.join(disks) or 'no disk'}"]
    words.append(f"the kernel slows down sibling groups for it: {', '.join(peers) or 'no workload'}")
    if apart:
        words.append(f"it has no effect on {', '.join(apart)}, which is below another parent group")
    return f"{head}{'; '.join(words)}"


def _parent(cgroup: str) -> str:
    return cgroup.rstrip("/").rpartition("/")[0]


def _member(each: BandMember, division: Division | None, host: HostControls) -> str:
    spec = each.spec
    if not each.enforced:
        return "nothing is set: it is only observed"
    if spec.band == QosBand.COPPER:
        return _copper_member(each)
    words = [_memory(each, division)]
    if spec.kind is Kind.BATCH:
        return "; ".join(("never restricted for LRAs", *words))
    if not takes_part(spec):
        return "; ".join(("no CPUs are reserved (reserved_cpus)", *words))
    if division is None:
        return "; ".join(("its control group does not exist: nothing is reserved", *words))
    return "; ".join((_cpus(each, division, host), *words))


def _cpus(each: BandMember, division: Division, host: HostControls) -> str:
    spec, reason = each.spec, division.refused.get(each.spec.name)
    weight = weight_for(spec.reserved_cpus)
    share = (
        f"CPU weight of at least {weight}" if "cpu_weight" in each.knobs else "no CPU weight can be set here"
    )
    if reason:
        return f"no reserved CPUs, {share} instead: {reason}"
    if spec.band == QosBand.SILVER:
        words = [f"{share} for {spec.reserved_cpus:g} reserved CPUs", each.beside_gold]
        return "; ".join(filter(None, words))
    cores = division.cores.get(spec.name)
    if cores is None:
        return "its control group does not exist: nothing is reserved"
    if spec.name in division.own:
        siblings = ", with their SMT siblings" if host.smt else ""
        return f"CPUs {cores} are its own{siblings}; undeclared groups may still run there"
    why = (
        'touch = "batch" leaves its CPUs as they are'
        if spec.touch is not Touch.ALL
        else "no cpuset can be set here"
    )
    siblings = "; SMT siblings of its threads are not kept free" if host.smt else ""
    return f"no cores of its own ({why}); batch keeps off CPUs {cores}, {share}{siblings}"


def _memory(each: BandMember, division: Division | None) -> str:
    spec = each.spec
    if not spec.reserved_memory_bytes:
        return "no memory is reserved (reserved_memory)"
    if spec.shape != "no":
        return "the shaper sizes its memory"
    reason = None if division is None else division.without_memory.get(spec.name)
    if reason and "memory_low_bytes" in each.knobs:
        return f"memory.low is reserved_memory, because the host cannot guarantee every reservation: {reason}"
    if "memory_min_bytes" in each.knobs and spec.band == QosBand.GOLD:
        return "memory.min is reserved_memory"
    if "memory_low_bytes" in each.knobs:
        lacks = ", since memory.min cannot be set here" if spec.band == QosBand.GOLD else ""
        return f"memory.low is reserved_memory{lacks}"
    return "memory cannot be protected here"


def _copper_member(each: BandMember) -> str:
    words = ["idle CPU class" if "cpu_weight" in each.knobs else "no CPU weight can be set here"]
    if each.spec.min_cores is not None or each.spec.max_starvation_s is not None:
        words = ["CPU weight according to its guarantee"]
    words.append("lowest I/O weight" if "io_weight" in each.knobs else "no I/O weight has an effect here")
    high = each.in_force.memory_high_bytes
    if isinstance(high, int):
        words.append(f"memory.high of {format_bytes(float(high))}")
    elif "memory_high_bytes" not in each.knobs:
        words.append("no memory.high can be set here")
    if each.in_force.cpus is not KEEP:
        words.append(f"CPUs {each.in_force.cpus}")
    return ", ".join(words)


def _copper(division: Division | None, host: HostControls) -> str:
    words = ["all CPUs" if division is None or not division.cores else f"CPUs {division.shared}"]
    if not host.llc_ways:
        words.append("cache is not divided (no cache allocation by resctrl)")
    elif host.copper_ways:
        some = ", ".join(f"{ways} in L3 {domain}" for domain, ways in sorted(host.copper_ways.items()))
        words.append(f"cache ways: at most {some}, of {host.llc_ways}")
    else:
        words.append("cache ways: all, until the policy takes some")
    words.append(
        "memory bandwidth (MBA) throttled by the policy and [contention]"
        if host.throttles
        else "memory bandwidth cannot be throttled (no MBA): CPU ceilings instead, where [contention] is on"
    )
    words.append(
        f"egress ceiling on {', '.join(host.egress)}"
        if host.egress
        else "no egress ceiling ([network] devices and batch_egress_max)"
    )
    return "; ".join(words)


def _system(division: Division | None) -> str:
    kept = None if division is None else division.ledger.held_by(SYSTEM)
    untouched = "undeclared groups are never changed; copper is in the idle class beside them"
    if kept is None or division is None:
        return untouched
    reserved = (
        f"{kept.amounts.cpus:g} of the CPUs {division.shared} are reserved for them and for batch's min_cores"
    )
    return f"{reserved}; {untouched}"
