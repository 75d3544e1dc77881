"""The engine that makes planned writes: of cgroup files, units, traffic classes and resctrl groups alike.

    make each write in order -> a failure rolls back its scope, newest first -> one Result

The scope of a write is what must be changed completely or not at all. All files of a plan are one scope; each resctrl
group is a scope of its own, so that a group that cannot be changed leaves the others in force. A ``Writer`` knows how
to make one write and how to take it back. It runs in a worker thread, and executes writes that others have planned.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from perphd.domain.errors import Broken, KernelError
from perphd.domain.plan import Key, Write

log = logging.getLogger("perphd")

Undo: TypeAlias = Callable[[], object]
"""Takes one write back. Returns False if there is nothing to take back, and raises if that fails."""
Keep: TypeAlias = Callable[[Undo], None]
"""Stores how to take back a change that is about to be made."""


class NotRolledBack(Exception):
    """A rollback is not tried, because an earlier one failed; the text is for people."""


@dataclass
class Result:
    """Outcome of writes.

    ``gone``: workloads that vanished meanwhile. ``at_fault``: the write that failed first. ``undo_problems``: rollbacks
    that failed, as texts. ``too_slow``: the deadline passed before ``at_fault`` was started. ``texts``: content of
    written files read afterwards, unless a later write may have changed it. ``through``: knobs of groups that are now
    as planned.
    """

    written: list[Write] = field(default_factory=list)
    undone: list[Write] = field(default_factory=list)
    failed: KernelError | None = None
    at_fault: Write | None = None
    too_slow: bool = False
    gone: set[str] = field(default_factory=set)
    undo_problems: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    through: set[Key] = field(default_factory=set)

    def add(self, later: Result) -> None:
        """Add the outcome of changes that followed these."""
        self.failed, self.at_fault = later.failed, later.at_fault
        self.written += later.written
        self.undone += later.undone
        self.undo_problems += later.undo_problems

    def note_failure(self, error: KernelError, write: Write) -> None:
        """Record the failure of this write; the first failure counts."""
        if self.failed is None:
            self.failed, self.at_fault = error, write


class Writer(Protocol):
    """Makes the writes of one kind of knob."""

    def scope(self, write: Write) -> str:
        """Name of the scope that a failure of this write rolls back."""

    def hindrance(self, write: Write) -> KernelError | None:
        """Why this write must not be started; None: it may be."""

    def make(self, write: Write, keep: Keep) -> KernelError | None:
        """Make the write, and verify it.

        Calls ``keep`` before it changes anything, because a write that fails halfway is taken back as well. Returns the
        failure of a part that need not be rolled back; None: there is none.

        Raises:
            Exception: the write failed. Anything but a KernelError is a defect, and is logged in full.
        """

    def is_gone(self, write: Write) -> bool:
        """True if an error of this write means nothing, because its cgroup is gone or was replaced."""

    def failed(self, write: Write, error: KernelError) -> bool:
        """Note a failure, before its scope is rolled back. Returns False if no other scope can be written either."""


def make_all(writer: Writer, writes: Sequence[Write], result: Result) -> None:
    """Make these writes in order. Raises no Exception, since that would leave them half done."""
    undo: dict[str, list[Undo | Write]] = {}
    broken: set[str] = set()
    written, gone = result.written, result.gone
    for write in writes:
        scope = writer.scope(write)
        if scope in broken or write.workload in gone:
            continue
        # The list holds each write, followed by its rollbacks.
        kept = undo.get(scope)
        if kept is None:
            kept = undo[scope] = []
        kept.append(write)
        error = writer.hindrance(write)
        if error is None:
            try:
                partly = writer.make(write, kept.append)
            except Exception as exc:
                if isinstance(exc, KernelError) and writer.is_gone(write):
                    gone.add(write.workload)
                    continue
                error = as_failure(exc, write)
            else:
                written.append(write)
                if partly is not None:
                    result.note_failure(partly, write)
                continue
        result.note_failure(error, write)
        goes_on = writer.failed(write, error)
        _take_back(undo.pop(scope), result)
        if not goes_on:
            break
        broken.add(scope)


def _take_back(kept: Sequence[Undo | Write], result: Result) -> None:
    """Take writes back, newest first. Files that fail stay in the journal."""
    written = set(result.written)
    backs: list[Undo] = []
    for each in reversed(kept):
        if not isinstance(each, Write):
            backs.append(each)
            continue
        for back in backs:
            _take_one_back(each, back, written, result)
        backs.clear()


def _take_one_back(write: Write, back: Undo, written: Set[Write], result: Result) -> None:
    try:
        if back() is not False and write in written:
            result.undone.append(write)
    except NotRolledBack as exc:
        result.undo_problems.append(str(exc))
    except Exception as exc:  # any failure: continue with the other writes
        why = as_failure(exc, write)
        result.undo_problems.append(f"rollback failed, run perphd restore to undo it: {why}")


def as_failure(exc: Exception, write: Write) -> KernelError:
    """The failure of a write as a KernelError; unexpected exceptions are logged in full."""
    if isinstance(exc, KernelError):
        return exc
    log.error("%s: writing %r ended unexpectedly", write.path, write.value, exc_info=exc)
    detail = f"{type(exc).__name__}: {exc}"
    advice = "unexpected error in perphd; the log has the traceback"
    return Broken(write.path, "write", errno.EIO, write.value, detail, advice)
