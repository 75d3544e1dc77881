"""Performance counters of the simulated host: an ``EventOpener`` over the physics' counts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, kernel_error
from perphd.domain.reading import Reading
from perphd.host.perf_event_types import EventGroup, EventRefused, PerfEventKind
from perphd.sim.kernel.cgroup2 import CgroupTree, SimCgroup
from perphd.sim.machine import CGROUP_ROOT


class SimPerf:
    """Opens counters of a cgroup directory. Without ``pmu``, hardware events fail with ENOENT, as in most VMs.

    Attributes simulate further behaviour of real PMUs and kernels, as observed on Linux 6.1 and 6.12:

    ``counters``: hardware events that the PMU counts at once; a larger group is refused (EINVAL);
    ``sees_cgroups``: False: every event fails with ENOENT, as until something is written to the root's
    cgroup.subtree_control;
    ``counted_share``: share of a workload's running time in which its group has the counters, neither pinned by others
    nor rotated away; ``starved``: CPUs on which it never has them (``EventGroup.starved_cpus``); ``offline``: CPUs that
    are missing from groups opened from now on.
    """

    def __init__(self, cgroups: CgroupTree, pmu: bool) -> None:
        self._cgroups, self._pmu = cgroups, pmu
        self.counters = len(PerfEventKind)
        self.sees_cgroups = True
        self.counted_share = 1.0
        self.starved = CpuSet()
        self.offline = CpuSet()

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> EventGroup:
        """Open these events; raises Gone for a missing cgroup, EventRefused for events that the PMU does not count."""
        group = self._cgroups.find(cgroup_dir.removeprefix(CGROUP_ROOT))
        if group is None or not cgroup_dir.startswith(CGROUP_ROOT):
            raise kernel_error(OSError(errno.ENOENT, ""), cgroup_dir, "open")
        if not self.sees_cgroups:
            advice = "perf does not see cgroups until something is written to cgroup.subtree_control"
            raise Busy(cgroup_dir, "perf_event_open", errno.ENOENT, advice=advice)
        hardware = [event for event in events if event.is_hardware]
        for event in hardware:
            if not self._pmu or event not in _TOTALS:
                advice = "the simulated PMU does not count it" if self._pmu else "this host has no PMU"
                raise EventRefused(cgroup_dir, "perf_event_open", errno.EOPNOTSUPP, event, advice=advice)
        if len(hardware) > self.counters:
            refused = hardware[self.counters]
            raise EventRefused(
                cgroup_dir, "perf_event_open", errno.EINVAL, refused, too_many=self.counters > 0
            )
        return SimEventGroup(group, tuple(events), self, self.offline)


_TOTALS: Final[Mapping[PerfEventKind, Callable[[SimCgroup], float]]] = {
    PerfEventKind.INSTRUCTIONS: lambda group: group.perf.instructions,
    PerfEventKind.CYCLES: lambda group: group.perf.cycles,
    PerfEventKind.LLC_REFERENCES: lambda group: group.perf.llc_references,
    PerfEventKind.LLC_MISSES: lambda group: group.perf.llc_misses,
    PerfEventKind.TASK_CLOCK_NS: lambda group: group.perf.task_clock_s * 1e9,
    PerfEventKind.CONTEXT_SWITCHES: lambda group: group.perf.switches,
    PerfEventKind.CPU_MIGRATIONS: lambda group: group.perf.switches * 0.05,
    PerfEventKind.PAGE_FAULTS: lambda group: group.memory.faults,
}


COUNTED: Final = tuple(_TOTALS)
"""Events of the simulated PMU and kernel. It has no stall events."""


class SimEventGroup:
    """Counts since opening, while the group had the counters. Holds no descriptors."""

    def __init__(
        self, group: SimCgroup, events: tuple[PerfEventKind, ...], pmu: SimPerf, lost: CpuSet
    ) -> None:
        self._group, self._events, self._pmu, self._lost = group, events, pmu, lost
        self._last = {event: self._total(event) for event in events}
        self._counts = dict.fromkeys(events, 0.0)

    def _total(self, event: PerfEventKind) -> float:
        return _TOTALS[event](self._group)

    def read(self) -> Mapping[PerfEventKind, Reading]:
        """Counts since opening."""
        share = self._pmu.counted_share
        for event, before in self._last.items():
            self._last[event] = self._total(event)
            self._counts[event] += share * (self._last[event] - before)
        return dict(self._counts)

    @property
    def events(self) -> tuple[PerfEventKind, ...]:
        """The counted events."""
        return self._events

    @property
    def starved_cpus(self) -> CpuSet:
        """CPUs on which others have all counters."""
        return self._pmu.starved

    @property
    def lost_cpus(self) -> CpuSet:
        """CPUs that were offline when the group was opened."""
        return self._lost

    @property
    def fds(self) -> int:
        """Always 0, because there are no real descriptors."""
        return 0

    def close(self) -> None:
        """Do nothing, because no resource is held."""
