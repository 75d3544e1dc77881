"""Identifies the contended resource from where the extra time of a unit of work is spent.

An LRA's threads run, wait for a processor, or stall on memory or disks. Each state's share is known as a number of
threads (Little's law: threads in a state = work rate x time per unit of work in that state). The reference gives the
numbers usual for the present work; the excess is the extra time, and its largest part is the cause. Processor counters
distinguish why instructions take longer: more misses (cache), costlier misses (bandwidth), or neither (SMT
siblings). ``miss_cost`` learns the cost of a miss. A latency increase without any of these originates
elsewhere: in a full network, or in the requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from perphd.admission.context import batch_use_cores, batches, cores_per_cpu, once, total_cores
from perphd.admission.detector.channels import NOBODY, Neighbours, Slowdown
from perphd.admission.detector.miss_cost import MOST_CYCLES, MissCost
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import HostAccount
from perphd.domain.policy import ResPerfModel, Snapshot
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available, value_or
from perphd.domain.sample import Sample
from perphd.domain.signals import Performance

LEAST_MPKI: Final = 0.5
MANY_MORE: Final = 2.0
"""Ratio of misses to their usual number that SMT cannot explain; a miss may then have its maximum cost."""
_MOSTLY: Final = 0.5  # share of the extra time per instruction that its cause must explain
_PARTLY: Final = 0.3
_KEEP: Final = 0.5  # weight of the previous ledger against the newest sample's
_MOST_SHARE: Final = 0.99  # stall share above which the number of stalled threads cannot be estimated
_TAIL: Final = 2.0
_AMPLIFIED: Final = 3.0
_SHARES: Final = {"latency_p50_ms": 0.5, "latency_p95_ms": 0.05, "latency_p99_ms": 0.01}
_WAITING_BATCH_PCT: Final = 5.0
_RUNS_CORES: Final = 0.01  # CPU use from which a workload counts as running
_GIGABYTE: Final = 1e9
_LINE: Final = 64.0
LOST_OCCUPANCY: Final = 0.8
"""Share of its usual cache occupancy below which an LRA has lost cache to others."""
MORE_TRAFFIC: Final = 1.2
"""Ratio of memory traffic per unit of work to its usual value, from which an LRA counts as having more misses."""
_TAKEN_BY_BATCH: Final = 0.5  # share of the lost occupancy that batch must hold
_LARGE_PART: Final = 0.25  # share of all caches that batch must hold to be suspected without other evidence
_MOST_TRAFFIC: Final = 0.5  # share of the memory traffic that batch must cause to be blamed


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Activity of the other workloads on an LRA's host.

    ``siblings_busy``: more CPUs are busy than there are cores. ``batch_waits``: batch waits for processors,
    as it must if it competes for them. ``confined``: perphd keeps batch on some of the cores, so batch waits
    for that reason. ``relieving``: perphd limits batch's cache or bandwidth. It keeps such a limit only if it helped.
    ``traffic_bytes_per_s``: memory traffic of all workloads per physical core. ``batch_traffic_bytes_per_s``,
    ``batch_occupancy_bytes``: memory traffic and cache occupancy of all batch. ``llc_bytes``: size of all caches.
    ``network_pct``: use of the network in %. ``account``: CPU use by class. ``beside``: combined activity of batch and
    undeclared work.
    """

    siblings_busy: bool = True
    batch_waits: bool = True
    confined: bool = False
    traffic_bytes_per_s: Reading = NOT_MEASURED
    batch_traffic_bytes_per_s: Reading = NOT_MEASURED
    batch_occupancy_bytes: Reading = NOT_MEASURED
    network_pct: Reading = NOT_MEASURED
    account: HostAccount | None = None
    relieving: bool = False
    llc_bytes: float = math.inf
    beside: Neighbours = NOBODY

    def is_crowded(self, settings: PolicySettings) -> bool:
        """True if the memory bus is crowded, or its traffic is unknown."""
        traffic = self.traffic_bytes_per_s
        return not available(traffic) or traffic >= settings.bandwidth_suspect_gbytes_per_s * _GIGABYTE


@once
def surroundings(snapshot: Snapshot) -> Surroundings:
    """Activity of the host around every LRA. Resources whose use cannot be read are assumed to be contended."""
    busy, cores = snapshot.host.busy_cores, total_cores(snapshot)
    smt = len(snapshot.host.topology.usable) > cores
    waits = [v.sample.cpu_some_pct for v in batches(snapshot) if v.sample is not None]
    samples = [v.sample for v in snapshot.workloads if v.sample is not None]
    batch = [v.sample for v in batches(snapshot) if v.sample is not None]
    # An unmeasured running workload may cause most of the traffic, so the total is then unknown.
    running = [s for s in samples if value_or(s.cpu_usage_cores, 1.0) >= _RUNS_CORES]
    blind = any(not available(sample.mbw_bytes_per_s) for sample in running)
    traffic = NOT_MEASURED if blind else _sum_of([sample.mbw_bytes_per_s for sample in samples])
    return Surroundings(
        siblings_busy=smt and (not available(busy) or busy > 1.02 * cores),
        batch_waits=any(value_or(w, 100.0) >= _WAITING_BATCH_PCT for w in waits),
        confined=any(
            v.protection is not None and v.protection.cpu.batch_cores < v.protection.cpu.total_cores
            for v in snapshot.workloads
        ),
        traffic_bytes_per_s=traffic / cores if available(traffic) else traffic,
        batch_traffic_bytes_per_s=_sum_of([sample.mbw_bytes_per_s for sample in batch]),
        batch_occupancy_bytes=_sum_of([sample.llc_occupancy_bytes for sample in batch]),
        network_pct=snapshot.host.network_pct,
        account=snapshot.host.account,
        relieving=any(
            v.protection is not None and (v.protection.llc_ways > 0 or v.protection.mbw_pct < 100)
            for v in snapshot.workloads
        ),
        llc_bytes=float(sum(each.size_bytes for each in snapshot.host.topology.l3_domains)) or math.inf,
        beside=_beside(snapshot, batch),
    )


def _beside(snapshot: Snapshot, batch: Sequence[Sample]) -> Neighbours:
    """Activity of batch and undeclared work. Without resctrl, batch's misses stand for its memory traffic."""
    account, used = snapshot.host.account, batch_use_cores(snapshot)
    if account is not None and available(used):
        used += account.cpu.undeclared * cores_per_cpu(snapshot)
    traffic = _sum_of([sample.mbw_bytes_per_s for sample in batch])
    if not available(traffic):
        traffic = _sum_of([_missed(sample) for sample in batch])
    disk = _sum_of([r for sample in batch for r in (sample.read_bytes_per_s, sample.write_bytes_per_s)])
    return Neighbours(used, traffic, _sum_of([sample.llc_occupancy_bytes for sample in batch]), disk)


def _missed(sample: Sample) -> Reading:
    """Bytes per second that a workload's last-level misses fetch."""
    mips, mpki = sample.mips, sample.llc_mpki
    return mips * 1e3 * mpki * _LINE if available(mips) and available(mpki) else NOT_MEASURED


def _sum_of(readings: Sequence[Reading]) -> Reading:
    """The sum of the known readings, a lower bound if others are missing."""
    known = [reading for reading in readings if available(reading)]
    return math.fsum(known) if known else NOT_MEASURED


UNKNOWN_SURROUNDINGS: Final = Surroundings()
UNKNOWN_COST: Final = MissCost()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Extra threads by state: waiting for a processor, running, stalled on memory or disk; and all in flight.

    NaN: unknown. ``delay``: extra requests in flight, from the application's own latency. ``share``: share of requests
    at or above the latency percentile.
    """

    queue: float = math.nan
    running: float = math.nan
    memory: float = math.nan
    disk: float = math.nan
    delay: float = math.nan
    share: float = 1.0

    @property
    def is_known(self) -> bool:
        """True if extra waiting or extra running is known."""
        return not (math.isnan(self.queue) and math.isnan(self.running))

    @property
    def explained(self) -> float:
        """Largest share of ``delay`` that this host can explain; NaN if unknown.

        Waiting may fall entirely on the slowest requests, those above the percentile. Longer running affects all
        requests alike, and some of them queue behind it.
        """
        known = (max(0.0, v) for v in (self.memory, self.disk) if not math.isnan(v))
        most = (max(0.0, self.queue) + sum(known)) / self.share + _AMPLIFIED * max(0.0, self.running)
        return most / self.delay if self.delay > 0 else math.nan

    def blend(self, new: Ledger) -> Ledger:
        """Exponential average of this ledger with a new one; an unknown value takes the other's."""
        mixed = {}
        for item in fields(Ledger)[:-1]:
            a, b = getattr(self, item.name), getattr(new, item.name)
            mixed[item.name] = b if math.isnan(a) else a if math.isnan(b) else _KEEP * a + (1 - _KEEP) * b
        return Ledger(**mixed, share=new.share)


def ledger(sample: Sample, perf: Performance, model: ResPerfModel) -> Ledger:
    """The ledger of one sample; unknown parts are NaN."""
    usual_work = model.reference(f"work:{perf.work_source}", perf.load)
    if usual_work is None or not available(perf.work) or usual_work.value <= 0:
        return Ledger()
    share = perf.work / usual_work.value
    usage = model.reference("cpu_usage_cores", perf.load)
    in_flight = model.reference("in_flight", perf.load)
    queue = running = delay = math.nan
    if available(sample.cpu_usage_cores) and usage is not None:
        running = sample.cpu_usage_cores - share * usage.value
    if available(sample.run_delay_cores) and in_flight is not None and usage is not None:
        queue = sample.run_delay_cores - share * max(0.0, in_flight.value - usage.value)
    else:
        queue = _stalled(sample, "cpu_some_pct", perf, model, share)
    memory = _stalled(sample, "memory_some_pct", perf, model, share)
    # A page read in again stalls on both memory and disk.
    disk = _stalled(sample, "io_some_pct", perf, model, share) - (0.0 if math.isnan(memory) else memory)
    usual_delay = model.reference(f"delay:{perf.delay_source}", perf.load)
    own = perf.work_source == "sli" and perf.delay_source.startswith("latency")
    if own and available(perf.delay) and usual_delay is not None:
        delay = perf.work * (perf.delay - usual_delay.value) / 1000.0
    return Ledger(queue, running, memory, disk, delay, _SHARES.get(perf.delay_source, 1.0))


def _stalled(sample: Sample, name: str, perf: Performance, model: ResPerfModel, share: float) -> float:
    """Extra stalled threads, from the share of time in which any thread stalls (assuming independence)."""
    seen, usual = sample.reading(name), model.reference(name, perf.load)
    if not available(seen):
        return math.nan
    before = usual.value - 1.0 if usual is not None else 0.0

    def threads(pct: float) -> float:
        return -math.log(1.0 - min(max(pct, 0.0) / 100.0, _MOST_SHARE))

    return threads(seen) - min(share, 1.0) * threads(before)


def counted(
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    evidence: list[Evidence],
    cost: MissCost = UNKNOWN_COST,
) -> tuple[Cause, float]:
    """The cause according to processor counters (LLC, MBW, SMT or NONE), and the relative growth of CPI.

    More misses per instruction show lost cache, if they explain the growth. Costlier misses show exhausted memory
    bandwidth if there is enough traffic, else a busy SMT sibling. Without miss counts (often
    on ARM and AMD), memory stalls distinguish memory from the sibling; without these, the surroundings do.
    """
    cpi, mpki = sample.cpi, sample.llc_mpki
    usual, misses = model.reference("cpi", perf.load), model.reference("llc_mpki", perf.load)
    if not available(cpi) or (usual is None and not available(mpki)):
        return _shared_cache(sample, perf, model, around, settings, evidence)
    if usual is None:
        return Cause.NONE, 0.0
    slower = cpi / usual.value
    if slower < settings.cpi_witness_ratio:
        return Cause.NONE, 0.0
    if not available(mpki) or misses is None:
        found = _shared_cache(sample, perf, model, around, settings, evidence)
        if found[0] is not Cause.NONE:
            return found
        cause, what = _without_misses(sample, perf, model, around, settings, usual.value, cpi)
    else:
        cause, what = _by_misses(cpi, usual.value, mpki, misses.value, cost, around, settings)
    if cause is Cause.NONE:
        return Cause.NONE, 0.0
    evidence.append(Evidence("cpi", cpi, usual.value, "cycles", f"{slower:.2f} x the usual, {what}"))
    return cause, slower - 1.0


def blamed(
    slow: Slowdown,
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    evidence: list[Evidence],
    cost: MissCost,
) -> tuple[Cause, float]:
    """The same as ``counted``, for harm that coincided with the activity of neighbours.

    Compares with the values just before the neighbours became active.
    """
    slower = slow.cpi / slow.usual_cpi
    if not slower >= settings.cpi_witness_ratio:  # also false for NaN
        return Cause.NONE, 0.0
    if math.isnan(slow.mpki) or math.isnan(slow.usual_mpki):
        cause, what = _without_misses(sample, perf, model, around, settings, slow.usual_cpi, slow.cpi)
    else:
        numbers = slow.cpi, slow.usual_cpi, slow.mpki, slow.usual_mpki
        cause, what = _by_misses(*numbers, cost, around, settings)
    if cause is not Cause.NONE:
        text = f"{slower:.2f} x the previous, {what}"
        evidence.append(Evidence("cpi", slow.cpi, slow.usual_cpi, "cycles", text))
    return cause, slower - 1.0


def _by_misses(
    cpi: float,
    usual_cpi: float,
    mpki: float,
    usual_mpki: float,
    cost: MissCost,
    around: Surroundings,
    settings: PolicySettings,
) -> tuple[Cause, str]:
    """Cause of longer instructions, judged by the number of misses: LLC, MBW, SMT or NONE, with an explanation."""
    crowded = around.is_crowded(settings)
    more, slower = mpki / usual_mpki, cpi - usual_cpi
    mean, sd = cost.band
    many = more >= MANY_MORE
    per_cycle = (mpki - usual_mpki) / 1000.0 / slower
    explained = mean * per_cycle
    if many and (not crowded or not available(around.traffic_bytes_per_s)):
        explained = max(explained, MOST_CYCLES * per_cycle)
    missing_more = mpki >= LEAST_MPKI and more >= settings.mpki_witness_ratio
    # Many additional misses load the memory bus as well, so part of their cost is a longer time per miss.
    if missing_more and explained >= (_PARTLY if many else _MOSTLY):
        return Cause.LLC, f"with more misses ({more:.2f} x)"
    if around.siblings_busy and (mpki < LEAST_MPKI or not crowded):
        text = "without more misses or a crowded memory bus: a busy SMT sibling"
        return Cause.SMT, text
    if mpki >= LEAST_MPKI and crowded:
        return Cause.MBW, f"with costlier misses ({more:.2f} x as many)"
    # Sharing processors with waiting batch means sharing private caches, which also causes misses.
    enough = (mean + 2.0 * sd) * per_cycle >= _MOSTLY and not around.batch_waits
    if missing_more and enough:
        return Cause.LLC, f"with more misses ({more:.2f} x)"
    return Cause.NONE, ""


def _shared_cache(
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    evidence: list[Evidence],
) -> tuple[Cause, float]:
    """LLC or MBW from cache occupancy and memory traffic, if the processor counts no misses; else NONE.

    CPU time per unit of work stands for cycles per instruction. Occupancy that moved from the LRA to batch is lost
    cache. A crowded bus with mostly batch traffic is lost bandwidth.
    """
    usual_work = model.reference(f"work:{perf.work_source}", perf.load)
    usual_usage = model.reference("cpu_usage_cores", perf.load)
    used = sample.cpu_usage_cores
    if perf.work_source == "cpu" or usual_work is None or usual_usage is None:
        return Cause.NONE, 0.0
    if not (available(used) and available(perf.work)) or perf.work <= 0 or usual_usage.value <= 0:
        return Cause.NONE, 0.0
    slower = (used / perf.work) / (usual_usage.value / usual_work.value)
    if slower < settings.cpi_witness_ratio:
        return Cause.NONE, 0.0
    usual, held = model.reference("llc_occupancy_bytes", perf.load), sample.llc_occupancy_bytes
    taken, moved, traffic = (
        around.batch_occupancy_bytes, around.batch_traffic_bytes_per_s, sample.mbw_bytes_per_s
    )  # fmt: skip
    lost = (
        usual is not None
        and available(held)
        and available(taken)
        and held < LOST_OCCUPANCY * usual.value
        and taken >= _TAKEN_BY_BATCH * (usual.value - held)
    )
    bus = around.traffic_bytes_per_s
    crowded = (
        available(bus)
        and available(moved)
        and available(traffic)
        and bus >= settings.bandwidth_suspect_gbytes_per_s * _GIGABYTE
        and moved >= _MOST_TRAFFIC * (moved + traffic)
    )
    if (
        lost
        and usual is not None
        and available(held)
        and not (crowded and not _fetches_more(sample, perf, model))
    ):
        text = f"its usual cache is held by batch, and a unit of work takes {slower:.2f} x the usual CPU time"
        evidence.append(Evidence("llc_occupancy_bytes", held, usual.value, "B", text))
        return Cause.LLC, slower - 1.0
    if crowded and available(moved):
        text = f"of batch on a crowded memory bus, and a unit of work takes {slower:.2f} x the usual CPU time"
        evidence.append(Evidence("mbw_bytes_per_s", moved, 0.0, "B/s", text))
        return Cause.MBW, slower - 1.0
    return Cause.NONE, 0.0


def unacquitted(
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    evidence: list[Evidence],
) -> Cause:
    """LLC or MBW if batch uses much of it and no counter rules it out; else NONE.

    This applies to an LRA whose waiting and CPU time explain nothing, on a processor without event counters.
    Time lost to a cache or memory bus need not be CPU time of the LRA's own threads. If batch uses little of both while
    perphd limits its cache or bandwidth, LLC is assumed.
    """
    if available(sample.cpi):
        return Cause.NONE
    usual, held = model.reference("llc_occupancy_bytes", perf.load), sample.llc_occupancy_bytes
    taken, moved, bus = (
        around.batch_occupancy_bytes,
        around.batch_traffic_bytes_per_s,
        around.traffic_bytes_per_s,
    )
    keeps = usual is not None and available(held) and held >= LOST_OCCUPANCY * usual.value
    if available(taken) and taken >= _LARGE_PART * around.llc_bytes and not keeps:
        text = "of the shared cache held by batch, and nothing else on this host explains the slowdown"
        evidence.append(Evidence("llc_occupancy_bytes", taken, around.llc_bytes, "B", text))
        return Cause.LLC
    crowded = available(bus) and bus >= settings.bandwidth_suspect_gbytes_per_s * _GIGABYTE
    traffic = value_or(sample.mbw_bytes_per_s, 0.0)
    if crowded and available(moved) and moved >= _MOST_TRAFFIC * (moved + traffic):
        text = "of batch on a crowded memory bus, and nothing else on this host explains the slowdown"
        evidence.append(Evidence("mbw_bytes_per_s", moved, 0.0, "B/s", text))
        return Cause.MBW
    return Cause.LLC if around.relieving else Cause.NONE


def _fetches_more(sample: Sample, perf: Performance, model: ResPerfModel) -> bool:
    """True if a unit of work causes more memory traffic than usual, or this is unknown."""
    usual_work = model.reference(f"work:{perf.work_source}", perf.load)
    usual, traffic = model.reference("mbw_bytes_per_s", perf.load), sample.mbw_bytes_per_s
    if usual is None or usual_work is None or not available(traffic) or not available(perf.work):
        return True
    return traffic * usual_work.value >= MORE_TRAFFIC * usual.value * perf.work


def _without_misses(
    sample: Sample,
    perf: Performance,
    model: ResPerfModel,
    around: Surroundings,
    settings: PolicySettings,
    usual_cpi: float,
    cpi: float,
) -> tuple[Cause, str]:
    """Cause of longer instructions, judged without counts of misses: LLC, MBW, SMT or NONE, with an explanation."""
    traffic = around.traffic_bytes_per_s
    crowded = available(traffic) and traffic >= settings.bandwidth_suspect_gbytes_per_s * _GIGABYTE
    shared = Cause.MBW if crowded else Cause.LLC
    place = (
        "a crowded memory bus" if crowded else "the shared cache, as far as can be judged without its misses"
    )
    stalled, usual = sample.memory_stall_ratio, model.reference("memory_stall_ratio", perf.load)
    if available(stalled) and usual is not None:
        explained = (stalled * cpi - usual.value * usual_cpi) / (cpi - usual_cpi)
        if explained >= _MOSTLY:
            return shared, f"{explained:.0%} of it stalls on memory: {place}"
        if around.siblings_busy:
            return (
                Cause.SMT,
                f"{max(0.0, explained):.0%} of it stalls on memory: a busy SMT sibling",
            )
        return Cause.NONE, ""
    if around.siblings_busy and not crowded:
        return Cause.SMT, "with misses not counted: a busy SMT sibling"
    if crowded:
        return shared, f"with {place}"
    return shared, f"without a busy SMT sibling: {place}"


def cause(
    extra: Ledger,
    hierarchy: Cause,
    sample: Sample,
    around: Surroundings,
    settings: PolicySettings,
    evidence: list[Evidence],
) -> Cause:
    """The resource of this host that causes most of the extra time; UNKNOWN if the evidence is not clear."""
    if not extra.is_known:
        return Cause.UNKNOWN
    queue, running = (0.0 if math.isnan(v) else max(0.0, v) for v in (extra.queue, extra.running))
    parts: dict[Cause, float] = {
        c: v for c, v in ((Cause.MEMORY, extra.memory), (Cause.IO, extra.disk)) if not math.isnan(v)
    }
    throttled = sample.cpu_throttled_pct
    if available(throttled) and throttled >= settings.throttled_witness_pct:
        # Threads throttled by a limit wait in the run-queue like all others.
        evidence.append(
            Evidence("cpu_throttled_pct", throttled, 0.0, "%", "of the time throttled by its own CPU limit")
        )
        parts[Cause.THROTTLED] = queue
        queue = 0.0
    if hierarchy is not Cause.NONE and not around.batch_waits:
        # Nothing competes for its processors, so threads wait because its own instructions take longer.
        parts[hierarchy] = queue + running
    else:
        # Waiting slows few requests, which are the tail of latency. Slower execution slows all requests.
        parts[Cause.CPU] = queue if math.isnan(extra.delay) else _TAIL * queue
        if hierarchy is not Cause.NONE:
            parts[hierarchy] = running
        elif around.batch_waits and not (around.confined and isinstance(sample.cpi, Unavailable)):
            parts[Cause.CPU] += running  # sharing processors means sharing private caches
        else:
            # Confined batch waits because it is confined, so its waiting does not prove competition.
            parts[Cause.UNKNOWN] = running
    whole = sum(v for v in parts.values() if v > 0)
    if whole <= 0:
        return Cause.UNKNOWN
    found = max(parts, key=lambda c: parts[c])
    shown = ", ".join(f"{c} {v / whole:.0%}" for c, v in sorted(parts.items(), key=lambda i: -i[1]) if v > 0)
    evidence.append(Evidence("extra time", whole, 0.0, "threads", f"more than usual for this work: {shown}"))
    return found
