"""What perphd last left in its resctrl groups, and what somebody else has done to them since.

Values are compared as values: the kernel prints resources in an order of its own. A domain that went, came, or is new
is nobody's doing. A group that was removed, or threads that were taken out of it, count as a change of its values does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import rdt
from perphd.domain.plan import Key
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS
from perphd.host.fs import Identity
from perphd.isolation.watch import Conflict, Watch


@dataclass(frozen=True, slots=True)
class Seen:
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
    """Notes conflicts in ``Watch``, from what it is given."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._left: dict[str, Seen] = {}
        self._inside: dict[str, _Inside] = {}

    def forget_all(self) -> None:
        """Another resctrl is mounted: nothing of the one before it counts."""
        self._left.clear()
        self._inside.clear()

    def look(
        self,
        seen: Mapping[str, Seen],
        members: Mapping[str, Iterable[str]],
        threads: Mapping[str, frozenset[int]],
        foreign: Mapping[str, frozenset[int]],
    ) -> None:
        """Compare with what was left, and go on from what is there now.

        Args:
            seen: perphd's groups that exist, by key.
            members: the workloads in each, as perphd has put them there.
            threads: of each workload, read after the groups' (what ended in between is not missed).
            foreign: those of them that are known to be in groups of other programs.
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

    def disturbed(self, resctrl: rdt.Resctrl) -> bool:
        """True if a group is gone, or reads otherwise than it was left. Notes no conflict: ``look`` will."""
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
        keys: list[Key] = [(name, setting) for name in names for setting in RESCTRL_SETTINGS]
        self._watch.interfered(keys, path, what, found, expected)

    def yielded(self, name: str) -> Conflict | None:
        """The conflict that made perphd leave this workload's group alone, if any."""
        return next(
            (found for setting in RESCTRL_SETTINGS if (found := self._watch.yielded((name, setting)))), None
        )

    # -- what perphd does ----------------------------------------------------------------------------------------

    def wrote(self, key: str, seen: Seen) -> None:
        """Perphd has made or changed this group; it reads so now."""
        self._left[key] = seen

    def filled(self, name: str, key: str, tids: frozenset[int]) -> None:
        """These threads of the workload are in the group now."""
        self._inside[name] = _Inside(key, tids)

    def released(self, name: str) -> None:
        """Perphd has taken the workload out of its group."""
        self._inside.pop(name, None)

    def removed(self, key: str) -> None:
        """Perphd has removed this group."""
        self._left.pop(key, None)
        for name in [name for name, inside in list(self._inside.items()) if inside.key == key]:
            self._inside.pop(name, None)

    def left(self, key: str) -> Seen | None:
        """The group as it was last read or written."""
        return self._left.get(key)

    def home(self, name: str) -> str:
        """The key of the group that the workload's threads are in; empty: of none."""
        inside = self._inside.get(name)
        return inside.key if inside is not None and inside.tids else ""

    def homes(self) -> dict[str, str]:
        """The same for every workload that is in a group."""
        return {name: inside.key for name, inside in list(self._inside.items()) if inside.tids}


def differs(left: rdt.Schemata, now: rdt.Schemata) -> bool:
    """True if a value that both have is another one."""
    for cell, value in left.cells():
        found = now.get(cell.resource, cell.domain)
        if found is not None and found != value:
            return True
    return False
