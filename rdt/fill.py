"""Moving threads into a group until all that should be there are there.

A running process makes threads and children while it is being moved. They inherit the group of their maker, so that
pass after pass fewer are missing; when a look finds none missing, the set is stable. Set equality is never asked
for: threads come and end at all times, and a zombie is taken by the kernel but never listed.
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
# Taken this often and still listed in no group at all: a zombie.
_ZOMBIE_AFTER = 2


@dataclass(frozen=True, slots=True)
class Filled:
    """What became of the threads that were to be moved."""

    moved: frozenset[int]
    gone: frozenset[int]
    """Ended before they could be moved."""
    zombies: frozenset[int]
    """The kernel took them but does not list them: they have ended but nobody has waited for them."""
    left_to_others: frozenset[int]
    """Not moved, because they are in another program's group."""
    stragglers: frozenset[int]
    """Still missing after the last pass."""
    passes: int

    @property
    def complete(self) -> bool:
        """True if every living thread is where it was asked to be."""
        return not self.stragglers and not self.left_to_others


class Filler:
    """Fills one group.

    Args:
        resctrl: the mounted resctrl.
        group: where to move threads.
        others: tells the groups of this moment whose threads are left alone.
        passes: how often to look and move at most.
        only_from: if given, only threads that are in one of these are moved.
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
        """Look and move until nothing is missing, or the passes are used up."""
        source = tids if callable(tids) else _fixed(tids)
        passes, missing, foreign = 0, frozenset[int](), frozenset[int]()
        while True:
            # 0 is how a task of another PID namespace is shown; it cannot be named here.
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
        """Threads to move now, and those left to others."""
        present = self._resctrl.tasks(self._group)
        missing = wanted - present - self._gone
        suspects = {tid for tid in missing - self._zombies if self._taken[tid] >= _ZOMBIE_AFTER}
        if suspects:
            # A task that another program moved away again is listed there; a zombie is listed nowhere.
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
                    raise  # not to take what cannot be read for empty: others' tasks would be moved
        return frozenset(members)

    def _move(self, missing: frozenset[int]) -> None:
        if self._group.monitor:
            # A monitor group takes only threads of its control group, so they go there first.
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
