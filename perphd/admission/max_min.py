"""Max-min division of cores among LRAs that want more than there are, and how busy cores are. Pure.

Problem: each LRA has a curve of scores over its number of cores (``core_curve``), which never falls; 1 is its target.
Approach: water-filling, by priority class. Within a class the level rises until the cores that all need for it are
spent: the worst score is the greatest that any division has. What is left goes to the LRA that the fewest cores bring
on target, then to whoever it brings furthest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.domain.smt import thread_speed

IDLE_BUSY: Final = 0.58
"""Busy share of many CPUs up to which an LRA does not wait for them; ``IDLE_FEW`` less per CPU^-1."""
IDLE_FEW: Final = 0.3
LEAST_GAIN: Final = 1.10
"""The worst score must win by this factor, or cores that others need as well are not moved."""


def base_demand(usage_cpus: float, busy_share: float, threads_per_core: int) -> float:
    """What a use of CPUs comes to when no sibling is busy, from the busy share of the CPUs that it was spread over."""
    return usage_cpus * _speed(busy_share, threads_per_core)


def busy_share(demand: float, cores: int, threads_per_core: int) -> float:
    """How busy these cores' CPUs are under a demand, siblings slowing each other down; above 1: more than they do."""
    cpus = cores * threads_per_core
    busy = demand / cpus
    for _ in range(8):
        busy = demand / (cpus * _speed(busy, threads_per_core))
    return busy


def _speed(busy: float, threads_per_core: int) -> float:
    """Speed of a hardware thread, relative to a core of its own, where CPUs are busy for this share of their time."""
    return thread_speed(busy) if threads_per_core > 1 else 1.0


def is_idle(demand: float, cores: int, threads_per_core: int) -> bool:
    """True if so few cores would not be busy with this demand: an open loop's delay hardly grows until they are."""
    return busy_share(demand, cores, threads_per_core) <= IDLE_BUSY - IDLE_FEW / (cores * threads_per_core)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one LRA asks for. ``priority``: higher ones are served first; ``has``: its cores now.

    ``scores``: performance over target that is expected with 1, 2, ... cores, never falling; 1 is enough.
    """

    name: str
    priority: int
    has: int
    scores: tuple[float, ...]

    def score(self, cores: int) -> float:
        """Expected with so many cores."""
        return self.scores[min(cores, len(self.scores)) - 1]

    def needs(self, level: float) -> int:
        """The fewest cores with which the score reaches ``level``, or its greatest if that is less."""
        level = min(level, self.scores[-1])
        return next(n for n, score in enumerate(self.scores, 1) if score >= level)


def max_min_shares(cores: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Cores for every claim: one each, then by priority class, and within a class by max-min of the score.

    The greatest level that all of a class can reach is met with the fewest cores; what is left of them goes to whoever
    is brought on target by fewest, then to whoever is left below its target, as far as that is expected to raise its
    score. What then remains is not given out. Raises ValueError if there is not a core for
    each.
    """
    if cores < len(claims):
        raise ValueError(f"{cores} cores cannot be divided among {len(claims)} LRAs: give each at least one")
    got = {claim.name: 1 for claim in claims}
    left = cores - len(claims)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        peers = sorted((c for c in claims if c.priority == priority), key=lambda c: c.name)
        levels = sorted({min(s, 1.0) for c in peers for s in c.scores}, reverse=True)
        for level in levels:
            needs = {c.name: c.needs(level) for c in peers}
            if sum(needs.values()) - len(peers) <= left:
                got.update(needs)
                left -= sum(needs.values()) - len(peers)
                break
        short = [c for c in peers if c.score(got[c.name]) < 1.0]
        for claim in sorted(short, key=lambda c: (c.needs(1.0) - got[c.name], -c.has, c.name)):
            more = claim.needs(1.0) - got[claim.name]
            if more <= left:
                got[claim.name] += more
                left -= more
        short = [c for c in peers if c.score(got[c.name]) < 1.0]
        for claim in sorted(short, key=lambda c: (c.score(got[c.name]), -c.has, c.name)):
            best = max(claim.score(got[claim.name] + n) for n in range(left + 1))
            more = claim.needs(best) - got[claim.name]
            got[claim.name] += more
            left -= more
    return got


def worst(counts: Mapping[str, int], claims: Sequence[Claim]) -> float:
    """The least score that anybody is expected to have with these cores, at most 1."""
    return min((min(c.score(max(counts[c.name], 1)), 1.0) for c in claims), default=1.0)


def spread(spare: int, got: Mapping[str, int], claims: Sequence[Claim]) -> dict[str, int]:
    """Give cores that nobody needs to those who have least above their need: there is no batch to use them."""
    result = dict(got)
    for _ in range(spare):
        least = min(claims, key=lambda c: (result[c.name] / c.needs(1.0), -c.has, c.name))
        result[least.name] += 1
    return result
