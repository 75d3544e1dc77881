"""Assigns workloads to control groups; the most similar ones share if there are too few CLOSIDs.

LRAs have priority: as long as batch jobs can share, each LRA has its own group. An LRA never shares with batch, which
is restricted for the LRA's benefit. Sharing batch jobs get the strictest of their settings, so that no protected LRA
loses anything; sharing LRAs get the widest of theirs. Existing sharing is kept where possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from rdt import Schemata
from rdt.schemata import is_cache


@dataclass(frozen=True, slots=True)
class Want:
    """The schemata wanted for one workload."""

    schemata: Schemata
    lra: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """A control group: its key, its members, and its schemata."""

    key: str
    names: tuple[str, ...]
    schemata: Schemata


@dataclass(frozen=True, slots=True)
class _Part:
    names: tuple[str, ...]
    want: Want


def assign(
    wanted: Mapping[str, Want], present: Mapping[str, frozenset[str]], room: int, least_bits: int = 1
) -> tuple[Pool, ...]:
    """Assign workloads to at most ``room`` groups, but at least one for LRAs and one for batch.

    Args:
        wanted: the schemata wanted for each workload.
        present: the members of each existing group, by its key.
        room: control groups that perphd may have.
        least_bits: ways that a mask must have.
    """
    home = {name: key for key, names in present.items() for name in names}
    parts = _alike(wanted, home, len(wanted) - room)
    while len(parts) > room:
        pairs = [(one, two) for one, two in combinations(parts, 2) if one.want.lra is two.want.lra]
        if not pairs:
            break
        one, other = min(pairs, key=lambda pair: _cost(pair[0], pair[1], home))
        parts = [part for part in parts if part not in (one, other)]
        names = tuple(sorted((*one.names, *other.names)))
        parts.append(_Part(names, Want(_both(one.want, other.want, least_bits), one.want.lra)))
    return _named(parts, present)


def _alike(wanted: Mapping[str, Want], home: Mapping[str, str], excess: int) -> list[_Part]:
    """Combine workloads with equal schemata, only as many as are in excess, batch first."""
    classes: dict[Want, list[str]] = {}
    for name, want in wanted.items():
        classes.setdefault(want, []).append(name)
    parts: list[_Part] = []
    for want, names in sorted(classes.items(), key=lambda item: item[0].lra):
        crowd = Counter(home[name] for name in names if name in home)
        names.sort(key=lambda name: (-crowd[home.get(name, "")], home.get(name, ""), name))
        count = min(len(names), excess + 1) if excess > 0 else 1
        excess -= count - 1
        parts += [
            _Part(tuple(sorted(names[:count])), want),
            *(_Part((name,), want) for name in names[count:]),
        ]
    return parts


def _cost(one: _Part, other: _Part, home: Mapping[str, str]) -> tuple[bool, int, bool, int, tuple[str, ...]]:
    """Sort key for mergers: batch before LRAs, then similar schemata, parts already together, and small before large
    parts.
    """
    homes = {home.get(name, "") for name in (*one.names, *other.names)}
    apart = len(homes) > 1 or "" in homes
    names = tuple(sorted((*one.names, *other.names)))
    return one.want.lra, _distance(one.want.schemata, other.want.schemata), apart, len(names), names


def _distance(one: Schemata, other: Schemata) -> int:
    """Distance between two schemata: number of differing ways, plus bandwidth difference in units of 10 %."""
    total = 0
    for cell, value in one.cells():
        there = other.get(cell.resource, cell.domain)
        if there is not None and there != value:
            differ = (value ^ there).bit_count() if is_cache(cell.resource) else -(-abs(value - there) // 10)
            total += differ
    return total


def _both(one: Want, other: Want, least_bits: int) -> Schemata:
    """In every cell the stricter of both values for batch, the wider for LRAs."""
    if one.schemata == other.schemata:
        return one.schemata
    values: dict[str, dict[int, int]] = {}
    for cell, value in one.schemata.merged(other.schemata).cells():
        here = one.schemata.get(cell.resource, cell.domain)
        there = other.schemata.get(cell.resource, cell.domain)
        values.setdefault(cell.resource, {})[cell.domain] = (
            value
            if here is None or there is None
            else _merged(cell.resource, here, there, one.lra, least_bits)
        )
    return Schemata.of(values)


def _merged(resource: str, here: int, there: int, lra: bool, least_bits: int) -> int:
    if not is_cache(resource):
        return max(here, there) if lra else min(here, there)
    if lra:
        union = here | there
        low = (union & -union).bit_length() - 1
        return (1 << union.bit_length()) - (1 << low)  # masks must be contiguous
    if (both := here & there).bit_count() >= max(1, least_bits):
        return both
    # The intersection is empty or too narrow for a mask.
    return min(here, there, key=lambda mask: (mask.bit_count(), mask))


def _named(parts: list[_Part], present: Mapping[str, frozenset[str]]) -> tuple[Pool, ...]:
    """Name the groups: each keeps the key under which most of its members are; new ones are named after a member."""
    found: dict[str, _Part] = {}
    for part in sorted(parts, key=lambda part: (-len(part.names), not _is_home(part, present), part.names)):
        inside = {key: len(names & set(part.names)) for key, names in present.items() if key not in found}
        best = max(inside, key=lambda key: (inside[key], key in part.names, key), default="")
        found[best if best and inside[best] else _free(part.names, {*found, *present})] = part
    return tuple(Pool(key, part.names, part.want.schemata) for key, part in sorted(found.items()))


def _is_home(part: _Part, present: Mapping[str, frozenset[str]]) -> bool:
    """True if a member is in the group of its own name, which then stays reserved for it."""
    return any(name in present.get(name, ()) for name in part.names)


def _free(names: tuple[str, ...], taken: set[str]) -> str:
    """A key that no group has."""
    named = (*names, *(f"{names[0]}~{number}" for number in range(2, len(taken) + 3)))
    return next(key for key in named if key not in taken)
