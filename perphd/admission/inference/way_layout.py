"""Layout of cache ways by ``rdt``'s solver: batch's ways, and separate ways of LRAs. Pure.

The solver keeps batch at the end of the cache that devices share, if any, and moves as few ways as possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perphd.domain.policy import HostView
from rdt.cbm import Cbm
from rdt.layout import CacheDomain, Infeasible, Layout
from rdt.masks import Demand, Use, solve

BATCH: Final = "\N{BULLET} batch"
"""Name of all batch in the solver's demands. No workload can have this name."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Masks of one L3 domain in which LRAs have separate ways.

    ``masks``: masks by LRA. ``batch``: batch's mask. ``pooled``: groups of LRAs that share a CLOSID, and therefore
    ways.
    """

    masks: tuple[tuple[str, int], ...]
    batch: int
    pooled: tuple[tuple[str, ...], ...] = ()

    def ways(self, name: str) -> int:
        """Number of ways of an LRA; 0 for an LRA without separate ways."""
        return next((mask.bit_count() for each, mask in self.masks if each == name), 0)


def cache_domain(host: HostView) -> CacheDomain:
    """One domain's cache as input of the solver."""
    return _cache_domain(host.llc_ways, host.min_cbm_bits, host.llc_shareable)


def batch_mask(host: HostView, ways: int) -> int:
    """Batch's mask with a number of ways."""
    return _batch_mask(cache_domain(host), max(ways, host.min_cbm_bits))


def lay_apart(
    host: HostView, needs: Mapping[str, int], batch_ways: int, closids: int, present: Mapping[str, int]
) -> Apart:
    """Separate ways for these LRAs: each gets at least as many as it needs, and the rest is distributed in
    rotation.

    Args:
        host: the host with its cache.
        needs: number of ways that each LRA needs, by name.
        batch_ways: ways that batch keeps.
        closids: CLOSIDs available for this.
        present: present masks by LRA, so that few ways move.

    Raises:
        Infeasible: there are too few ways, too few contiguous ways, or too few CLOSIDs.
    """
    best: Layout | None = None
    wanted, order = dict(needs), sorted(needs, key=lambda name: (-needs[name], name))
    turn = 0
    while True:
        try:
            best = _solved(host, wanted, batch_ways, closids, present)
        except Infeasible:
            if best is None:
                raise
            break
        wanted[order[turn % len(order)]] += 1
        turn += 1
    masks = tuple((name, best.masks_of(name)[0].bits) for name in sorted(needs))
    pools = tuple(each.groups for each in best.classes if len(each.groups) > 1)
    return Apart(masks, best.masks_of(BATCH)[0].bits, pools)


def _solved(
    host: HostView, needs: Mapping[str, int], batch_ways: int, closids: int, present: Mapping[str, int]
) -> Layout:
    demands = [Demand.of(name, {0: ways}, Use.EXCLUSIVE) for name, ways in needs.items()]
    demands.append(Demand.of(BATCH, {0: max(batch_ways, host.min_cbm_bits)}, Use.BATCH))
    held = Layout.present({name: {0: Cbm(mask)} for name, mask in present.items()})
    return solve(demands, {0: cache_domain(host)}, closids=closids, present=held)


@lru_cache(maxsize=16)
def _cache_domain(ways: int, min_cbm_bits: int, shareable: int) -> CacheDomain:
    return CacheDomain(Cbm.span(0, ways), max(1, min_cbm_bits), Cbm(shareable))


@lru_cache(maxsize=256)
def _batch_mask(cache: CacheDomain, ways: int) -> int:
    return solve([Demand.of(BATCH, {0: ways}, Use.BATCH)], {0: cache}, closids=1).masks_of(BATCH)[0].bits
