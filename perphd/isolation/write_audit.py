"""Reports every kernel write and its outcome to a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perphd.domain.plan import Stage, Write
from perphd.isolation.engine import Result
from perphd.isolation.restore_report import RestoreReport

OnWrite = Callable[[Write, str], None]
"""Takes a write and its outcome: ``written``, ``undone``, ``restored``, or ``failed: ...``."""


class WriteAudit:
    """Calls ``on_write`` for every write of a transaction, a restore and a reclaim; None: no reports."""

    def __init__(self, on_write: OnWrite | None) -> None:
        self._on_write = on_write

    def transaction(self, result: Result) -> None:
        """Report the writes of a transaction, the one that failed, and those that were undone."""
        if self._on_write is None:
            return
        for write in result.written:
            self._on_write(write, "written")
        if result.at_fault is not None:
            self._on_write(result.at_fault, f"failed: {result.failed}")
        for write in result.undone:
            self._on_write(write, "undone")

    def restored(self, report: RestoreReport) -> None:
        """Report the files that were restored."""
        if self._on_write is None:
            return
        for file in report.restored:
            write = Write(file.workload, file.knob, file.path, file.now, file.found, Stage.GROW)
            self._on_write(write, "restored")

    def reclaimed(self, outcomes: Iterable[tuple[Write, str]]) -> None:
        """Report requests to reclaim memory that have ended since the last call."""
        for request, outcome in outcomes:
            if self._on_write is not None:
                self._on_write(request, outcome)
