"""Performance counters of the simulated host: an ``EventOpener`` over what physics has counted."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import kernel_error
from perphd.domain.reading import Reading
from perphd.host.perf_events import EventGroup, EventKind
from perphd.sim.kernel.cgroup2 import CgroupTree, SimCgroup
from perphd.sim.machine import CGROUP_ROOT


class SimPerf:
    """Opens counters of a cgroup directory. Without ``pmu`` hardware events are ENOENT, as in most VMs."""

    def __init__(self, cgroups: CgroupTree, pmu: bool) -> None:
        self._cgroups, self._pmu = cgroups, pmu

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[EventKind]) -> EventGroup:
        """Open these events; Gone for a missing cgroup, Unsupported (EOPNOTSUPP) for events without a PMU."""
        group = self._cgroups.find(cgroup_dir.removeprefix(CGROUP_ROOT))
        if group is None or not cgroup_dir.startswith(CGROUP_ROOT):
            raise kernel_error(OSError(errno.ENOENT, ""), cgroup_dir, "open")
        if not self._pmu and any(event.is_hardware for event in events):
            raise kernel_error(
                OSError(errno.EOPNOTSUPP, ""), cgroup_dir, "perf_event_open", advice="this host has no PMU"
            )
        return SimEventGroup(group, tuple(events))


_TOTALS: Final[Mapping[EventKind, Callable[[SimCgroup], float]]] = {
    EventKind.INSTRUCTIONS: lambda group: group.perf.instructions,
    EventKind.CYCLES: lambda group: group.perf.cycles,
    EventKind.LLC_REFERENCES: lambda group: group.perf.llc_references,
    EventKind.LLC_MISSES: lambda group: group.perf.llc_misses,
    EventKind.TASK_CLOCK_NS: lambda group: group.perf.task_clock_s * 1e9,
    EventKind.CONTEXT_SWITCHES: lambda group: group.perf.switches,
    EventKind.CPU_MIGRATIONS: lambda group: group.perf.switches * 0.05,
    EventKind.PAGE_FAULTS: lambda group: group.memory.faults,
}


class SimEventGroup:
    """Counts since opening. Never multiplexed, holds no descriptors."""

    def __init__(self, group: SimCgroup, events: tuple[EventKind, ...]) -> None:
        self._group, self._events = group, events
        self._start = {event: self._total(event) for event in events}

    def _total(self, event: EventKind) -> float:
        return _TOTALS[event](self._group)

    def read(self) -> Mapping[EventKind, Reading]:
        """Counts since opening."""
        return {event: self._total(event) - self._start[event] for event in self._events}

    @property
    def running_ratio(self) -> float:
        """Always 1: the simulated PMU has counters enough."""
        return 1.0

    @property
    def lost_cpus(self) -> CpuSet:
        """None ever."""
        return CpuSet()

    @property
    def fds(self) -> int:
        """No real descriptors."""
        return 0

    def close(self) -> None:
        """Nothing to give back."""
