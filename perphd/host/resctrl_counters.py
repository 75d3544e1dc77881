"""Groups that count each workload's cache occupancy and bandwidth: isolation keeps them, the monitor reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import rdt
from perphd.domain.reading import Unavailable

NOT_LOOKED: Final = Unavailable("resctrl's counters have not been checked yet")


@dataclass(frozen=True, slots=True)
class Counter:
    """A resctrl group that counts exactly one workload.

    ``since``: a number that grows whenever many threads move into the group. Two readings with different numbers give
    no rate.
    """

    group: rdt.GroupRef
    since: int = 0


@dataclass(frozen=True, slots=True)
class CountedGroups:
    """The counting groups by workload.

    Args:
        resctrl: the tree that contains them; None: there is none.
        counters: by workload name.
        missing: why a workload is not counted, by name.
        otherwise: why all other workloads are not counted.
        in_turns: workloads counted only part of the time, because monitoring ids are scarce.
        epoch: grows when the tree's domains have changed, so that files must be reopened.
        notes: why workloads are not counted, as sentences for an operator.
    """

    resctrl: rdt.Resctrl | None = None
    counters: Mapping[str, Counter] = field(default_factory=dict)
    missing: Mapping[str, Unavailable] = field(default_factory=dict)
    otherwise: Unavailable = NOT_LOOKED
    in_turns: frozenset[str] = frozenset()
    epoch: int = 0
    notes: tuple[str, ...] = ()

    def why_not(self, workload: str) -> Unavailable:
        """Reason why a workload without a counter is not counted."""
        return self.missing.get(workload, self.otherwise)


NOTHING_COUNTED: Final = CountedGroups()
