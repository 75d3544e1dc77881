"""Pooling: which groups share a CLOSID if there are more groups than CLOSIDs.

Pooled shared or batch groups get the widest of their demands, pooled exclusive groups the sum of theirs. They
are then no longer isolated from each other, but keep their ways against all others. Batch is pooled first,
then shared groups, then exclusive ones. Shared groups are pooled with batch only as a last resort, because
throttling of batch must not slow down a protected group. Exclusive groups are never pooled with others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rdt.frozen import FrozenDict


class Use(Enum):
    """A group's use of the cache."""

    EXCLUSIVE = "exclusive"
    """No other group's mask overlaps its mask."""
    SHARED = "shared"
    """May overlap other shared masks and batch."""
    BATCH = "batch"
    """Shared, at the end of the cache that I/O uses."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of one group: a number of ways in each domain in which it runs.

    In other domains it gets the narrowest mask at the batch end, because a control group has a mask in every
    domain. A mask is never narrower than ``min_cbm_bits``.
    """

    group: str
    ways: FrozenDict[int, int]
    use: Use = Use.SHARED

    @classmethod
    def of(cls, group: str, ways: Mapping[int, int], use: Use = Use.SHARED) -> Demand:
        """Make a demand. ``ways``: number of ways by domain id."""
        return cls(group, FrozenDict(ways), use)

    def __post_init__(self) -> None:
        for domain, ways in self.ways.items():
            if ways < 1:
                raise ValueError(f"{self.group}: {ways} ways in domain {domain}; a mask has at least one way")


@dataclass(frozen=True, slots=True)
class Pool:
    """Demands that share a CLOSID; usually only one."""

    members: tuple[Demand, ...]
    use: Use

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups."""
        return tuple(member.group for member in self.members)

    def ways(self, domain: int, min_cbm_bits: int = 1) -> int | None:
        """Ways that the pool needs in a domain; None if no member has a need there."""
        wanted = [
            max(ways, min_cbm_bits) for each in self.members if (ways := each.ways.get(domain)) is not None
        ]
        if not wanted:
            return None
        return sum(wanted) if self.use is Use.EXCLUSIVE else max(wanted)


_RANK: dict[frozenset[Use], int] = {
    frozenset({Use.BATCH}): 0,
    frozenset({Use.SHARED}): 1,
    frozenset({Use.EXCLUSIVE}): 2,
    frozenset({Use.SHARED, Use.BATCH}): 3,
}
_KEPT_TOGETHER_WAYS = 1
"""Similarity bonus, in ways per domain, for groups that already share a pool; it keeps pools stable."""


def pool(
    demands: Sequence[Demand], closids: int, together: Iterable[tuple[str, ...]] = ()
) -> list[Pool] | int:
    """Divide the demands into at most ``closids`` pools, or return the minimum number of CLOSIDs.

    ``together``: the present pools. The most similar demands are pooled first; ties are broken by pool size,
    then by name.
    """
    alive = {number: Pool((each,), each.use) for number, each in enumerate(demands)}
    if len(alive) <= closids:
        return list(alive.values())
    was = {group: number for number, groups in enumerate(together) for group in groups}
    heap: list[tuple[int, int, int, tuple[str, ...], int, int]] = []

    def offer(a: int, b: int) -> None:
        one, other = alive[a], alive[b]
        rank = _RANK.get(frozenset((one.use, other.use)))
        if rank is not None:
            groups = tuple(sorted(one.groups + other.groups))
            heap.append((rank, _distance(one, other, was), len(groups), groups, a, b))

    for a in alive:
        for b in range(a):
            offer(a, b)
    heapq.heapify(heap)
    following = len(alive)
    while len(alive) > closids and heap:
        *_, a, b = heapq.heappop(heap)
        if a not in alive or b not in alive:
            continue
        one, other = alive.pop(a), alive.pop(b)
        members = tuple(sorted(one.members + other.members, key=lambda each: each.group))
        use = one.use if one.use is other.use else Use.BATCH
        alive[following] = Pool(members, use)
        fresh = len(heap)
        for number in alive:
            if number != following:
                offer(following, number)
        grown, heap[fresh:] = heap[fresh:], []
        for entry in grown:
            heapq.heappush(heap, entry)
        following += 1
    if len(alive) > closids:
        return len(alive)
    return sorted(alive.values(), key=lambda each: each.groups)


def _distance(one: Pool, other: Pool, was: Mapping[str, int]) -> int:
    """Dissimilarity of two pools' demands, in ways over all domains."""
    a, b = _typical(one), _typical(other)
    domains = a.keys() | b.keys()
    distance = sum(abs(a.get(domain, 0) - b.get(domain, 0)) for domain in domains)
    homes = {was.get(group, -1) for group in one.groups + other.groups}
    if len(homes) == 1 and -1 not in homes:
        distance -= _KEPT_TOGETHER_WAYS * len(domains)
    return distance


def _typical(pool: Pool) -> dict[int, int]:
    """The widest demand of any member in each domain."""
    widest: dict[int, int] = {}
    for member in pool.members:
        for domain, ways in member.ways.items():
            widest[domain] = max(ways, widest.get(domain, 0))
    return widest
