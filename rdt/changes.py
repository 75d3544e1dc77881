"""What a change of a group came to, and how the machine has changed."""

from __future__ import annotations

from dataclasses import dataclass

from rdt.schemata import Cell, Schemata


@dataclass(frozen=True, slots=True)
class Applied:
    """A schemata change that was written and read back."""

    before: Schemata
    after: Schemata
    wrote: Schemata
    """What differed and was written; empty if all was as wanted."""
    absent: tuple[Cell, ...] = ()
    """Wanted, but in domains that are not there now (all their CPUs are offline)."""

    @property
    def undo(self) -> Schemata:
        """The values that were replaced: applying them puts things back."""
        return self.wrote.restored_by(self.before)


@dataclass(frozen=True, slots=True)
class CpusChanged:
    """A group's CPUs before and after a change."""

    before: frozenset[int]
    after: frozenset[int]


@dataclass(frozen=True, slots=True)
class DomainChange:
    """How the domains that exist now differ from those of the description (CPU hotplug)."""

    vanished: tuple[Cell, ...]
    appeared: tuple[Cell, ...]

    def __bool__(self) -> bool:
        return bool(self.vanished or self.appeared)
