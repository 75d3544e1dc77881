"""Conflicts with other writers, and waits while the journal cannot be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import Settings
from perphd.domain.errors import KernelError
from perphd.domain.plan import ChangeSet, Key, NotEnforceable
from perphd.host.cgroup.knobs import same
from perphd.host.fs import Identity
from perphd.isolation.gates import PlanContext
from perphd.isolation.journal import Journal
from perphd.isolation.planner import FileState
from perphd.isolation.value import is_own, is_what_is_left

CONFLICTS_BEFORE_YIELD: Final = 2
"""Number of changes by other programs after which perphd leaves a knob alone."""
FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 60.0
"""Bound of the retry backoff, which doubles from 2 s to 60 s."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another program writes to a knob that perphd has set. ``yielded``: perphd leaves it alone from now on."""

    workload: str
    knob: str
    path: str
    count: int
    found: str
    expected: str
    yielded: bool
    what: str = "changed"

    def __str__(self) -> str:
        then = (
            "left alone until the mode is set again or the configuration is reloaded"
            if self.yielded
            else "set again"
        )
        times = "once" if self.count == 1 else f"{self.count} times"
        if self.what != "changed":
            who = f"by another program, which has interfered {times}"
            return f"{self.path} of {self.workload} was {self.what} {who}; {then}"
        return (
            f"{self.path} of {self.workload} was changed by another program {times}: it reads {self.found!r}, "
            f"perphd had left {self.expected!r} there; {then}"
        )


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    targets: Mapping[str, Settings]
    wait_s: float
    until_s: float
    reason: str


class ConflictWatch:
    """Tracks conflicts with other writers, and failures of the journal, from readings passed to it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[str, tuple[Identity, str]] = {}
        self._foreign: dict[str, str] = {}
        self._conflicts: dict[Key, Conflict] = {}
        self._unrecorded: _Unrecorded | None = None

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Every knob that another program has written since perphd did."""
        return tuple(self._conflicts.values())

    def yielded(self, key: Key) -> Conflict | None:
        """The conflict that made perphd leave this knob alone; None: there is none."""
        conflict = self._conflicts.get(key)
        return conflict if conflict is not None and conflict.yielded else None

    def is_foreign(self, file: FileState) -> bool:
        """True if the file holds another program's value, which perphd does not overwrite."""
        return self._foreign.get(file.path) == file.now

    def look(self, key: Key, identity: Identity, files: Iterable[FileState], around: str = "") -> None:
        """Compare the texts of a knob's files with the expected ones; a foreign change is a conflict, counted once.

        ``around``: the parent's list, for cgroup v1, where the kernel removes offline CPUs from lists.
        """
        conflict: tuple[FileState, str] | None = None
        for file in files:
            if file.original is None:
                self._seen.pop(file.path, None)
                self._foreign.pop(file.path, None)
                continue
            expected = self._expected(file, identity)
            self._seen[file.path] = (identity, file.now)
            if expected is not None and not is_what_is_left(expected, file.now, around):
                self._foreign[file.path] = file.now
                conflict = conflict or (file, expected)
        if conflict is not None:
            file, expected = conflict
            before = self._conflicts.get(key)
            count = 1 if before is None else before.count + 1
            yielded = count >= CONFLICTS_BEFORE_YIELD
            self._conflicts[key] = Conflict(*key, file.path, count, file.now, expected, yielded)

    def interfered(
        self, keys: Iterable[Key], path: str, what: str, found: str = "", expected: str = ""
    ) -> None:
        """Count an interference with the object that enforces these knobs, once for each knob."""
        for key in keys:
            before = self._conflicts.get(key)
            count = 1 if before is None else before.count + 1
            yielded = count >= CONFLICTS_BEFORE_YIELD
            self._conflicts[key] = Conflict(*key, path, count, found, expected, yielded, what)

    def _expected(self, file: FileState, identity: Identity) -> str | None:
        """The text that the file should read; None if it reads as perphd left it."""
        seen = self._seen.get(file.path)
        if seen is not None and seen[0] == identity:
            return None if same(file.path, seen[1], file.now) else seen[1]
        # Changed by an earlier process: its intents and the original are perphd's own values.
        values = self._journal.intents(file.path)
        original = file.original or ""
        if not values and not original:
            return None  # resctrl group of an earlier process, whose values are not on record
        if is_own(file.path, file.now, original, (original, *values)):
            return None
        return values[-1] if values else original

    def wrote(self, path: str, identity: Identity, text: str) -> None:
        """Record what a file reads after perphd wrote it."""
        self._seen[path] = (identity, text)
        self._foreign.pop(path, None)

    def forget(self, path: str) -> None:
        """Forget a file that was restored."""
        self._seen.pop(path, None)
        self._foreign.pop(path, None)

    def unrecorded(self, targets: Mapping[str, Settings], now_s: float, error: KernelError) -> None:
        """Record that the journal refused changes towards these targets, which delays the next attempt."""
        before = self._unrecorded
        wait_s = longer_s(0.0 if before is None else before.wait_s)
        self._unrecorded = _Unrecorded(dict(targets), wait_s, now_s + wait_s, str(error))

    def recorded(self) -> None:
        """Record that the journal accepts changes again."""
        self._unrecorded = None

    def hold(self, changes: ChangeSet, plan: PlanContext) -> ChangeSet:
        """Hold all writes while the journal recently refused changes towards the same targets."""
        last = self._unrecorded
        if not changes or last is None or plan.clock_s >= last.until_s or last.targets != plan.targets:
            return changes
        reason = f"tried again after {last.wait_s:g} s: {last.reason}"
        keys = dict.fromkeys(write.key for write in changes.writes)
        waiting = tuple(NotEnforceable(*key, reason) for key in keys)
        return ChangeSet((), (*changes.skipped, *waiting), reason)

    def reset(self, workload: str | None = None) -> None:
        """Forget conflicts of one workload (None: of all), and end all waiting."""
        self._unrecorded = None
        for key in [key for key in self._conflicts if workload in (None, key[0])]:
            del self._conflicts[key]


def longer_s(before_s: float) -> float:
    """The next wait of an exponential backoff after one of ``before_s`` (0: no wait yet)."""
    return min(2 * before_s, LONGEST_WAIT_S) if before_s else FIRST_WAIT_S
