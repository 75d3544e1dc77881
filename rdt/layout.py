"""Types of cache way layouts: a cache domain, masks of all groups, and shortages."""

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
    """One domain of a cache: its facts from ``info/``, and the ways in other programs' masks."""

    cbm_mask: Cbm
    min_cbm_bits: int = 1
    shareable: Cbm = NO_WAYS
    taken: Cbm = NO_WAYS

    def __post_init__(self) -> None:
        if not self.cbm_mask:
            raise ValueError("a cache must have ways: cbm_mask is 0")
        if self.min_cbm_bits < 1:
            raise ValueError(f"min_cbm_bits must be at least 1, not {self.min_cbm_bits}")

    @classmethod
    def of(cls, cache: CacheInfo, taken: Cbm = NO_WAYS) -> CacheDomain:
        """Build from the facts in ``info/``, which are the same for every domain of a resource."""
        return cls(Cbm(cache.cbm_mask), cache.min_cbm_bits, Cbm(cache.shareable_bits), taken)

    @property
    def width(self) -> int:
        """Ways counted from way 0 to the highest of ``cbm_mask``."""
        return self.cbm_mask.last + 1

    @property
    def batch_end_is_low(self) -> bool:
        """True if batch is at the low end of the ways, because I/O uses only ways of the low half."""
        io = self.shareable & self.cbm_mask
        return bool(io) and io.last < self.width // 2

    @property
    def private(self) -> Cbm:
        """The ways that an exclusive mask may hold."""
        return self.cbm_mask - self.shareable - self.taken


@dataclass(frozen=True, slots=True)
class MaskClass:
    """A CLOSID: the groups that share it, and their mask in each domain."""

    groups: tuple[str, ...]
    use: Use
    masks: FrozenDict[int, Cbm]


@dataclass(frozen=True, slots=True)
class DomainLayout:
    """Properties of a layout in one domain."""

    remapped_ways: int
    """Ways newly given to groups, summed over the groups. All ways of a new group count."""
    common: Cbm
    """Ways that shared and batch masks may use."""
    free: Cbm
    """Ways in no mask."""
    proven: bool
    """True if no layout by these rules remaps fewer ways; False if the search stopped at its effort limit."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Masks of all groups, with figures per domain."""

    classes: tuple[MaskClass, ...] = ()
    domains: FrozenDict[int, DomainLayout] = FrozenDict()

    @classmethod
    def present(cls, masks: Mapping[str, Mapping[int, Cbm]], pools: Iterable[tuple[str, ...]] = ()) -> Layout:
        """A layout read back from the kernel, as the start for ``solve``.

        ``pools`` names the groups that share one control group; their masks are those of the first one.
        """
        pooled = {group: pool for pool in pools for group in pool}
        members: dict[tuple[str, ...], FrozenDict[int, Cbm]] = {}
        for group, domains in masks.items():
            members.setdefault(pooled.get(group, (group,)), FrozenDict(domains))
        return cls(tuple(MaskClass(groups, Use.SHARED, domains) for groups, domains in members.items()))

    def masks_of(self, group: str) -> FrozenDict[int, Cbm]:
        """A group's mask in each domain; KeyError if the group has none."""
        for each in self.classes:
            if group in each.groups:
                return each.masks
        raise KeyError(group)

    @property
    def pools(self) -> tuple[tuple[str, ...], ...]:
        """Groups that share a CLOSID with another group."""
        return tuple(each.groups for each in self.classes if len(each.groups) > 1)

    @property
    def remapped_ways(self) -> int:
        """Remapped ways over all domains."""
        return sum(each.remapped_ways for each in self.domains.values())


NO_LAYOUT = Layout()
"""The empty layout: no group has a mask."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A shortage that prevents a layout: of ways in ``domain``, or of CLOSIDs if ``domain`` is None."""

    domain: int | None
    wanted: int
    available: int
    text: str

    def __str__(self) -> str:
        return self.text


class Infeasible(Exception):
    """No layout fulfils the demands; ``shortages`` lists the missing resources of every domain."""

    def __init__(self, shortages: tuple[Shortage, ...]) -> None:
        self.shortages = shortages
        super().__init__("; ".join(each.text for each in shortages))
