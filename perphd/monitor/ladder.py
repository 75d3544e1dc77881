"""Which events are opened: as many as this host counts, fewer where counters are short, more again later.

A refusal that is about an event, or about the size of a group, holds for all workloads and is asked about again after
a pause that doubles. Any other refusal (permission, a cgroup that perf does not see yet) says nothing about events and
is passed on. Groups that open but do not run are the meter's business: it asks for a smaller group (``most``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.reading import Unavailable
from perphd.host.perf_events import EventGroup, EventKind, EventOpener, EventRefused

HARDWARE_ORDER: Final = (
    EventKind.INSTRUCTIONS,
    EventKind.CYCLES,
    EventKind.LLC_MISSES,
    EventKind.STALL_BACKEND,
    EventKind.STALL_MEMORY,
)
"""Hardware events, the most useful first: a smaller group leaves out the last ones."""
GROUP_SIZES: Final = (len(HARDWARE_ORDER), 3, 2, 1)
"""Sizes to try where counters are short: without stalls, without misses, instructions alone."""
SOFTWARE: Final = (EventKind.TASK_CLOCK_NS, EventKind.CONTEXT_SWITCHES)

FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0
"""Time until a refused event is asked for again. A try costs a few system calls."""

NO_PMU: Final = Unavailable("no performance monitoring unit is visible on this host")
NO_INSTRUCTIONS: Final = Unavailable("the performance monitoring unit counts cycles, but no instructions")
TOO_FEW_COUNTERS: Final = Unavailable("the performance monitoring unit has too few counters for it")


@dataclass(slots=True)
class _Refusal:
    """Why something is left out, and when it is asked for again."""

    reason: Unavailable
    retry_at_s: float
    pause_s: float = FIRST_PAUSE_S


class EventLadder:
    """Opens event groups, remembering which events this host has. One for a whole Monitor."""

    def __init__(self, opener: EventOpener) -> None:
        self._opener = opener
        self._refused: dict[EventKind, _Refusal] = {}
        self._size: tuple[int, _Refusal] | None = None
        """The largest group that the PMU takes, if a larger one was refused."""

    def wanted(self, now_s: float, most: int = len(HARDWARE_ORDER)) -> tuple[EventKind, ...]:
        """The events to open now. ``most``: at most this many hardware events."""
        if self._size is not None and self._size[1].retry_at_s > now_s:
            most = min(most, self._size[0])
        refused = {kind for kind, refusal in self._refused.items() if refusal.retry_at_s > now_s}
        if EventKind.INSTRUCTIONS in refused:
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
        """Open the richest group that this host supports. ``hardware``: only with hardware events; None: it has none.

        Raises:
            KernelError: a refusal that is not about an event, or of the last event that was left.
        """
        while True:
            events = self.wanted(now_s, most)
            if hardware and EventKind.INSTRUCTIONS not in events:
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

    def why(self, kind: EventKind) -> Unavailable | None:
        """Why this event is not counted, as far as that holds for all workloads."""
        if EventKind.INSTRUCTIONS in self._refused and kind.is_hardware:
            kind = EventKind.INSTRUCTIONS
        refusal = self._refused.get(kind)
        if refusal is not None:
            return refusal.reason
        return None if self._size is None else self._size[1].reason

    def _step_down(
        self, exc: EventRefused, events: tuple[EventKind, ...], directory: str, cpus: CpuSet, now_s: float
    ) -> None:
        counted = sum(kind.is_hardware for kind in events)
        if exc.too_many and counted > 1:
            before = None if self._size is None else self._size[1]
            self._size = (counted - 1, _next(before, TOO_FEW_COUNTERS, now_s))
            return
        reason = Unavailable(str(exc))
        if exc.kind is EventKind.INSTRUCTIONS:
            reason = NO_INSTRUCTIONS if self._counts_cycles(directory, cpus) else NO_PMU
        self._refused[exc.kind] = _next(self._refused.get(exc.kind), reason, now_s)

    def _counts_cycles(self, directory: str, cpus: CpuSet) -> bool:
        try:
            self._opener(directory, cpus, (EventKind.CYCLES,)).close()
        except KernelError:
            return False
        return True

    def _forget_answered(self, events: tuple[EventKind, ...]) -> None:
        for kind in events:
            self._refused.pop(kind, None)
        if self._size is not None and sum(kind.is_hardware for kind in events) > self._size[0]:
            self._size = None


def _next(before: _Refusal | None, reason: Unavailable, now_s: float) -> _Refusal:
    """The refusal that follows one: the pause doubles if that one's was over."""
    if before is None:
        return _Refusal(reason, now_s + FIRST_PAUSE_S)
    pause_s = min(2.0 * before.pause_s, LONGEST_PAUSE_S) if before.retry_at_s <= now_s else before.pause_s
    return _Refusal(reason, now_s + pause_s, pause_s)
