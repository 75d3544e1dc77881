"""Cache ways as ``rdt``'s solver lays them out: batch's ways, and ways of their own for LRAs. Pure.

The solver keeps batch at the end of the cache that devices share, if there is one, and moves as few ways as possible.
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
"""The name of all batch together in the solver's demands: no workload can have it."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Masks of one L3 domain in which LRAs have ways of their own.

    ``masks``: of each of them; ``batch``: batch's. ``pooled``: LRAs that share a CLOSID, and with it their ways.
    """

    masks: tuple[tuple[str, int], ...]
    batch: int
    pooled: tuple[tuple[str, ...], ...] = ()

    def ways(self, name: str) -> int:
        """Ways of an LRA's mask; 0 for one that is not in it."""
        return next((mask.bit_count() for each, mask in self.masks if each == name), 0)


def cache_domain(host: HostView) -> CacheDomain:
    """One domain's cache, as the solver wants it."""
    return _cache_domain(host.llc_ways, host.min_cbm_bits, host.llc_shareable)


def batch_mask(host: HostView, ways: int) -> int:
    """Batch's mask with so many ways."""
    return _batch_mask(cache_domain(host), max(ways, host.min_cbm_bits))


def lay_apart(
    host: HostView, needs: Mapping[str, int], batch_ways: int, closids: int, present: Mapping[str, int]
) -> Apart:
    """Ways of their own for these LRAs, at least as many as each needs; what is left over goes to them in turns.

    Args:
        host: for its cache.
        needs: ways by LRA.
        batch_ways: ways that batch keeps, beside theirs.
        closids: control groups that all of this may take.
        present: masks by LRA as they are now, to move as few ways as possible.

    Raises:
        Infeasible: there are not so many ways, not side by side, or not so many CLOSIDs.
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
