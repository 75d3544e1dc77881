"""Detects changes that other programs make to perphd's resctrl groups.

Parsed values are compared, because the kernel prints resources in its own order. Domains that go offline or appear are
not counted as changes. A removed group, and threads moved out of a group, are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import rdt
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS
from perphd.host.fs import Identity
from perphd.isolation.knob_states import Conflict, KnobStates


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """One of perphd's groups as read back."""

    group: rdt.GroupRef
    path: str
    identity: Identity
    schemata: rdt.Schemata
    tasks: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Inside:
    key: str
    tids: frozenset[int]


class GroupWatch:
    """Reports conflicts to the records of knobs, from readings passed to it."""

    def __init__(self, knobs: KnobStates) -> None:
        self._knobs = knobs
        self._left: dict[str, SeenGroup] = {}
        self._inside: dict[str, _Inside] = {}

    def forget_all(self) -> None:
        """Forget all groups after a change of the resctrl mount."""
        self._left.clear()
        self._inside.clear()

    def look(
        self,
        seen: Mapping[str, SeenGroup],
        members: Mapping[str, Iterable[str]],
        threads: Mapping[str, frozenset[int]],
        foreign: Mapping[str, frozenset[int]],
    ) -> None:
        """Compare with the last state, report conflicts, and remember the present state.

        Args:
            seen: perphd's groups that exist, by key.
            members: the workloads assigned to each group.
            threads: each workload's threads, read after the groups, so that a thread that ends in between
                does not count as moved out.
            foreign: threads that are in other programs' groups.
        """
        for key, left in list(self._left.items()):
            now = seen.get(key)
            if now is None or now.identity != left.identity:
                self._conflict(members.get(key, ()), left.path, "removed")
                self._left.pop(key)
            elif differs(left.schemata, now.schemata):
                path = f"{left.path}/schemata"
                texts = str(now.schemata), str(left.schemata)
                self._conflict(members.get(key, ()), path, "changed", *texts)
        for name, inside in list(self._inside.items()):
            group = seen.get(inside.key)
            if group is None or inside.key not in self._left:
                self._inside.pop(name)
                continue
            out = (
                (inside.tids & threads.get(name, frozenset())) - group.tasks - foreign.get(name, frozenset())
            )
            if out:
                self._conflict([name], f"{group.path}/tasks", f"emptied of {len(out)} of its threads")
            self._inside[name] = _Inside(inside.key, threads.get(name, frozenset()) & group.tasks)
        self._left.update(seen)

    def find_homes(self, seen: Mapping[str, SeenGroup], threads: Mapping[str, frozenset[int]]) -> None:
        """Find the groups of workloads whose group is not known: after a restart, or when a workload has returned."""
        for name, tids in threads.items():
            if tids and not self.home(name):
                best = max(seen, key=lambda key: len(tids & seen[key].tasks), default="")
                if best and (inside := tids & seen[best].tasks):
                    self.filled(name, best, inside)

    def disturbed(self, resctrl: rdt.Resctrl) -> bool:
        """True if a group is gone or its values have changed. Reports no conflict; ``look`` does."""
        for left in list(self._left.values()):
            try:
                if differs(left.schemata, resctrl.schemata(left.group)):
                    return True
            except rdt.Gone:
                return True
            except rdt.ResctrlError:
                continue
        return False

    def _conflict(
        self, names: Iterable[str], path: str, what: str, found: str = "", expected: str = ""
    ) -> None:
        for name in names:
            for setting in RESCTRL_SETTINGS:
                self._knobs.interfered((name, setting), path, what, found, expected)

    def yielded(self, name: str) -> Conflict | None:
        """The conflict due to which perphd leaves this workload's group alone; None if there is none."""
        return next(
            (found for setting in RESCTRL_SETTINGS if (found := self._knobs.yielded((name, setting)))), None
        )

    # -- what perphd does ----------------------------------------------------------------------------------------

    def wrote(self, key: str, seen: SeenGroup) -> None:
        """Record that perphd created or changed this group, with its present state."""
        self._left[key] = seen

    def filled(self, name: str, key: str, tids: frozenset[int]) -> None:
        """Record the threads of the workload that are now in the group."""
        self._inside[name] = _Inside(key, tids)

    def released(self, name: str) -> None:
        """Record that perphd moved the workload out of its group."""
        self._inside.pop(name, None)

    def removed(self, key: str) -> None:
        """Record that perphd removed this group."""
        self._left.pop(key, None)
        for name in [name for name, inside in list(self._inside.items()) if inside.key == key]:
            self._inside.pop(name, None)

    def left(self, key: str) -> SeenGroup | None:
        """The group as last read or written; None if unknown."""
        return self._left.get(key)

    def home(self, name: str) -> str:
        """Key of the group that holds the workload's threads; empty if none does."""
        inside = self._inside.get(name)
        return inside.key if inside is not None and inside.tids else ""

    def homes(self) -> dict[str, str]:
        """Key of the group of every workload that has one."""
        return {name: inside.key for name, inside in list(self._inside.items()) if inside.tids}


def differs(left: rdt.Schemata, now: rdt.Schemata) -> bool:
    """True if a value that both schemata have differs."""
    for cell, value in left.cells():
        found = now.get(cell.resource, cell.domain)
        if found is not None and found != value:
            return True
    return False
