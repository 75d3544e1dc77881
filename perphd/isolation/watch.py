"""What the one writer remembers between ticks: who else writes, and which values the kernel would not take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from perphd.domain.errors import Broken, Busy, Full, KernelError
from perphd.host.cgroup.knobs import Value, same
from perphd.isolation.journal import Journal
from perphd.isolation.planner import FileState
from perphd.isolation.transaction import Identity

CONFLICTS_BEFORE_YIELD: Final = 2
"""So many changes by somebody else to one knob, and perphd leaves it alone."""
FAILURES_BEFORE_BLOCK: Final = 3
"""So many failures in a row of a value that the kernel might take later, and it is not tried again."""

Key: TypeAlias = tuple[str, str]
"""(workload, knob)."""


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

    def __str__(self) -> str:
        then = (
            "left alone until the mode is set anew or the configuration reloaded"
            if self.yielded
            else "set again"
        )
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"{self.path} of {self.workload} was changed by somebody else {times}: it reads {self.found!r}, perphd had "
            f"left {self.expected!r} there; {then}"
        )


@dataclass(frozen=True, slots=True)
class _Refusal:
    target: Value
    failures: int
    final: bool
    reason: str


class Watch:
    """Conflicts with other writers, and values that were refused. Reads nothing itself: it is told what was read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[str, tuple[Identity, str]] = {}
        self._foreign: dict[str, str] = {}
        self._conflicts: dict[Key, Conflict] = {}
        self._refusals: dict[Key, _Refusal] = {}

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

    def look(self, key: Key, identity: Identity, files: Iterable[FileState]) -> None:
        """Take note of what a knob's files read; a change that is not perphd's is a conflict, counted once."""
        conflict: tuple[FileState, str] | None = None
        for file in files:
            if file.original is None:
                self._seen.pop(file.path, None)
                self._foreign.pop(file.path, None)
                continue
            expected = self._expected(file, identity)
            self._seen[file.path] = (identity, file.now)
            if expected is not None:
                self._foreign[file.path] = file.now
                conflict = conflict or (file, expected)
        if conflict is not None:
            file, expected = conflict
            before = self._conflicts.get(key)
            count = 1 if before is None else before.count + 1
            yielded = count >= CONFLICTS_BEFORE_YIELD
            self._conflicts[key] = Conflict(*key, file.path, count, file.now, expected, yielded)

    def _expected(self, file: FileState, identity: Identity) -> str | None:
        """None if the file reads as perphd left it, else what it should read."""
        seen = self._seen.get(file.path)
        if seen is not None and seen[0] == identity:
            return None if same(file.path, seen[1], file.now) else seen[1]
        # Changed by an earlier run: anything that it wrote, and the original, is its own.
        values = self._journal.intents(file.path)
        original = file.original or ""
        if any(same(file.path, value, file.now) for value in (original, *values)):
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

    def refused(self, key: Key, target: Value) -> str:
        """Why this target is not tried again, or empty. Another target is a new beginning."""
        refusal = self._refusals.get(key)
        if refusal is not None and refusal.target != target:
            del self._refusals[key]
            return ""
        return refusal.reason if refusal is not None and refusal.final else ""

    def failed(self, key: Key, target: Value, error: KernelError) -> None:
        """The kernel did not take this target: a refusal in principle is final at once, another after a few times."""
        before = self._refusals.get(key)
        failures = 1 if before is None else before.failures + 1
        final = failures >= FAILURES_BEFORE_BLOCK or not isinstance(error, (Busy, Full, Broken))
        self._refusals[key] = _Refusal(target, failures, final, str(error))

    def succeeded(self, key: Key) -> None:
        """The kernel took the target."""
        self._refusals.pop(key, None)

    def reset(self, workload: str | None = None) -> None:
        """Forget conflicts and refusals, of one workload or of all."""
        for key in [key for key in self._conflicts if workload in (None, key[0])]:
            del self._conflicts[key]
        for key in [key for key in self._refusals if workload in (None, key[0])]:
            del self._refusals[key]
