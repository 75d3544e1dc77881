"""Capabilities of this host: probed once at start, each present or absent with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Area(StrEnum):
    """The purpose for which perphd needs a capability."""

    MEASURE = "measure"
    ENFORCE = "enforce"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing the host can or cannot do.

    ``detail``: what was found or, if the capability is absent, the evidence (errno, missing file). ``cost``: what
    perphd cannot do without the capability. ``remedy``: how to get it. Cost and remedy are empty if it is present.
    """

    name: str
    area: Area
    present: bool
    detail: str
    cost: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The whole report, in display order; names are unique."""

    items: tuple[Capability, ...]

    def __iter__(self) -> Iterator[Capability]:
        return iter(self.items)

    def __getitem__(self, name: str) -> Capability:
        """The capability of this name; KeyError for a name that was never probed."""
        for item in self.items:
            if item.name == name:
                return item
        raise KeyError(name)

    def has(self, name: str) -> bool:
        """True if this host has the capability; False for an unknown name."""
        return any(item.present for item in self.items if item.name == name)
