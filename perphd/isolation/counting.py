"""Keeps monitor groups from the event loop: looks run in a thread of their own, the loop reads the last result.

A workload whose control group has changed since the last look is not counted until the next one: its threads may be on
their way, and a rate over that moment would be of neither group.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from perphd.domain.errors import Busy
from perphd.domain.reading import Unavailable
from perphd.host.resctrl_counters import NOTHING_COUNTED, CountedGroups
from perphd.isolation.monitor_groups import Asked, MonitorGroups, Placed
from perphd.isolation.worker import Worker

log = logging.getLogger("perphd")

MOVED: Final = Unavailable("its threads are being moved to another resctrl group")
LEAST_PAUSE_S: Final = 0.9
"""Two looks begin at least this far apart, whatever changes meanwhile."""
LOOK_S: Final = 4.0
"""A look that takes longer goes on by itself; its result is not used."""
PATIENCE_S: Final = 1.0
"""A restore waits this long for a look that is under way, which ends at its next workload or at a lock that is held."""

Placement: TypeAlias = Mapping[str, Placed]


class Counting:
    """The loop's side of ``MonitorGroups``.

    Args:
        groups: what does the work.
        placement: the control groups that perphd has put workloads into, now.
        in_thread: False runs looks inline.
        background: looks go on beside the rounds; False waits for each (virtual time).
    """

    def __init__(
        self, groups: MonitorGroups, placement: Callable[[], Placement], *, in_thread: bool, background: bool
    ) -> None:
        self._groups, self._placement = groups, placement
        self._worker = Worker(in_thread, LOOK_S)
        self._background = background and in_thread
        self._result: CountedGroups = NOTHING_COUNTED
        self._placed: dict[str, tuple[object, bool]] = {}
        self._names: frozenset[str] = frozenset()
        self._looked_s = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._hidden: tuple[frozenset[str], CountedGroups] = (frozenset(), NOTHING_COUNTED)
        self._anew = self._closed = False

    @property
    def counted(self) -> CountedGroups:
        """Who is counted where, as of the last look, without those whose control group has changed since."""
        now = _plain(self._placement())
        if now == self._placed:
            return self._result
        moved = frozenset(name for name in self._result.counters if now.get(name) != self._placed.get(name))
        if moved != self._hidden[0] or self._hidden[1].resctrl is not self._result.resctrl:
            kept = {name: c for name, c in self._result.counters.items() if name not in moved}
            missing = {**self._result.missing, **dict.fromkeys(moved, MOVED)}
            self._hidden = (moved, replace(self._result, counters=kept, missing=missing))
        return self._hidden[1] if moved else self._result

    async def follow(self, asked: Sequence[Asked], now_s: float) -> None:
        """Look at the groups if that is due; in the background, this only begins it."""
        names = frozenset(one.spec.name for one in asked)
        placement = dict(self._placement())
        changed = names != self._names or any(one.fresh for one in asked) or _plain(placement) != self._placed
        if not changed and not self._anew and now_s < self._groups.next_s:
            return
        if (changed and 0 <= now_s - self._looked_s < LEAST_PAUSE_S) or self._task is not None:
            return
        self._names, self._looked_s = names, now_s
        look = self._look(tuple(asked), placement, now_s)
        if not self._background:
            await look
            return
        self._task = asyncio.get_running_loop().create_task(look)
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("monitor groups: a look failed", exc_info=failure)

    async def _look(self, asked: Sequence[Asked], placement: Placement, now_s: float) -> None:
        anew, self._anew = self._anew, False
        if not self._worker.is_busy:
            self._groups.stopping = self._closed
        done = await self._worker.run(lambda: self._groups.look(asked, placement, now_s, anew))
        if isinstance(done, Busy) or self._groups.stopping:
            self._names, self._anew = frozenset(), self._anew or anew  # looked again at the next round
            return
        self._result, self._placed = done, _plain(placement)
        self._hidden = (frozenset(), NOTHING_COUNTED)

    def look_anew(self) -> None:
        """Another resctrl (or none) is mounted: the next round looks at it, however long ago the last look was."""
        self._anew = True

    async def idle(self) -> None:
        """End a look that is under way at its next workload, and wait for that, for a bounded time."""
        if self._task is not None:
            self._groups.stopping = True
            await asyncio.wait({self._task}, timeout=PATIENCE_S)

    def forget(self) -> None:
        """The groups were removed: the next round looks again."""
        self._names, self._result, self._placed = frozenset(), NOTHING_COUNTED, {}

    def close(self) -> None:
        """End the thread; a look that is under way ends at the next workload."""
        self._closed = self._groups.stopping = True
        self._worker.close()


def _plain(placement: Placement) -> dict[str, tuple[object, bool]]:
    return {name: (placed.group, placed.shared) for name, placed in placement.items()}
