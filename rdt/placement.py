"""Search for the places of masks in one cache domain, on plain integers; used by ``rdt.masks``.

Ways form a line, low to high. Exclusive items do not overlap. All others lie in the common segment, which
begins behind the last exclusive item and reaches to the high end, where batch is anchored. (``rdt.masks``
mirrors a cache whose batch end is the low one.)

The cost of a place is the number of ways newly given to an item, counted once per member, because each must
be filled from memory again. A changed mask adds a much smaller cost. The search is A* over states (position
reached, items still to place). Its lower bound is the sum of each remaining item's cheapest place. Dynamic
programming over layouts that keep the present order gives the first answer, which is usually optimal.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

WAY_COST = 1 << 12
"""Cost of one remapped way. A changed mask costs 1, which only breaks ties."""
NEVER = 1 << 48

_Entry: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Heap entry: priority (two numbers), serial number, bound, cost so far, bound and total ways of the items
still to place, state.

The state holds the position reached in its high bits and one bit for each item still to place in its low
bits.
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One mask to place: its width, and the present masks of the groups that share it (0: no mask yet)."""

    ways: int
    present: tuple[int, ...] = ()


def costs(item: Item, allowed: int, width: int) -> list[int]:
    """Cost of placing the mask at each first way; NEVER if the mask would leave ``allowed``."""
    ways = item.ways
    mask = (1 << ways) - 1
    full = ways * len(item.present) * WAY_COST + len(item.present)
    table = (
        ([full] * (width - ways + 1) + [NEVER] * ways)[: width + 1]
        if ways <= width
        else [NEVER] * (width + 1)
    )
    for present in item.present:
        if not present:
            continue
        lowest = (present & -present).bit_length() - 1
        for start in range(max(0, lowest - ways + 1), min(present.bit_length(), width - ways + 1)):
            placed = mask << start
            table[start] -= (placed & present).bit_count() * WAY_COST + (placed == present)
    if allowed != (1 << width) - 1:
        for start in range(width - ways + 1):
            if mask << start & ~allowed:
                table[start] = NEVER
    return table


def best_from(table: list[int]) -> list[int]:
    """The lowest cost at or above each first way."""
    best = table[:]
    for start in range(len(best) - 2, -1, -1):
        best[start] = min(best[start], best[start + 1])
    return best


def place_exclusive(
    tables: Sequence[list[int]], ways: Sequence[int], tail: list[int], effort: int
) -> tuple[list[int], bool] | None:
    """First ways of items that must not overlap, given each item's cost table; None if there is no such
    layout.

    ``tail[p]``: cost of all other items if the last exclusive item ends before way ``p``; it never decreases.
    ``effort``: maximum number of states searched after the first answer. The returned flag is True if the
    answer is proven optimal.
    """
    lower = [best_from(table) for table in tables]
    bound = sum(each[0] for each in lower) + tail[min(sum(ways), len(tail) - 1)]
    if bound >= NEVER or sum(ways) >= len(tail):
        return None
    starts, known = _in_order(tables, ways, tail)
    if starts is not None and known == bound:
        return starts, True
    better, proven = _search(tables, ways, tail, lower, known, effort)
    found = better or starts
    return None if found is None else (found, proven)


def _in_order(
    tables: Sequence[list[int]], ways: Sequence[int], tail: list[int]
) -> tuple[list[int] | None, int]:
    """The best layout that keeps the items in their given order."""
    width = len(tail) - 1
    reach = [0] * (width + 1)  # lowest cost at which all items so far end at or before this way
    chosen: list[list[int]] = []
    for table, size in zip(tables, ways, strict=True):
        ends = [NEVER] * (width + 1)
        start_of = [0] * (width + 1)
        least, least_start = NEVER, 0
        for start in range(width - size + 1):
            cost = reach[start] + table[start]
            if cost < least:
                least, least_start = cost, start
            ends[start + size] = least
            start_of[start + size] = least_start
        reach = ends
        chosen.append(start_of)
    total, end = min((cost + rest, end) for end, (cost, rest) in enumerate(zip(reach, tail, strict=True)))
    if total >= NEVER:
        return None, NEVER
    starts: list[int] = []
    for start_of in reversed(chosen):
        end = start_of[end]
        starts.append(end)
    return starts[::-1], total


def _search(
    tables: Sequence[list[int]],
    ways: Sequence[int],
    tail: list[int],
    lower: Sequence[list[int]],
    known: int,
    effort: int,
) -> tuple[list[int] | None, bool]:
    """The cheapest layout below the cost ``known``, if there is one.

    When ``effort`` is used up, the search continues depth first to any layout and reports it as not proven.
    """
    width, count = len(tail) - 1, len(ways)
    rises = [
        [(1 << index, low[p + 1] - low[p]) for index, low in enumerate(lower) if low[p + 1] != low[p]]
        for p in range(width)
    ]
    everything = (1 << count) - 1
    seen: dict[int, int] = {everything: 0}
    came: dict[int, tuple[int, int]] = {}
    alone = sum(low[0] for low in lower)
    heap: list[_Entry] = [(0, 0, 0, alone + tail[sum(ways)], 0, alone, sum(ways), everything)]
    ticket = looked = 0
    straight = False
    while heap:
        *_, bound, spent, rest, size, state = heapq.heappop(heap)
        if bound >= known:
            if straight:
                continue
            return None, True
        if spent > seen[state]:
            continue
        position, items = state >> count, state & everything
        if not items:
            return _starts(came, state, count), not straight
        looked += 1
        if looked > effort and not straight:
            straight = True
            heap = [(entry[6], entry[3], *entry[2:]) for entry in heap]
            heapq.heapify(heap)
        elif looked > 2 * effort and known < NEVER:
            return None, False
        slack = position + size < width
        limit = known - bound
        left = items
        while left or slack:
            if slack:  # leave one way free
                slack = False
                index, after, items_after = -1, position + 1, items
                spent_after, rest_after, size_after = spent, rest, size
            else:
                lowest = left & -left
                left ^= lowest
                index = lowest.bit_length() - 1
                cost, least = tables[index][position], lower[index][position]
                if cost - least >= limit:
                    continue
                after, items_after = position + ways[index], items ^ lowest
                spent_after, rest_after, size_after = spent + cost, rest - least, size - ways[index]
            for p in range(position, after):
                for bit, rise in rises[p]:
                    if items_after & bit:
                        rest_after += rise
            bound_after = spent_after + rest_after + tail[after + size_after]
            if bound_after >= known:
                continue
            state_after = after << count | items_after
            if spent_after < seen.get(state_after, NEVER):
                seen[state_after] = spent_after
                came[state_after] = (state, index)
                ticket += 1
                first, second = (size_after, bound_after) if straight else (bound_after, size_after)
                entry = (first, second, ticket, bound_after, spent_after, rest_after, size_after, state_after)
                heapq.heappush(heap, entry)
    return None, not straight


def _starts(came: dict[int, tuple[int, int]], state: int, count: int) -> list[int]:
    starts = [0] * count
    while state in came:
        state, index = came[state]
        if index >= 0:
            starts[index] = state >> count
    return starts
