"""Samples workloads: one Sample of each per tick, from kernel files that stay open.

Files are searched only when a workload appears, reappears or is rechecked (every few samples), not at every
tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError, ParseError
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.sample import NOTHING_MEASURED, Quality, Sample, sample_of
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs, read_text
from perphd.host.perf_event_types import EventOpener
from perphd.host.perf_events import perf_hierarchy
from perphd.host.resctrl_counters import NOTHING_COUNTED, CountedGroups
from perphd.monitor.cache_use import CACHE_FIELDS, CacheReading, CacheUse
from perphd.monitor.events import EVENT_FIELDS, EventMeter
from perphd.monitor.files import Identity, WorkloadFiles, identity_of, sampled_hierarchies
from perphd.monitor.ladder import EventLadder
from perphd.monitor.meters import Readings
from perphd.monitor.rundelay import NOT_USED, ONLY_LRAS, RunDelayMeter, RunDelaySource
from perphd.monitor.sli.reading import SLI_FIELDS, SliReading

LOOK_OVER_EVERY: Final = 10
"""Number of LRA samples between two checks for changes that reading does not show (a recreated cgroup ...)."""
LOOK_BATCH_OVER_EVERY: Final = 30
"""The same number for batch workloads. It is greater, because there are more of them than LRAs."""

LATE_FACTOR: Final = 2.0
"""Multiple of the period above which an interval is flagged LATE."""

_ONLINE = "/sys/devices/system/cpu/online"
_FILE_FIELDS: Final = (
    "cpu_usage_cores",
    "cpu_throttled_pct",
    "threads",
    "cpu_some_pct",
    "memory_some_pct",
    "memory_full_pct",
    "io_some_pct",
    "io_full_pct",
    "memory_current_bytes",
    "memory_working_set_bytes",
    "refaults_per_s",
    "major_faults_per_s",
    "read_bytes_per_s",
    "write_bytes_per_s",
)
_NO_SLI: Final = Unavailable("no SLI is configured for this workload")
_WITHOUT_SLI: Final[Readings] = dict.fromkeys(
    (*SLI_FIELDS, "work_events", "latency_events", "sli_window_s", "sli_resolution_s"), _NO_SLI
)
_SILENT_SLI = SliReading.missing(Unavailable("the SLI has not been read yet"))


class Monitor:
    """Samples workloads. Instances share nothing, so that several may watch the same cgroups.

    Args:
        fs: the kernel's files.
        hierarchies: the hierarchy of each controller.
        cpus: CPUs on which performance events are counted, usually all that are online.
        opener: opens performance events (``perphd.host.perf_events.PerfOpener``); None: no events.
        run_delay: creates a reader of run-queue delay for an LRA; None: no run-queue delay.
        expected_period_s: configured time between samples; much longer intervals are flagged LATE.
        clock: monotonic seconds, for counters read some time after the tick began; None: use the tick's time.
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        *,
        cpus: CpuSet,
        opener: EventOpener | None = None,
        run_delay: Callable[[], RunDelaySource] | None = None,
        expected_period_s: float = 1.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._cache = CacheUse(clock)
        self._host = _Host(fs, hierarchies, cpus, None if opener is None else EventLadder(opener), run_delay)
        self.expected_period_s = expected_period_s
        self._workloads: dict[str, _Workload] = {}
        self._tick = 0
        self._uncounted = CacheReading(NOT_MEASURED, NOT_MEASURED)

    def sample(
        self,
        now_s: float,
        specs: Sequence[WorkloadSpec],
        sli: Mapping[str, SliReading],
        counted: CountedGroups = NOTHING_COUNTED,
    ) -> tuple[Sample, ...]:
        """One sample of each workload, in the order of ``specs``.

        A workload new in ``specs`` starts with a FIRST sample; one missing from ``specs`` is forgotten.

        Args:
            now_s: monotonic time of this tick.
            specs: all workloads; names are unique.
            sli: readings of the applications' SLI sources, by workload name.
            counted: the resctrl groups that count workloads.
        """
        self._tick += 1
        self._host.begin()
        wanted = {spec.name: spec for spec in specs}
        for name, workload in list(self._workloads.items()):
            if name not in wanted or workload.differs_from(wanted[name]):
                self._workloads.pop(name).close()
        cache = self._cache.read(now_s, counted)
        return tuple([self._sample_one(now_s, spec, sli, cache, counted) for spec in specs])

    def _sample_one(
        self,
        now_s: float,
        spec: WorkloadSpec,
        sli: Mapping[str, SliReading],
        cache: Mapping[str, CacheReading],
        counted: CountedGroups,
    ) -> Sample:
        workload = self._workloads.get(spec.name)
        if workload is None:
            # Rechecks are staggered, so that no tick checks all workloads.
            workload = self._workloads[spec.name] = _Workload(
                self._host, spec, self._tick + len(self._workloads)
            )
        use = cache.get(spec.name)
        if use is None:
            why = counted.why_not(spec.name)
            if self._uncounted.occupancy_bytes is not why:  # mostly the same reason for all workloads
                self._uncounted = CacheReading(why, why)
            use = self._uncounted
        turns = spec.name in counted.in_turns
        return workload.sample(
            now_s, self._tick, spec, sli.get(spec.name), self.expected_period_s, use, turns
        )

    @property
    def open_fds(self) -> int:
        """Number of open descriptors of all workloads."""
        return self._cache.open_fds + sum(workload.open_fds for workload in self._workloads.values())

    def close(self) -> None:
        """Close all descriptors; a later ``sample`` starts over."""
        for workload in self._workloads.values():
            workload.close()
        self._workloads.clear()
        self._cache.close()


class _Host:
    """Values that all workloads of one Monitor share."""

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        cpus: CpuSet,
        ladder: EventLadder | None,
        run_delay: Callable[[], RunDelaySource] | None,
    ) -> None:
        self.fs, self.hierarchies, self.cpus = fs, hierarchies, cpus
        self.ladder, self.run_delay = ladder, run_delay
        self.trees = sampled_hierarchies(hierarchies)
        self._online: CpuSet | None = None
        self.perf_tree = perf_hierarchy(hierarchies)

    def begin(self) -> None:
        """Begin a tick: values common to all workloads are read again once."""
        self._online = None

    def online(self) -> CpuSet:
        """CPUs to be counted that are online in this tick."""
        if self._online is None:
            try:
                self._online = CpuSet.parse(read_text(self.fs, _ONLINE)) & self.cpus
            except (KernelError, ParseError):
                self._online = self.cpus
        return self._online


class _Workload:
    """One workload's open files and counters, while its cgroup may vanish and reappear."""

    def __init__(self, host: _Host, spec: WorkloadSpec, turn: int) -> None:
        self._host, self._cgroup, self._kind = host, spec.cgroup, spec.kind
        self._turn = turn
        self._look_every = LOOK_OVER_EVERY if spec.kind is Kind.LRA else LOOK_BATCH_OVER_EVERY
        self._identity: Identity = {}
        self._seen_identity: Identity = {}
        self._files: WorkloadFiles | None = None
        self._events: EventMeter | None = None
        self._delay: RunDelayMeter | None = None
        self._sampled_at_s: float | None = None
        self._gone = Unavailable(f"the cgroup {spec.cgroup} does not exist")

    def differs_from(self, spec: WorkloadSpec) -> bool:
        """True if the workload, as it is configured now, needs other files."""
        return spec.cgroup != self._cgroup or spec.kind is not self._kind

    def sample(
        self,
        now_s: float,
        tick: int,
        spec: WorkloadSpec,
        sli: SliReading | None,
        expected_s: float,
        use: CacheReading,
        in_turns: bool,
    ) -> Sample:
        """Read everything, and detect restarts and disappearance."""
        flags: list[Quality] = []
        if self._files is None or (tick + self._turn) % self._look_every == 0:
            self._look_over(flags)
        out: Readings = dict(NOTHING_MEASURED)
        if self._files is not None and self._files.take(now_s, out):
            # A file vanished: the cgroup is gone, was recreated, or lost a controller.
            self._look_over(flags)
            if self._sampled_at_s is None and self._files is not None:
                self._files.take(now_s, out)
        if self._files is None:
            return self._absent_sample(now_s, spec, sli)
        before, self._sampled_at_s = self._sampled_at_s, now_s
        interval_s = 0.0 if before is None else now_s - before
        if before is None:
            flags.append(Quality.FIRST)
        elif interval_s > LATE_FACTOR * expected_s:
            flags.append(Quality.LATE)
        if self._events is not None and self._events.take(now_s, out, self._host.online):
            flags.append(Quality.MULTIPLEXED)
        out["run_delay_cores"] = self._run_delay(now_s)
        out["llc_occupancy_bytes"] = use.occupancy_bytes
        out["mbw_bytes_per_s"] = use.bandwidth_bytes_per_s
        if in_turns:
            flags.append(Quality.ROTATED)
        self._add_sli(spec, sli, out, flags)
        return sample_of(spec.name, now_s, interval_s, out, tuple(flags), use.domains)

    def _absent_sample(self, now_s: float, spec: WorkloadSpec, sli: SliReading | None) -> Sample:
        self._sampled_at_s = None
        out: Readings = dict(NOTHING_MEASURED)
        out |= dict.fromkeys((*_FILE_FIELDS, *EVENT_FIELDS, *CACHE_FIELDS, "run_delay_cores"), self._gone)
        flags = [Quality.GONE]
        self._add_sli(spec, sli, out, flags)
        return sample_of(spec.name, now_s, 0.0, out, tuple(flags))

    def _add_sli(
        self, spec: WorkloadSpec, sli: SliReading | None, out: Readings, flags: list[Quality]
    ) -> None:
        if sli is None:
            if spec.sli is None:
                out.update(_WITHOUT_SLI)
                return
            sli = _SILENT_SLI
        for field in SLI_FIELDS:
            out[field] = getattr(sli, field)
        percentile = spec.objective.latency_percentile
        latency = sli.behind(percentile)
        out["work_events"], out["latency_events"] = sli.work.events, latency.events
        windows = [w for w in (sli.work.window_s, latency.window_s) if available(w)]
        out["sli_window_s"] = max(windows) if windows else sli.work.window_s
        out["sli_resolution_s"] = sli.resolution_s
        if spec.sli is not None and sli.is_awaited(percentile):
            flags.append(Quality.BETWEEN)
        elif spec.sli is not None and sli.is_missing():
            flags.append(Quality.SLI_MISSING)

    def _run_delay(self, now_s: float) -> Reading:
        if self._delay is not None:
            return self._delay.take(now_s)
        return NOT_USED if self._host.run_delay is None else ONLY_LRAS

    def _look_over(self, flags: list[Quality]) -> None:
        """Check whether the cgroup is unchanged, gone, new, or recreated under the same name."""
        identity = identity_of(self._host.fs, self._host.trees, self._cgroup)
        if identity == self._identity and self._files is not None:
            self._files.open_missing()
            if self._events is not None:
                self._events.look_over()
            if self._delay is not None:
                self._delay.find_groups()
            return
        self.close()
        self._sampled_at_s = None
        self._identity = identity
        if not identity:
            return
        if _is_another(self._seen_identity, identity):
            flags.append(Quality.RESTARTED)
        self._seen_identity = identity
        self._open()

    def _open(self) -> None:
        host = self._host
        batch_turn = None if self._kind is Kind.LRA else self._turn
        self._files = WorkloadFiles(host.fs, host.hierarchies, self._cgroup, batch_turn)
        directory = "" if host.perf_tree is None else host.perf_tree.path(self._cgroup)
        self._events = EventMeter(host.ladder, directory, host.cpus, hardware=self._needs_no_software())
        if self._kind is Kind.LRA and host.run_delay is not None:
            tree = next(tree for tree in host.trees if tree.mount in self._identity)
            self._delay = RunDelayMeter(host.fs, tree.path(self._cgroup), host.run_delay())

    def _needs_no_software(self) -> bool:
        """True for batch whose CPU use is known from files: software events would add nothing."""
        return self._kind is not Kind.LRA and self._files is not None and self._files.gives("cpu_usage_cores")

    @property
    def open_fds(self) -> int:
        """Number of open descriptors."""
        files = 0 if self._files is None else self._files.open_fds
        events = 0 if self._events is None else self._events.fds
        return files + events + (0 if self._delay is None else self._delay.fds)

    def close(self) -> None:
        """Close all descriptors."""
        for holder in (self._files, self._events, self._delay):
            if holder is not None:
                holder.close()
        self._files = self._events = self._delay = None


def _is_another(before: Identity, now: Identity) -> bool:
    """True if a hierarchy has a different directory of that name, or no former hierarchy contains it."""
    common = before.keys() & now.keys()
    return bool(before) and (not common or any(before[mount] != now[mount] for mount in common))
