"""Counts since the start: usage of workloads, decisions, writes, and time of LRAs in each health.

Scrapes happen every 15 to 60 s and catch gauges of one second only by chance. A counter loses nothing between
them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from perphd.domain.decision import Action, Decision, Outcome
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.plan import Write
from perphd.domain.reading import NOT_MEASURED, Awaited, Reading, Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import performance, score
from perphd.domain.workload import Kind, Mode, WorkloadSpec

COUNTED: Final[Mapping[str, float]] = {
    "cpu_usage_cores": 1.0,
    "run_delay_cores": 1.0,
    "cpu_throttled_pct": 0.01,
    "cpu_some_pct": 0.01,
    "memory_some_pct": 0.01,
    "memory_full_pct": 0.01,
    "io_some_pct": 0.01,
    "io_full_pct": 0.01,
    "refaults_per_s": 1.0,
    "major_faults_per_s": 1.0,
    "read_bytes_per_s": 1.0,
    "write_bytes_per_s": 1.0,
    "context_switches_per_s": 1.0,
    "mips": 1e6,
    "work_rate_per_s": 1.0,
    "load_per_s": 1.0,
}
"""Readings that are rates, with the factor to base units; counters add rate x interval."""

_FACTORS: Final = tuple(COUNTED.items())
_counted_of: Final[Callable[[Sample], tuple[Reading, ...]]] = attrgetter(*COUNTED)

CPU_PARTS: Final = tuple(part.name for part in fields(CpuAccount) if part.name != "capacity")
"""Names of the parts into which the host's CPU time is divided."""

HOST_COUNTED: Final[Mapping[str, float]] = {
    "cpu_some_pct": 0.01,
    "memory_some_pct": 0.01,
    "memory_full_pct": 0.01,
    "io_some_pct": 0.01,
    "disk_bytes_per_s": 1.0,
    "network_bytes_per_s": 1.0,
}
"""Readings of the host account that are rates, with the factor to base units."""

DURATION_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets of durations, in seconds."""

LONGEST_STEP_S: Final = 60.0
"""Maximum number of seconds that one tick adds to a time. A host that was suspended all night was not healthy then."""


class TallyHistogram:
    """Durations in buckets, in Prometheus's form."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(DURATION_BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s


@dataclass(slots=True)
class LraTimes:
    """Times of one LRA since the start, in seconds.

    ``judged_s``: time with known performance and target; ``below_s``: the part of it below the target;
    ``wanted_s``: time in observe mode in which perphd wanted protection; ``wanted_core_s``: core-seconds that
    batch would have lost to it.
    """

    by_health_s: dict[str, float]
    judged_s: float = 0.0
    below_s: float = 0.0
    wanted_s: float = 0.0
    wanted_core_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last decision about an LRA: its time, and the change that was last counted."""

    at_s: float
    change: tuple[object, ...]


class Tally:
    """The counters. ``wall_clock``: seconds since 1970, for times that operators see."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._seen: dict[str, _Seen] = {}
        self._host_s: float | None = None
        self.ticks, self.write_delays = TallyHistogram(), TallyHistogram()
        self.used: dict[str, dict[str, float]] = {}
        self._awaited_s: dict[str, dict[str, float]] = {}
        self.traffic_bytes: dict[tuple[str, int], float] = {}
        self.sli_missing: defaultdict[str, int] = defaultdict(int)
        self.times: dict[str, LraTimes] = {}
        self.decisions: defaultdict[tuple[str, Action, Mode], int] = defaultdict(int)
        self.outcomes: defaultdict[tuple[str, bool], int] = defaultdict(int)
        self.writes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.last_change_unix_s: dict[str, float] = {}
        self.last_tick_unix_s: Reading = NOT_MEASURED
        self.host_cpu_s: dict[str, float] = {}
        self.host_used: dict[str, float] = {}
        self.conflicts: tuple[tuple[str, str, str], ...] = ()

    def ticked(self, duration_s: float) -> None:
        """Count a tick and its duration."""
        self.ticks.add(duration_s)
        self.last_tick_unix_s = self._wall_clock()

    def sampled(self, samples: Iterable[Sample]) -> None:
        """Add the workloads' usage in the interval of these samples.

        An indicator that reports less often than once per sample covers the samples in which it was awaited as well.
        """
        for sample in samples:
            used = self.used.get(sample.workload)
            if used is None:
                used = self.used[sample.workload] = {}
            awaited_s = self._awaited_s.setdefault(sample.workload, {})
            interval_s = sample.interval_s
            for (name, factor), reading in zip(_FACTORS, _counted_of(sample), strict=True):
                if isinstance(reading, Awaited):
                    awaited_s[name] = awaited_s.get(name, 0.0) + interval_s
                    continue
                covered_s = interval_s + awaited_s.pop(name, 0.0) if awaited_s else interval_s
                if not isinstance(reading, Unavailable) and reading >= 0:
                    used[name] = used.get(name, 0.0) + reading * factor * covered_s
            for use in sample.domains:
                if available(use.mbw_bytes_per_s):
                    key = (sample.workload, use.domain)
                    moved = use.mbw_bytes_per_s * interval_s
                    self.traffic_bytes[key] = self.traffic_bytes.get(key, 0.0) + moved
            if sample.has(Quality.SLI_MISSING):
                self.sli_missing[sample.workload] += 1

    def host(self, account: HostAccount | None) -> None:
        """Add the host's usage in the interval of this account, once."""
        if account is None or account.at_s == self._host_s:
            return
        self._host_s = account.at_s
        step_s = min(account.interval_s, LONGEST_STEP_S)
        for part in CPU_PARTS:
            self.host_cpu_s[part] = self.host_cpu_s.get(part, 0.0) + getattr(account.cpu, part) * step_s
        for name, factor in HOST_COUNTED.items():
            reading = getattr(account, name)
            if available(reading):
                self.host_used[name] = self.host_used.get(name, 0.0) + reading * factor * step_s

    def decided(self, decision: Decision, spec: WorkloadSpec, sample: Sample | None) -> None:
        """Add the time since the last decision about this LRA, and count this decision if it is a new change."""
        name, verdict = decision.workload, decision.verdict
        seen = self._seen.get(name)
        change = (decision.mode, decision.action, decision.chosen)
        self._seen[name] = _Seen(decision.at_s, change)
        if decision.action is not Action.HOLD and (seen is None or seen.change != change):
            self.decisions[name, decision.action, decision.mode or Mode.OBSERVE] += 1
        step_s = _step(seen.at_s, decision.at_s) if seen is not None else 0.0
        times = self.times.setdefault(name, LraTimes({}))
        times.by_health_s[verdict.health] = times.by_health_s.get(verdict.health, 0.0) + step_s
        if sample is not None:
            perf = performance(sample, spec.objective.latency_percentile)
            reached = score(perf, decision.target_work, decision.target_delay)
            if available(reached):
                times.judged_s += step_s
                times.below_s += step_s if reached < 1.0 else 0.0
        if decision.mode is Mode.OBSERVE and decision.chosen != decision.current:
            times.wanted_s += step_s
            cost = (c.batch_cores_lost for c in decision.candidates if c.allocation == decision.chosen)
            times.wanted_core_s += max(0.0, next(cost, 0.0)) * step_s

    def outcome(self, outcome: Outcome) -> None:
        """Count a reviewed change."""
        self.outcomes[outcome.workload, outcome.kept] += 1

    def wrote(self, write: Write, result: str) -> None:
        """Count one kernel write by its result (``written``, ``undone``, ``restored``, ``failed: ...``)."""
        kind = result.partition(":")[0]
        self.writes[write.knob, kind] += 1
        if kind != "failed":
            self.last_change_unix_s[write.workload] = self._wall_clock()

    def follow(self, specs: Iterable[WorkloadSpec]) -> None:
        """Forget removed workloads."""
        names = {spec.name for spec in specs}
        lras = {spec.name for spec in specs if spec.kind is Kind.LRA}
        for kept in (self.used, self._awaited_s, self.sli_missing, self.last_change_unix_s):
            for name in kept.keys() - names:
                del kept[name]
        for name in self.times.keys() - lras:
            del self.times[name]
            self._seen.pop(name, None)
        for key in [key for key in self.traffic_bytes if key[0] not in names]:
            del self.traffic_bytes[key]
        for change in [key for key in self.decisions if key[0] not in lras]:
            del self.decisions[change]
        for came in [key for key in self.outcomes if key[0] not in names]:
            del self.outcomes[came]


def _step(before_s: float, now_s: float) -> float:
    return min(max(0.0, now_s - before_s), LONGEST_STEP_S)
