"""Lay out cache ways: contiguous masks for the demands, with the fewest ways remapped.

A pure function of demands, caches and the present layout; nothing here touches the kernel.

The rules, per cache domain:

* An exclusive mask overlaps no other mask. It contains no way that the cache shares with I/O
  (``shareable_bits``), and no way that other programs have taken.
* Shared and batch masks lie in the common segment: all ways from behind the last exclusive mask to the batch
  end. They may overlap. Batch masks are anchored at the batch end. This is the end with the ways shared with
  I/O, so that I/O evicts batch rather than others. Without such ways it is the high end.
* Among all such layouts the one with the fewest remapped ways wins. A remapped way is newly given to a group,
  which must fill it from memory again. Ties are broken by the fewest changed masks, then by the least overlap
  of shared masks.

Each group needs a CLOSID. If there are more groups than CLOSIDs, similar groups share one (``rdt.pooling``);
the answer names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rdt.cbm import Cbm
from rdt.frozen import FrozenDict
from rdt.layout import NO_LAYOUT, CacheDomain, DomainLayout, Infeasible, Layout, MaskClass, Shortage
from rdt.placement import NEVER, Item, best_from, costs, place_exclusive
from rdt.pooling import Demand, Pool, Use, pool

__all__ = [
    "EFFORT",
    "CacheDomain",
    "Demand",
    "DomainLayout",
    "Infeasible",
    "Layout",
    "MaskClass",
    "Shortage",
    "Use",
    "solve",
]

EFFORT = 100
"""Maximum number of states searched per domain after the first answer.

With this limit, the search for 16 groups on 20 ways takes less than 1 ms.
"""


def solve(
    demands: Iterable[Demand],
    caches: Mapping[int, CacheDomain],
    *,
    closids: int,
    present: Layout = NO_LAYOUT,
    effort: int = EFFORT,
) -> Layout:
    """Masks for all demands. ``closids``: number of control groups that these demands may use.

    The order of the demands does not matter. Raises Infeasible, and ValueError if a group is named twice or a
    demand names a domain that is not in ``caches``.
    """
    wanted = sorted(demands, key=lambda each: each.group)
    _check(wanted, caches)
    pools = pool(wanted, closids, present.pools)
    if isinstance(pools, int):
        kinds = "exclusive and other groups cannot share one" if pools > 1 else "each group needs one"
        text = f"{closids} CLOSIDs for {len(wanted)} groups: at least {pools} are needed ({kinds})"
        raise Infeasible((Shortage(None, pools, closids, text),))
    held = {group: each.masks for each in present.classes for group in each.groups}
    placed = {domain: _Domain(domain, caches[domain], pools, held).solve(effort) for domain in sorted(caches)}
    if shortages := tuple(each for each in placed.values() if isinstance(each, Shortage)):
        raise Infeasible(shortages)
    answers = {domain: each for domain, each in placed.items() if not isinstance(each, Shortage)}
    classes = tuple(
        MaskClass(
            each.groups,
            each.use,
            FrozenDict({domain: masks[number] for domain, (masks, _) in answers.items()}),
        )
        for number, each in enumerate(pools)
    )
    return Layout(classes, FrozenDict({domain: figures for domain, (_, figures) in answers.items()}))


def _check(demands: list[Demand], caches: Mapping[int, CacheDomain]) -> None:
    names = [each.group for each in demands]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"named twice: {', '.join(twice)}")
    for each in demands:
        if unknown := sorted(each.ways.keys() - caches.keys()):
            raise ValueError(f"{each.group}: no cache domain {unknown[0]} (allowed: {sorted(caches)})")


class _Domain:
    """The layout problem of one domain on plain integers.

    The ways are mirrored if necessary, so that batch is at the high end.
    """

    def __init__(
        self, domain: int, cache: CacheDomain, pools: list[Pool], held: Mapping[str, Mapping[int, Cbm]]
    ) -> None:
        self._domain, self._cache = domain, cache
        self._width = cache.width
        self._cbm = self._turned(cache.cbm_mask)
        self._private = self._turned(cache.private).bits
        self._items: list[Item] = []
        self._uses: list[Use] = []
        for each in pools:
            ways = each.ways(domain, cache.min_cbm_bits)
            self._uses.append(Use.BATCH if ways is None else each.use)
            self._items.append(
                Item(ways or cache.min_cbm_bits, tuple(self._held(group, held) for group in each.groups))
            )
        self._end = self._cbm.last + 1
        self._end_run = self._cbm.runs()[-1].ways

    def _turned(self, mask: Cbm) -> Cbm:
        inside = mask & Cbm.span(0, self._width)
        return inside.mirrored(self._width) if self._cache.batch_end_is_low else inside

    def _held(self, group: str, held: Mapping[str, Mapping[int, Cbm]]) -> int:
        mask = held.get(group, {}).get(self._domain)
        return 0 if mask is None else self._turned(mask).bits

    def solve(self, effort: int) -> tuple[list[Cbm], DomainLayout] | Shortage:
        """The pools' masks with their figures, or the shortage."""
        exclusive = self._of(Use.EXCLUSIVE)
        exclusive.sort(key=self._order)
        shared = {
            number: costs(self._items[number], self._cbm.bits, self._width) for number in self._of(Use.SHARED)
        }
        tail = self._tail(list(shared.values()))
        open_ways = self._private & _span(0, max(0, sum(1 for cost in tail if cost < NEVER) - 1))
        found = place_exclusive(
            [costs(self._items[number], open_ways, self._width) for number in exclusive],
            [self._items[number].ways for number in exclusive],
            tail,
            effort,
        )
        if found is None:
            return self._shortage()
        starts, proven = found
        masks = [0] * len(self._items)
        border = 0
        for number, start in zip(exclusive, starts, strict=True):
            masks[number] = _span(start, self._items[number].ways)
            border = max(border, start + self._items[number].ways)
        for number in self._of(Use.BATCH):
            ways = self._items[number].ways
            masks[number] = _span(self._end - ways, ways)
        placed_masks = [masks[number] for number in self._of(Use.BATCH)]
        for number in sorted(shared, key=self._order):
            masks[number] = _least_overlap(shared[number], self._items[number].ways, border, placed_masks)
            placed_masks.append(masks[number])
        return [self._turned(Cbm(mask)) for mask in masks], self._figures(masks, border, proven)

    def _of(self, use: Use) -> list[int]:
        return [number for number, each in enumerate(self._uses) if each is use]

    def _order(self, number: int) -> tuple[int, int, int]:
        """Sort key: pools with a mask by position, low first; then pools without a mask, wide ones first."""
        item = self._items[number]
        present = max(item.present)
        return (present & -present or 1 << self._width), -item.ways, number

    def _tail(self, shared: list[list[int]]) -> list[int]:
        """For each way, the cost of all shared and batch masks if the common segment begins there."""
        tail = [0] * (self._width + 1)
        for table in shared:
            tail = [sum(pair) for pair in zip(tail, best_from(table), strict=True)]
        batch = max((self._items[number].ways for number in self._of(Use.BATCH)), default=0)
        if batch:
            first = self._end - batch if batch <= self._end_run else -1
            tail[first + 1 :] = [NEVER] * (self._width - first)
        return tail

    def _figures(self, masks: list[int], border: int, proven: bool) -> DomainLayout:
        used = remapped = 0
        for item, mask in zip(self._items, masks, strict=True):
            used |= mask
            remapped += sum((mask & ~present).bit_count() for present in item.present)
        common = self._cbm - Cbm.span(0, border)
        return DomainLayout(remapped, self._turned(common), self._turned(self._cbm - Cbm(used)), proven)

    def _shortage(self) -> Shortage:
        exclusive = sum(self._items[number].ways for number in self._of(Use.EXCLUSIVE))
        batch = max((self._items[number].ways for number in self._of(Use.BATCH)), default=0)
        shared = max((self._items[number].ways for number in self._of(Use.SHARED)), default=0)
        widest = max(run.ways for run in self._cbm.runs())
        where = f"domain {self._domain} ({self._cache.cbm_mask.ways} ways)"
        if batch > self._end_run or shared > widest:
            needed, there = (batch, self._end_run) if batch > self._end_run else (shared, widest)
            return Shortage(
                self._domain, needed, there,
                f"{where}: a shared mask needs {needed} adjacent ways, but at most {there} are adjacent",
            )  # fmt: skip
        common = max(batch, shared)
        left = (self._private & _span(0, self._end - common)).bit_count()
        text = f"{where}: {exclusive} exclusive ways are wanted beside {common} shared ones, but only {left} are left"
        reasons = []
        if io := (self._cache.shareable & self._cache.cbm_mask).ways:
            reasons.append(f"{io} are shared with I/O and cannot be exclusive")
        if taken := (self._cache.taken & self._cache.cbm_mask).ways:
            reasons.append(f"{taken} are taken by others")
        if exclusive <= left:
            reasons.append("they are enough in number, but not adjacent")
        return Shortage(self._domain, exclusive, left, text + "".join(f"; {reason}" for reason in reasons))


def _span(first: int, ways: int) -> int:
    return ((1 << ways) - 1) << first


def _least_overlap(table: list[int], ways: int, border: int, placed_masks: list[int]) -> int:
    """The cheapest place behind ``border`` with the least overlap with other masks; on ties the lowest."""
    least = min(table[border:])
    places = [_span(start, ways) for start in range(border, len(table)) if table[start] == least]
    return min(places, key=lambda mask: sum((mask & other).bit_count() for other in placed_masks))
