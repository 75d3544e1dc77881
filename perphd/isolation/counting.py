"""Runs updates of the monitor groups in a separate thread; the event loop reads the last result.

A workload whose control group has changed since the last update is not counted until the next. Its threads may still
be moving, so a rate over that interval would belong to neither group.
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

MOVED: Final = Unavailable("the workload's threads are being moved to another resctrl group")
LEAST_PAUSE_S: Final = 0.9
"""Minimum number of seconds between the starts of two updates."""
LOOK_S: Final = 4.0
"""Seconds after which an update's result is discarded; the update itself still finishes."""
PATIENCE_S: Final = 1.0
"""Seconds that a restore waits for an update in progress.

The update ends at its next workload, or as soon as it finds that another program holds resctrl's lock.
"""

Placement: TypeAlias = Mapping[str, Placed]


class Counting:
    """The event loop's interface to ``MonitorGroups``.

    Args:
        groups: the monitor groups.
        placement: returns the control groups into which perphd has put workloads.
        in_thread: False runs updates inline.
        background: True lets updates run beside the ticks; False waits for each (virtual time).
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
        """Counted workloads and their groups as of the last update, without those whose group has changed since."""
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
        """Start an update of the groups if one is due, and wait for it unless updates run in the background."""
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
            log.error("monitor groups: update failed", exc_info=failure)

    async def _look(self, asked: Sequence[Asked], placement: Placement, now_s: float) -> None:
        anew, self._anew = self._anew, False
        if not self._worker.is_busy:
            self._groups.stopping = self._closed
        done = await self._worker.run(lambda: self._groups.look(asked, placement, now_s, anew))
        if isinstance(done, Busy) or self._groups.stopping:
            self._names, self._anew = frozenset(), self._anew or anew  # repeat at the next tick
            return
        self._result, self._placed = done, _plain(placement)
        self._hidden = (frozenset(), NOTHING_COUNTED)

    def look_anew(self) -> None:
        """Make the next tick look at the groups: a different resctrl (or none) is mounted."""
        self._anew = True

    async def idle(self) -> None:
        """Stop a running update after its present workload, and wait at most ``PATIENCE_S`` for its end."""
        if self._task is not None:
            self._groups.stopping = True
            await asyncio.wait({self._task}, timeout=PATIENCE_S)

    def forget(self) -> None:
        """Forget the last result, since the groups were removed."""
        self._names, self._result, self._placed = frozenset(), NOTHING_COUNTED, {}

    def close(self) -> None:
        """End the thread; a running update ends at its next workload."""
        self._closed = self._groups.stopping = True
        self._worker.close()


def _plain(placement: Placement) -> dict[str, tuple[object, bool]]:
    return {name: (placed.group, placed.shared) for name, placed in placement.items()}
