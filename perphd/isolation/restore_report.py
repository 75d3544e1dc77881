"""Report of a restore, file by file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["restored", "already", "gone", "foreign", "failed"]
"""What became of a file: the field of ``RestoreReport`` that lists it."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """Outcome for one file. ``found``: its text before; ``now``: after; ``note``: an explanation if needed."""

    path: str
    workload: str
    knob: str
    original: str
    found: str = ""
    now: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore. ``foreign``: files that another program has set since, which stay as they are. ``notes``:
    messages for people.
    """

    restored: tuple[FileReport, ...] = ()
    already: tuple[FileReport, ...] = ()
    gone: tuple[FileReport, ...] = ()
    foreign: tuple[FileReport, ...] = ()
    failed: tuple[FileReport, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def merged(cls, reports: Iterable[RestoreReport]) -> RestoreReport:
        """All these reports as one."""
        reports = tuple(reports)
        lists = {f.name: tuple(chain.from_iterable(getattr(r, f.name) for r in reports)) for f in fields(cls)}
        return cls(**lists)

    @property
    def complete(self) -> bool:
        """True if nothing that perphd set is still in force."""
        return not self.failed

    def __bool__(self) -> bool:
        return bool(self.restored or self.already or self.gone or self.foreign or self.failed)

    def __str__(self) -> str:
        counts = (
            (len(self.restored), "restored"),
            (len(self.already), "already as found"),
            (len(self.gone), "gone"),
            (len(self.foreign), "set by other programs and left alone"),
            (len(self.failed), "NOT restored"),
        )
        said = [f"{count} {what}" for count, what in counts if count]
        return (
            "; ".join(["files: " + ", ".join(said)] * bool(said) + list(self.notes)) or "nothing to restore"
        )
