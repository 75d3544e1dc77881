"""Move threads into a group until all of them are in it.

A running process creates threads and children while it is being moved. They inherit their creator's group, so
each pass finds fewer missing threads. When a pass finds none missing, the set is stable. The group need not
equal the wanted set: threads start and end at any time, and the kernel accepts a zombie but never lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rdt.errors import Gone
from rdt.names import GroupRef

if TYPE_CHECKING:
    from rdt.resctrl import Resctrl

TidSource: TypeAlias = Callable[[], Iterable[int]] | Iterable[int]
# A thread that the kernel accepted this many times and still lists in no group is a zombie.
_ZOMBIE_AFTER = 2


@dataclass(frozen=True, slots=True)
class Filled:
    """Result of moving threads into a group."""

    moved: frozenset[int]
    gone: frozenset[int]
    """Threads that ended before they could be moved."""
    zombies: frozenset[int]
    """Threads that the kernel accepted but does not list: they have ended, and no process has waited for them."""
    left_to_others: frozenset[int]
    """Threads not moved, because they are in another program's group."""
    stragglers: frozenset[int]
    """Threads still missing after the last pass."""
    passes: int

    @property
    def complete(self) -> bool:
        """True if every living thread is in the group."""
        return not self.stragglers and not self.left_to_others


class Filler:
    """Fills one group with threads.

    Args:
        resctrl: the mounted resctrl.
        group: the group to fill.
        others: returns the groups whose threads must not be moved now.
        passes: maximum number of passes.
        only_from: if given, only threads in one of these groups are moved.
    """

    def __init__(
        self,
        resctrl: Resctrl,
        group: GroupRef,
        others: Callable[[], Iterable[GroupRef]],
        passes: int,
        *,
        only_from: Iterable[GroupRef] | None = None,
    ) -> None:
        self._resctrl = resctrl
        self._group = group
        self._others = others
        self._passes = max(passes, 1)
        self._only_from = None if only_from is None else tuple(only_from)
        self._taken: Counter[int] = Counter()
        self._moved: set[int] = set()
        self._gone: set[int] = set()
        self._zombies: set[int] = set()

    def fill(self, tids: TidSource) -> Filled:
        """Find and move missing threads until none is missing, or the passes are used up."""
        source = tids if callable(tids) else _fixed(tids)
        passes, missing, foreign = 0, frozenset[int](), frozenset[int]()
        while True:
            # A task of another PID namespace is shown as 0 and cannot be moved from here.
            wanted = frozenset(tid for tid in source() if tid > 0)
            with self._resctrl.reading():
                missing, foreign = self._missing(wanted)
            if not missing or passes == self._passes:
                break
            passes += 1
            with self._resctrl.changing():
                self._move(self._missing(wanted)[0])
        gone = frozenset(self._gone) - self._moved
        zombies = frozenset(self._zombies)
        moved = frozenset(self._moved) - zombies - missing - foreign
        return Filled(moved, gone, zombies, foreign, missing, passes)

    def _missing(self, wanted: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
        """Threads to move now, and missing threads that are in other programs' groups."""
        present = self._resctrl.tasks(self._group)
        missing = wanted - present - self._gone
        suspects = {tid for tid in missing - self._zombies if self._taken[tid] >= _ZOMBIE_AFTER}
        if suspects:
            # A thread that another program moved away again is listed in some group; a zombie is listed
            # nowhere.
            self._zombies |= suspects - self._members(self._resctrl.list_groups())
        missing -= self._zombies
        if self._only_from is not None:
            missing &= self._members(self._only_from)
        foreign = missing & self._members(self._others()) if missing else frozenset()
        return missing - foreign, foreign

    def _members(self, groups: Iterable[GroupRef]) -> frozenset[int]:
        members: set[int] = set()
        for group in groups:
            try:
                members |= self._resctrl.tasks(group)
            except Gone:
                if self._resctrl.exists(group):
                    raise  # an unreadable group must not count as empty: its threads would be taken from their owner
        return frozenset(members)

    def _move(self, missing: frozenset[int]) -> None:
        if self._group.monitor:
            # A monitor group accepts only threads of its control group, so move them there first.
            parent = self._group.parent
            outside = missing - self._resctrl.tasks(parent)
            self._gone |= self._resctrl.move_tasks(parent, outside).gone
        moved = self._resctrl.move_tasks(self._group, missing - self._gone)
        self._gone |= moved.gone
        self._moved |= moved.accepted
        self._taken.update(moved.accepted)


def _fixed(tids: Iterable[int]) -> Callable[[], Iterable[int]]:
    unchanging = frozenset(tids)
    return lambda: unchanging
