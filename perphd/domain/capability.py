"""What this host can measure and enforce: found once at start, each item present or absent with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Area(StrEnum):
    """What a capability is for."""

    MEASURE = "measure"
    ENFORCE = "enforce"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing the host can or cannot do.

    ``detail`` says what was found (when present) or the evidence of its absence (errno, missing file);
    ``cost`` what perphd cannot do without it, ``remedy`` how a person gets it; both empty when present.
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
        """True if present; an unknown name is False."""
        return any(item.present for item in self.items if item.name == name)
