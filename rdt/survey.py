"""Who holds the machine's CLOSIDs and RMIDs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rdt.names import GroupRef

_SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True)
class Survey:
    """Who holds the machine's CLOSIDs and RMIDs. The default group is in none of the lists."""

    own: tuple[GroupRef, ...]
    others: tuple[GroupRef, ...]
    closids: int
    """CLOSIDs there are, the default group's included."""
    rmids: int | None
    """RMIDs there are; None without monitoring."""

    @property
    def closids_used(self) -> int:
        """By the default group and all control groups."""
        return 1 + sum(not group.monitor for group in (*self.own, *self.others))

    @property
    def closids_free(self) -> int:
        """How many more control groups there may be."""
        return max(self.closids - self.closids_used, 0)

    @property
    def rmids_used(self) -> int:
        """By all groups. Those in limbo, which resctrl shows nowhere, come on top."""
        return 1 + len(self.own) + len(self.others)

    def controls(self, groups: Iterable[GroupRef]) -> tuple[GroupRef, ...]:
        """The control groups among these."""
        return tuple(group for group in groups if not group.monitor)

    def __str__(self) -> str:
        own, others = self.controls(self.own), self.controls(self.others)
        rmids = "" if self.rmids is None else f"; {self.rmids_used} of {self.rmids} RMIDs"
        return (
            f"{self.closids_used} of {self.closids} CLOSIDs are taken: 1 by the default group, "
            f"{len(own)} by own groups{_names(own)}, {len(others)} by others{_names(others)}{rmids}"
        )


def _names(groups: tuple[GroupRef, ...]) -> str:
    if not groups:
        return ""
    shown = [group.control for group in groups[:_SHOWN_NAMES]]
    return f" ({', '.join(shown)}{', ...' if len(groups) > _SHOWN_NAMES else ''})"
