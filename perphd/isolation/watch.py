"""Tracks conflicts with other writers, and delays writes while the journal cannot be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import Settings
from perphd.domain.backoff import BackoffRule
from perphd.domain.errors import KernelError
from perphd.domain.plan import ChangeSet, Key, NotEnforceable
from perphd.host.cgroup.knobs import same
from perphd.host.fs import Identity, KernelFs
from perphd.isolation.backends.cgroupfs import is_own, is_what_is_left, without_gone_disks
from perphd.isolation.gates import PlanContext
from perphd.isolation.journal import Journal
from perphd.isolation.knob_states import KnobStates
from perphd.isolation.planner import FileState

ADOPT_S: Final = 60.0
"""Minimum time in seconds between two changes of a knob by its owner that both become the original without a
conflict. kubelet's own reconciliation, with which perphd would compete, comes at least once a minute.
"""
RETRY: Final = BackoffRule(2.0, 60.0)
"""Backoff of retries, in seconds."""


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    targets: Mapping[str, Settings]
    wait_s: float
    until_s: float
    reason: str


class ConflictWatch:
    """Tracks conflicts with other writers, and failures of the journal, from readings passed to it."""

    def __init__(self, fs: KernelFs, journal: Journal, knobs: KnobStates) -> None:
        self._fs, self._journal, self._knobs = fs, journal, knobs
        self._seen: dict[str, tuple[Identity, str]] = {}
        self._foreign: dict[str, str] = {}
        self._unrecorded: _Unrecorded | None = None

    def is_foreign(self, *files: FileState) -> bool:
        """True if one of the files holds another program's value, which perphd does not overwrite."""
        return bool(self._foreign) and any(self._foreign.get(file.path) == file.now for file in files)

    def look(
        self,
        key: Key,
        identity: Identity,
        files: Iterable[FileState],
        around: str = "",
        owner_s: float | None = None,
    ) -> None:
        """Compare the texts of a knob's files with the expected ones; a foreign change is a conflict, counted once.

        ``around``: the parent's list, for cgroup v1, where the kernel removes offline CPUs from lists. ``owner_s``: the
        time now, if the cgroup has an owner that may set new values (kubelet resizes pods); a new value is
        then not a conflict, unless it equals the original or comes soon after another one.
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
            if owner_s is not None and not same(file.path, file.original or "", file.now):
                state = self._knobs.of(key)
                adopted_s, state.adopted_s = state.adopted_s, owner_s
                if adopted_s is None or not 0 <= owner_s - adopted_s < ADOPT_S:
                    return
            self._knobs.interfered(key, file.path, found=file.now, expected=expected)

    def _expected(self, file: FileState, identity: Identity) -> str | None:
        """The text that the file should read; None if it reads as perphd left it."""
        seen = self._seen.get(file.path)
        if seen is not None and seen[0] == identity:
            left = without_gone_disks(self._fs, file.path, seen[1], file.now)
            return None if same(file.path, left, file.now) else left
        # Changed by an earlier process: its intents and the original are perphd's own values.
        values = self._journal.intents(file.path)
        original = file.original or ""
        if not values and not original:
            return None  # a resctrl group of an earlier process, whose values are not on record
        if is_own(file.path, file.now, original, (original, *values)):
            return None
        return values[-1] if values else original

    def wrote(self, path: str, identity: Identity, text: str) -> None:
        """Record the content of a file after perphd wrote it."""
        self._seen[path] = (identity, text)
        self._foreign.pop(path, None)

    def forget(self, path: str) -> None:
        """Forget a file that was restored."""
        self._seen.pop(path, None)
        self._foreign.pop(path, None)

    def unrecorded(self, targets: Mapping[str, Settings], now_s: float, error: KernelError) -> None:
        """Record that the journal refused changes towards these targets, which delays the next attempt."""
        before = self._unrecorded
        wait_s = RETRY.after(0.0 if before is None else before.wait_s)
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
        for state in self._knobs.all(workload):
            state.conflict = state.adopted_s = None
