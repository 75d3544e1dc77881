"""What the one writer remembers: who else writes, and when to wait since nothing can be put on record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import Settings
from perphd.domain.errors import KernelError
from perphd.domain.plan import Key
from perphd.host.cgroup.knobs import same
from perphd.host.fs import Identity
from perphd.isolation.journal import Journal
from perphd.isolation.planner import FileState
from perphd.isolation.value import is_own, is_what_is_left

CONFLICTS_BEFORE_YIELD: Final = 2
"""So many changes by somebody else to one knob, and perphd leaves it alone."""
FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 60.0
"""What failed and may succeed later waits 2, 4, 8 ... 60 s before it is tried again."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Somebody else writes to a knob that perphd has set. ``yielded``: perphd leaves it alone from now on."""

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
            "left alone until the mode is set anew or the configuration reloaded"
            if self.yielded
            else "set again"
        )
        times = "once" if self.count == 1 else f"{self.count} times"
        if self.what != "changed":
            who = f"by somebody else, who has interfered {times}"
            return f"{self.path} of {self.workload} was {self.what} {who}; {then}"
        return (
            f"{self.path} of {self.workload} was changed by somebody else {times}: it reads {self.found!r}, perphd had "
            f"left {self.expected!r} there; {then}"
        )


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    targets: Mapping[str, Settings]
    wait_s: float
    until_s: float
    reason: str


class Watch:
    """Conflicts with other writers, and the record's refusals. Reads nothing itself: it is told what was read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[str, tuple[Identity, str]] = {}
        self._foreign: dict[str, str] = {}
        self._conflicts: dict[Key, Conflict] = {}
        self._unrecorded: _Unrecorded | None = None

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Every knob that somebody else has written to since perphd did."""
        return tuple(self._conflicts.values())

    def yielded(self, key: Key) -> Conflict | None:
        """The conflict that made perphd leave this knob alone, if any."""
        conflict = self._conflicts.get(key)
        return conflict if conflict is not None and conflict.yielded else None

    def is_foreign(self, file: FileState) -> bool:
        """True if the file holds a value of somebody else, which is not perphd's to give back."""
        return self._foreign.get(file.path) == file.now

    def look(self, key: Key, identity: Identity, files: Iterable[FileState], around: str = "") -> None:
        """Take note of what a knob's files read; a change that is not perphd's is a conflict, counted once.

        ``around``: all that there is, where the kernel itself takes out of a list what went (cgroup v1).
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
        """Somebody else did this to what these knobs are set by: counted once for each of them."""
        for key in keys:
            before = self._conflicts.get(key)
            count = 1 if before is None else before.count + 1
            yielded = count >= CONFLICTS_BEFORE_YIELD
            self._conflicts[key] = Conflict(*key, path, count, found, expected, yielded, what)

    def _expected(self, file: FileState, identity: Identity) -> str | None:
        """None if the file reads as perphd left it, else what it should read."""
        seen = self._seen.get(file.path)
        if seen is not None and seen[0] == identity:
            return None if same(file.path, seen[1], file.now) else seen[1]
        # Changed by an earlier run: anything that it wrote, and the original, is its own.
        values = self._journal.intents(file.path)
        original = file.original or ""
        if not values and not original:
            return None  # a group of an earlier run: what it wrote there is not on record
        if is_own(file.path, file.now, original, (original, *values)):
            return None
        return values[-1] if values else original

    def wrote(self, path: str, identity: Identity, text: str) -> None:
        """Perphd has written to this knob; the file reads so now."""
        self._seen[path] = (identity, text)
        self._foreign.pop(path, None)

    def forget(self, path: str) -> None:
        """The file is given back."""
        self._seen.pop(path, None)
        self._foreign.pop(path, None)

    def unrecorded(self, targets: Mapping[str, Settings], now_s: float, error: KernelError) -> None:
        """Changes towards these targets could not be put on record, hence not be made: the next try must wait."""
        before = self._unrecorded
        wait_s = longer_s(0.0 if before is None else before.wait_s)
        self._unrecorded = _Unrecorded(dict(targets), wait_s, now_s + wait_s, str(error))

    def recorded(self) -> None:
        """Changes can be put on record (again)."""
        self._unrecorded = None

    def waits(self, targets: Mapping[str, Settings], now_s: float) -> str:
        """Why changes towards these targets are not tried at ``now_s``, or empty. Other targets are tried at once."""
        last = self._unrecorded
        if last is None or now_s >= last.until_s or last.targets != targets:
            return ""
        return f"tried again after {last.wait_s:g} s: {last.reason}"

    def reset(self, workload: str | None = None) -> None:
        """Forget conflicts, of one workload or of all; nothing has to wait any longer."""
        self._unrecorded = None
        for key in [key for key in self._conflicts if workload in (None, key[0])]:
            del self._conflicts[key]


def longer_s(before_s: float) -> float:
    """How long to wait after a failure, when it was ``before_s`` after the last one (0: there was no wait)."""
    return min(2 * before_s, LONGEST_WAIT_S) if before_s else FIRST_WAIT_S
