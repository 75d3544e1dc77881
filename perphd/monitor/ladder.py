"""Selects performance events: all that this host counts, fewer while counters are scarce, more again later.

A refusal of an event, or of a group's size, applies to all workloads and is retried after a pause that
doubles. Any other refusal (permission, a cgroup that perf does not see yet) is passed on. Groups that open
but do not run are handled by the meter, which asks for a smaller group (``most``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.backoff import BackoffRule
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.reading import Unavailable
from perphd.host.perf_event_types import EventGroup, EventOpener, EventRefused, PerfEventKind

HARDWARE_ORDER: Final = (
    PerfEventKind.INSTRUCTIONS,
    PerfEventKind.CYCLES,
    PerfEventKind.LLC_MISSES,
    PerfEventKind.STALL_BACKEND,
    PerfEventKind.STALL_MEMORY,
)
"""Hardware events, the most useful first; a smaller group leaves out the last ones."""
GROUP_SIZES: Final = (len(HARDWARE_ORDER), 3, 2, 1)
"""Group sizes to try when counters are scarce: without stalls, without misses, instructions alone."""
SOFTWARE: Final = (PerfEventKind.TASK_CLOCK_NS, PerfEventKind.CONTEXT_SWITCHES)

RETRY: Final = BackoffRule(60.0, 3600.0)
"""Backoff until a refused event is retried. A retry costs a few system calls."""

NO_PMU: Final = Unavailable("no performance monitoring unit is visible on this host")
NO_INSTRUCTIONS: Final = Unavailable("the performance monitoring unit counts cycles, but no instructions")
TOO_FEW_COUNTERS: Final = Unavailable("the performance monitoring unit has too few counters for this event")


@dataclass(slots=True)
class _Refusal:
    """Reason why an event or a group size is omitted, and the time of the next attempt."""

    reason: Unavailable
    retry_at_s: float
    pause_s: float


class EventLadder:
    """Opens event groups and remembers which events this host has; shared by all workloads of a Monitor."""

    def __init__(self, opener: EventOpener) -> None:
        self._opener = opener
        self._refused: dict[PerfEventKind, _Refusal] = {}
        self._size: tuple[int, _Refusal] | None = None
        """The largest group size that the PMU accepts, if a larger one was refused."""

    def wanted(self, now_s: float, most: int = len(HARDWARE_ORDER)) -> tuple[PerfEventKind, ...]:
        """The events to open now. ``most``: maximum number of hardware events."""
        if self._size is not None and self._size[1].retry_at_s > now_s:
            most = min(most, self._size[0])
        refused = {kind for kind, refusal in self._refused.items() if refusal.retry_at_s > now_s}
        if PerfEventKind.INSTRUCTIONS in refused:
            return tuple(kind for kind in SOFTWARE if kind not in refused)
        hardware = [kind for kind in HARDWARE_ORDER if kind not in refused][:most]
        return (*hardware, *(kind for kind in SOFTWARE if kind not in refused))

    def open(
        self,
        directory: str,
        cpus: CpuSet,
        now_s: float,
        most: int = len(HARDWARE_ORDER),
        hardware: bool = False,
    ) -> EventGroup | None:
        """Open the richest group that this host supports.

        ``hardware``: require hardware events; None is returned if the host has none.

        Raises:
            KernelError: a refusal that is not about an event, or a refusal of the last remaining event.
        """
        while True:
            events = self.wanted(now_s, most)
            if hardware and PerfEventKind.INSTRUCTIONS not in events:
                return None
            try:
                group = self._opener(directory, cpus, events)
            except EventRefused as exc:
                if events == (exc.kind,):
                    raise
                self._step_down(exc, events, directory, cpus, now_s)
            else:
                self._forget_answered(events)
                return group

    def why(self, kind: PerfEventKind) -> Unavailable | None:
        """Reason why this event is not counted on this host; None if there is no such reason."""
        if PerfEventKind.INSTRUCTIONS in self._refused and kind.is_hardware:
            kind = PerfEventKind.INSTRUCTIONS
        refusal = self._refused.get(kind)
        if refusal is not None:
            return refusal.reason
        return None if self._size is None else self._size[1].reason

    def _step_down(
        self, exc: EventRefused, events: tuple[PerfEventKind, ...], directory: str, cpus: CpuSet, now_s: float
    ) -> None:
        counted = sum(kind.is_hardware for kind in events)
        if exc.too_many and counted > 1:
            before = None if self._size is None else self._size[1]
            self._size = (counted - 1, _next(before, TOO_FEW_COUNTERS, now_s))
            return
        reason = Unavailable(str(exc))
        if exc.kind is PerfEventKind.INSTRUCTIONS:
            reason = NO_INSTRUCTIONS if self._counts_cycles(directory, cpus) else NO_PMU
        self._refused[exc.kind] = _next(self._refused.get(exc.kind), reason, now_s)

    def _counts_cycles(self, directory: str, cpus: CpuSet) -> bool:
        try:
            self._opener(directory, cpus, (PerfEventKind.CYCLES,)).close()
        except KernelError:
            return False
        return True

    def _forget_answered(self, events: tuple[PerfEventKind, ...]) -> None:
        for kind in events:
            self._refused.pop(kind, None)
        if self._size is not None and sum(kind.is_hardware for kind in events) > self._size[0]:
            self._size = None


def _next(before: _Refusal | None, reason: Unavailable, now_s: float) -> _Refusal:
    """The refusal that follows ``before``: the pause doubles if the earlier one had expired."""
    pause_s = 0.0 if before is None else before.pause_s
    if before is None or before.retry_at_s <= now_s:
        pause_s = RETRY.after(pause_s)
    return _Refusal(reason, now_s + pause_s, pause_s)
