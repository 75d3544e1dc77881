"""The nouns of laying out cache ways: a cache domain, masks for everybody, and what is missing for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdt.cbm import NO_WAYS, Cbm
from rdt.frozen import FrozenDict
from rdt.pooling import Use

if TYPE_CHECKING:
    from rdt.info import CacheInfo


@dataclass(frozen=True, slots=True)
class CacheDomain:
    """One domain of a cache: what ``info/`` says of it, and which ways masks of other programs hold."""

    cbm_mask: Cbm
    min_cbm_bits: int = 1
    shareable: Cbm = NO_WAYS
    taken: Cbm = NO_WAYS

    def __post_init__(self) -> None:
        if not self.cbm_mask:
            raise ValueError("a cache without ways")
        if self.min_cbm_bits < 1:
            raise ValueError(f"min_cbm_bits is at least 1, not {self.min_cbm_bits}")

    @classmethod
    def of(cls, cache: CacheInfo, taken: Cbm = NO_WAYS) -> CacheDomain:
        """From what ``info/`` says; it is the same for every domain of a resource."""
        return cls(Cbm(cache.cbm_mask), cache.min_cbm_bits, Cbm(cache.shareable_bits), taken)

    @property
    def width(self) -> int:
        """Ways counted from way 0 to the highest of ``cbm_mask``."""
        return self.cbm_mask.last + 1

    @property
    def batch_end_is_low(self) -> bool:
        """True where I/O shares ways of the low half only; otherwise batch is at the high end."""
        io = self.shareable & self.cbm_mask
        return bool(io) and io.last < self.width // 2

    @property
    def private(self) -> Cbm:
        """The ways that an exclusive mask may hold."""
        return self.cbm_mask - self.shareable - self.taken


@dataclass(frozen=True, slots=True)
class MaskClass:
    """One CLOSID's worth: the groups that share it, and their mask in each domain."""

    groups: tuple[str, ...]
    use: Use
    masks: FrozenDict[int, Cbm]


@dataclass(frozen=True, slots=True)
class DomainLayout:
    """What a layout means for one domain."""

    remapped_ways: int
    """Ways that groups get and did not have, summed over the groups; new groups count fully."""
    common: Cbm
    """Ways that shared and batch masks may lie in."""
    free: Cbm
    """Ways in nobody's mask."""
    proven: bool
    """True if no layout by these rules remaps less; False if the search's effort ended first."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Masks for everybody, and how they came about."""

    classes: tuple[MaskClass, ...] = ()
    domains: FrozenDict[int, DomainLayout] = FrozenDict()

    @classmethod
    def present(cls, masks: Mapping[str, Mapping[int, Cbm]], pools: Iterable[tuple[str, ...]] = ()) -> Layout:
        """A layout as read back from the kernel, for ``solve`` to start from. ``pools`` names the groups that share
        one control group; their masks are those of the first named.
        """
        pooled = {group: pool for pool in pools for group in pool}
        members: dict[tuple[str, ...], FrozenDict[int, Cbm]] = {}
        for group, domains in masks.items():
            members.setdefault(pooled.get(group, (group,)), FrozenDict(domains))
        return cls(tuple(MaskClass(groups, Use.SHARED, domains) for groups, domains in members.items()))

    def masks_of(self, group: str) -> FrozenDict[int, Cbm]:
        """A group's mask in each domain; KeyError if it has none."""
        for each in self.classes:
            if group in each.groups:
                return each.masks
        raise KeyError(group)

    @property
    def pools(self) -> tuple[tuple[str, ...], ...]:
        """The groups that share a CLOSID with another."""
        return tuple(each.groups for each in self.classes if len(each.groups) > 1)

    @property
    def remapped_ways(self) -> int:
        """Over all domains."""
        return sum(each.remapped_ways for each in self.domains.values())


NO_LAYOUT = Layout()
"""Nobody has a mask yet."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing for a layout; ``domain`` is None where CLOSIDs are."""

    domain: int | None
    wanted: int
    available: int
    text: str

    def __str__(self) -> str:
        return self.text


class Infeasible(Exception):
    """No layout fulfils the demands; ``shortages`` says what is missing, for every domain."""

    def __init__(self, shortages: tuple[Shortage, ...]) -> None:
        self.shortages = shortages
        super().__init__("; ".join(each.text for each in shortages))
