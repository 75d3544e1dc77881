"""Change sets: the ordered writes that lead from what the kernel reads back to a target state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""(workload, knob)."""


class Stage(IntEnum):
    """Writes run in this order: whoever gives goes first, so that nothing is ever promised twice."""

    DEMOTE = 0  # weights and idle: cheap, at once
    SHRINK = 1  # donors lose
    GROW = 2  # receivers gain
    PROMOTE = 3  # weights come back


@dataclass(frozen=True, slots=True)
class Write:
    """One write of one kernel file. ``knob`` names it for people; ``before`` is what was read back."""

    workload: str
    knob: str
    path: str
    value: str
    before: str
    stage: Stage

    @property
    def key(self) -> Key:
        """The knob of which workload this is about."""
        return self.workload, self.knob


@dataclass(frozen=True, slots=True)
class NotEnforceable:
    """A wanted setting that this host cannot have, with the reason."""

    workload: str
    knob: str
    reason: str

    @property
    def key(self) -> Key:
        """The knob of which workload this is about."""
        return self.workload, self.knob


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All writes of one transaction, in order. Empty: the host is already as wanted."""

    writes: tuple[Write, ...]
    skipped: tuple[NotEnforceable, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.writes)

    def without(self, left_out: Collection[NotEnforceable]) -> ChangeSet:
        """The same without any write of these knobs, which are told instead."""
        if not left_out:
            return self
        keys = {left.key for left in left_out}
        kept = tuple(write for write in self.writes if write.key not in keys)
        return ChangeSet(kept, (*self.skipped, *left_out), self.reason)
