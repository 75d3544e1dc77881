"""What became of a change set."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.errors import KernelError
from perphd.domain.plan import Write


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a change set. ``undone``: writes taken back after ``failed``; ``problems``: what could not be.

    ``skipped``: workloads whose cgroup vanished meanwhile. ``more``: these writes were only those of the plan that come
    first; the next plan goes on.
    """

    ok: bool
    written: tuple[Write, ...] = ()
    undone: tuple[Write, ...] = ()
    failed: KernelError | None = None
    duration_s: float = 0.0
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    more: bool = False

    @property
    def kept(self) -> tuple[Write, ...]:
        """Writes that are in force."""
        undone = set(self.undone)
        return tuple(write for write in self.written if write not in undone)
