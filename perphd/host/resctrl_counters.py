"""Where each workload's cache occupancy and memory bandwidth are counted: isolation keeps it, the monitor reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import rdt
from perphd.domain.reading import Unavailable

NOT_LOOKED: Final = Unavailable("resctrl has not been looked for yet")


@dataclass(frozen=True, slots=True)
class Counter:
    """A resctrl group that counts one workload and nothing else.

    ``since``: grows whenever many threads were moved into the group; readings before and after that have no rate
    between them.
    """

    group: rdt.GroupRef
    since: int = 0


@dataclass(frozen=True, slots=True)
class CountedGroups:
    """The groups that count, by workload.

    Args:
        resctrl: the tree that they are in; None: there is none to read.
        counters: by name of the workload.
        missing: why a workload is not counted, by its name.
        otherwise: why every workload in neither is not counted.
        in_turns: workloads that are counted for a part of the time, since monitoring ids are short.
        epoch: grows when the domains of the tree have changed: files must be opened again.
        notes: what keeps workloads from being counted, as sentences for an operator.
    """

    resctrl: rdt.Resctrl | None = None
    counters: Mapping[str, Counter] = field(default_factory=dict)
    missing: Mapping[str, Unavailable] = field(default_factory=dict)
    otherwise: Unavailable = NOT_LOOKED
    in_turns: frozenset[str] = frozenset()
    epoch: int = 0
    notes: tuple[str, ...] = ()

    def why_not(self, workload: str) -> Unavailable:
        """Why this workload, which has no counter, is not counted."""
        return self.missing.get(workload, self.otherwise)


NOTHING_COUNTED: Final = CountedGroups()
