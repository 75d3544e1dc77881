"""Change sets: the ordered writes that lead from the kernel's present state to a target state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

Key: TypeAlias = tuple[str, str]
"""(workload, knob)."""


class Stage(IntEnum):
    """Order of the writes: donors shrink before receivers grow, so that no resource is assigned twice."""

    DEMOTE = 0  # weights and idle: cheap and immediate
    SHRINK = 1  # donors lose resources
    GROW = 2  # receivers gain resources
    PROMOTE = 3  # weights are raised again


@dataclass(frozen=True, slots=True)
class Write:
    """One write of one kernel file. ``knob``: name of the setting. ``before``: the value read before the write."""

    workload: str
    knob: str
    path: str
    value: str
    before: str
    stage: Stage

    @property
    def key(self) -> Key:
        """(workload, knob) of this write."""
        return self.workload, self.knob


@dataclass(frozen=True, slots=True)
class NotEnforceable:
    """A wanted setting that cannot be applied on this host, with the reason."""

    workload: str
    knob: str
    reason: str

    @property
    def key(self) -> Key:
        """(workload, knob) of this setting."""
        return self.workload, self.knob


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All writes of one transaction, in order. Empty: the host is already in the wanted state."""

    writes: tuple[Write, ...]
    skipped: tuple[NotEnforceable, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.writes)

    def without(self, left_out: Collection[NotEnforceable]) -> ChangeSet:
        """The change set without the writes of these knobs. They are added to the skipped settings."""
        if not left_out:
            return self
        keys = {left.key for left in left_out}
        kept = tuple(write for write in self.writes if write.key not in keys)
        return ChangeSet(kept, (*self.skipped, *left_out), self.reason)
