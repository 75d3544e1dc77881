"""Collects the runs of batch for the job history: the features and usage of each run.

A run is the life of a control group, or of the processes in a persistent one. A run counts if perphd saw its
start and its end, and if it lasted ``LEAST_S``. A run that perphd ended does not count, because it is not
typical. This module writes nothing: once a minute the forecast worker takes the ended runs and records them.
To bound the worker's time, it gets a random selection if there are more than ``MOST_ENDED`` runs.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.job import EndedJob
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.job_facts import FirstProcess, JobFacts

LEAST_S: Final = 5.0
"""Minimum length of a recorded run in seconds. Samples are too coarse for shorter runs. After this time, the first
process also has its final name and arguments.
"""
MOST_ENDED: Final = 8
"""Maximum number of ended runs that are handed over per minute. Recording one takes the worker about 7 ms."""
PEAK_S: Final = 10.0
"""Averaging time in seconds for a run's use. The greatest of these means counts as enough for the run."""


@dataclass(slots=True)
class _Peak:
    """The greatest mean over ``PEAK_S``."""

    greatest: float | None = None
    sum: float = 0.0
    seconds: float = 0.0

    def add(self, rate: float, interval_s: float) -> None:
        """Add one rate."""
        self.sum += rate * interval_s
        self.seconds += interval_s
        if self.seconds >= PEAK_S:
            self.greatest = max(self.greatest or 0.0, self.sum / self.seconds)
            self.sum = self.seconds = 0.0

    def found(self) -> float | None:
        """The greatest mean; for a run shorter than ``PEAK_S``, the mean over the whole run."""
        if self.greatest is None and self.seconds > 0:
            return self.sum / self.seconds
        return self.greatest


@dataclass(slots=True)
class _Run:
    """A run of batch that is in progress."""

    began_s: float
    hour: int
    seen_s: float
    cpu_s: float = 0.0
    instructions: float = 0.0
    counted_s: float = 0.0
    peak_bytes: float = 0.0
    cores: _Peak = field(default_factory=_Peak)
    bytes_per_s: _Peak = field(default_factory=_Peak)
    disk_bytes_per_s: _Peak = field(default_factory=_Peak)
    cache_bytes: _Peak = field(default_factory=_Peak)
    looked: bool = False
    process: FirstProcess | None = None
    image: str = ""
    ended_by_force: bool = False


class Jobs:
    """Follows batch jobs once per tick. ``way_bytes``: size of one last-level cache way; 0: unknown."""

    def __init__(self, facts: JobFacts, wall_clock: Callable[[], float], way_bytes: float = 0.0) -> None:
        self._facts, self._wall_clock, self._way_bytes = facts, wall_clock, way_bytes
        self._runs: dict[str, _Run] = {}
        self._empty: set[str] = set()
        self._ended: list[EndedJob] = []
        self._seen = 0
        self._first = True
        self._random = random.Random()

    def follow(
        self,
        specs: Sequence[WorkloadSpec],
        samples: Mapping[str, Sample],
        declared_as: Callable[[str], str],
        now_s: float,
    ) -> None:
        """Process one tick. ``declared_as``: maps a workload's name to the name of its declaration."""
        batch = {spec.name: spec for spec in specs if spec.kind is Kind.BATCH}
        for name in self._runs.keys() - batch.keys():
            del self._runs[name]
        self._empty &= batch.keys()
        looked = False
        for name, spec in batch.items():
            sample, run = samples.get(name), self._runs.get(name)
            if sample is None or (sample.quality and sample.has(Quality.GONE)):
                if run is not None:
                    self._end(declared_as(name), spec, self._runs.pop(name))
                continue
            is_empty = sample.threads == 0
            # A name first seen later than the daemon's start is a new run. The start of any other run is unknown.
            anew = bool(sample.quality) and (
                sample.has(Quality.RESTARTED) or (sample.has(Quality.FIRST) and not self._first)
            )
            if run is not None and (is_empty or anew):
                self._end(declared_as(name), spec, self._runs.pop(name))
            if is_empty:
                self._empty.add(name)
                continue
            if anew or name in self._empty:
                self._empty.discard(name)
                self._runs[name] = _Run(now_s, time.localtime(self._wall_clock()).tm_hour, now_s)
                continue
            if run is None:
                continue
            _take(run, sample)
            run.seen_s = now_s
            if not run.looked and not looked and now_s - run.began_s >= LEAST_S:
                looked = run.looked = True  # at most one process is read per tick
                run.process, run.image = (
                    self._facts.first_process(spec.cgroup),
                    self._facts.image(spec.cgroup),
                )
        self._first = False

    def by_force(self, names: Sequence[str]) -> None:
        """Note that perphd is ending these runs before they are done."""
        for name in names:
            if name in self._runs:
                self._runs[name].ended_by_force = True

    def take(self) -> list[EndedJob]:
        """The runs that have ended since the last call."""
        ended, self._ended, self._seen = self._ended, [], 0
        return ended

    def _end(self, name: str, spec: WorkloadSpec, run: _Run) -> None:
        lasted_s = run.seen_s - run.began_s
        if run.ended_by_force or lasted_s < LEAST_S or run.process is None:
            return
        took = {"run_time_s": lasted_s, "cpu_time_s": run.cpu_s}
        if run.peak_bytes > 0:
            took["memory_bytes"] = run.peak_bytes
        if run.instructions > 0 and run.counted_s >= 0.9 * lasted_s:
            took["instructions"] = run.instructions
        for quantity, peak in (
            ("enough_cores", run.cores),
            ("enough_bytes_per_s", run.bytes_per_s),
            ("enough_disk_bytes_per_s", run.disk_bytes_per_s),
        ):
            if (found := peak.found()) is not None:
                took[quantity] = found
        cache_bytes = run.cache_bytes.found()
        if cache_bytes is not None and self._way_bytes:
            took["enough_ways"] = float(max(1, math.ceil(cache_bytes / self._way_bytes)))
        job = EndedJob(
            name,
            run.image,
            run.process.uid,
            run.process.argv,
            spec.guaranteed_cores or None,
            float(spec.reserved_memory_bytes) or None,
            run.hour,
            took,
        )
        self._seen += 1
        if len(self._ended) < MOST_ENDED:
            self._ended.append(job)
        elif (place := self._random.randrange(self._seen)) < MOST_ENDED:
            self._ended[place] = job


def _take(run: _Run, sample: Sample) -> None:
    """Add one sample to a run."""
    passed_s, used, waited = sample.interval_s, sample.cpu_usage_cores, sample.run_delay_cores
    if not isinstance(used, Unavailable):
        run.cpu_s += used * passed_s
        run.cores.add(used if isinstance(waited, Unavailable) else used + waited, passed_s)
    if not isinstance(sample.mips, Unavailable):
        run.instructions += 1e6 * sample.mips * passed_s
        run.counted_s += passed_s
    held = sample.memory_current_bytes
    if not isinstance(held, Unavailable) and held > run.peak_bytes:
        run.peak_bytes = held
    if not isinstance(sample.llc_occupancy_bytes, Unavailable):
        run.cache_bytes.add(sample.llc_occupancy_bytes, passed_s)
    if not isinstance(sample.mbw_bytes_per_s, Unavailable):
        run.bytes_per_s.add(sample.mbw_bytes_per_s, passed_s)
    read, written = sample.read_bytes_per_s, sample.write_bytes_per_s
    if not isinstance(read, Unavailable) and not isinstance(written, Unavailable):
        run.disk_bytes_per_s.add(read + written, passed_s)
