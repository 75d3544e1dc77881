"""Cores for several LRAs: how many each needs, and who gets what when they want more than there is. Pure.

What an LRA needs is known by experience as far as that reaches (fewer cores under no less demand are no better than
what was seen to be too few, more under no more demand no worse than what was enough), and guessed by how busy its
cores would be beyond that: an open loop's delay hardly grows until they are half busy, and explodes soon after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

SMT_LOSS: Final = 0.35
"""Speed that a hardware thread loses when its sibling is always busy; the archetypes lose 0.29 to 0.4."""
KNEE_BUSY: Final = 0.60
"""Busy share of many CPUs at which an unknown service is as likely as not on target; ``KNEE_FEW`` less per CPU^-1:"""
KNEE_FEW: Final = 0.3
KNEE_WIDTH: Final = 0.06
"""Busy share by which the guess is unsure (of a logistic curve)."""
NEAR_TARGET: Final = 1.06
"""A score below this leaves no room: with less it is likely missed."""
SAME_DEMAND: Final = 1.05
"""Demands that differ by less than this factor count as equal."""
GOOD_LASTS_S: Final = 300.0
SURE, LIKELY, FAIR, SLIM, NEVER = 0.95, 0.6, 0.3, 0.1, 0.03
"""Chances: known to be enough; what a rescue aims at; worth a trial; hardly; known to be too little."""
LEAST_GAIN: Final = 1.15
"""Who has least of what it needs must win by this factor, or cores that others need are not moved to it."""
MOST_SEEN: Final = 24


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of ``cores`` under a demand (hardware threads kept busy at full speed): enough, or too little.

    ``until_s``: how long it is believed; ``times``: how often too little was seen there, each doubling that.
    """

    cores: int
    demand: float
    score: float
    until_s: float
    times: int = 0

    @property
    def good(self) -> bool:
        """True if the target was met."""
        return self.times == 0


def base_demand(usage_cpus: float, busy_share: float, threads_per_core: int) -> float:
    """What a use of CPUs comes to when no sibling is busy, from the busy share of the CPUs that it was spread over."""
    loss = SMT_LOSS if threads_per_core > 1 else 0.0
    return usage_cpus * (1.0 - loss * min(busy_share, 1.0) ** 2)


def busy_share(demand: float, cores: int, threads_per_core: int) -> float:
    """How busy these cores' CPUs are under a demand, siblings slowing each other down; above 1: more than they do."""
    cpus = cores * threads_per_core
    loss = SMT_LOSS if threads_per_core > 1 else 0.0
    busy = demand / cpus
    for _ in range(8):
        busy = demand / (cpus * (1.0 - loss * min(busy, 1.0) ** 2))
    return busy


def chance(
    seen: Sequence[Seen], cores: int, demand: float, threads_per_core: int, now_s: float, mates: float = 1.0
) -> float:
    """Probability that ``cores`` suffice for this demand.

    ``mates``: score over target on the present cores, if these are more than ``cores``: who is near its target there
    will not be on fewer.
    """
    alive = [s for s in seen if s.until_s > now_s]
    bad = [s for s in alive if not s.good and cores <= s.cores and demand * SAME_DEMAND >= s.demand]
    if bad:
        return NEVER
    if any(s.good and cores >= s.cores and demand <= s.demand * SAME_DEMAND for s in alive):
        return SURE
    cpus = cores * threads_per_core
    busy = busy_share(demand, cores, threads_per_core)
    knee = KNEE_BUSY - KNEE_FEW / cpus
    # Cores that were seen busier and on target move the guess up, those that missed it when less busy move it down.
    fine = [busy_share(s.demand, s.cores, threads_per_core) for s in alive if s.good and s.cores <= cores]
    poor = [busy_share(s.demand, s.cores, threads_per_core) for s in alive if not s.good and s.cores >= cores]
    if fine:
        knee = max(knee, max(fine) + KNEE_WIDTH)
    if poor:
        knee = min(knee, min(poor) - KNEE_WIDTH)
    guess = 1.0 / (1.0 + math.exp(min((busy - knee) / KNEE_WIDTH, 50.0)))
    if mates < NEAR_TARGET:
        guess *= FAIR
    return min(max(guess, NEVER), SURE)


def need(
    seen: Sequence[Seen],
    demand: float,
    threads_per_core: int,
    most: int,
    now_s: float,
    *,
    wanted: float = LIKELY,
    least: int = 1,
) -> int:
    """The fewest cores, from ``least`` on, that suffice with a chance of ``wanted``; ``most`` if none do."""
    for cores in range(max(1, least), most):
        if chance(seen, cores, demand, threads_per_core, now_s) >= wanted:
            return cores
    return most


def note(seen: tuple[Seen, ...], new: Seen, now_s: float, ban_s: float) -> tuple[Seen, ...]:
    """The experience with one thing more. ``ban_s``: how long the first failure is believed; doubled with each.

    Good news about cores takes back bad news about them under no more demand, and the other way round. A failure is
    forgotten once it has not been repeated for as long as it was believed.
    """
    kept = []
    times = 1
    for old in seen:
        if old.good and old.until_s <= now_s:
            continue
        if not old.good and now_s > old.until_s + _ban_s(old.times, ban_s):
            continue
        if new.good:
            if old.good and old.cores >= new.cores and old.demand <= new.demand:
                continue  # said by the new one as well
            if not old.good and old.cores >= new.cores and old.demand <= new.demand:
                kept.append(replace(old, until_s=min(old.until_s, now_s)))
                continue
        elif old.good:
            if old.cores <= new.cores and old.demand * SAME_DEMAND >= new.demand:
                continue
        elif old.cores == new.cores and old.demand <= new.demand * SAME_DEMAND**4:
            times = max(times, old.times + 1)
            if old.demand >= new.demand / SAME_DEMAND:
                continue
        kept.append(old)
    if not new.good:
        new = replace(new, times=times, until_s=now_s + _ban_s(times, ban_s))
    return (*kept[1 - MOST_SEEN :], new)


def _ban_s(times: int, ban_s: float) -> float:
    return ban_s * 2.0 ** min(max(times - 1, 0), 6)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one LRA asks for. ``priority``: higher ones are served first; ``has``: its cores now."""

    name: str
    priority: int
    has: int
    needs: int


def share_out(cores: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Cores for every claim: one each, then what they need, by priority class, and fairly within a class.

    Within a class whoever has least of its need comes next (max-min); among equals who has more already, so that
    nothing moves without a reason. What is left is not given out. Raises ValueError if there is not a core for each.
    """
    if cores < len(claims):
        raise ValueError(f"{cores} cores cannot be divided among {len(claims)} LRAs: give each at least one")
    got = {claim.name: 1 for claim in claims}
    left = cores - len(claims)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        peers = [claim for claim in claims if claim.priority == priority]
        while left > 0:
            short = [c for c in peers if got[c.name] < c.needs]
            if not short:
                break
            # Divisions of the past weigh a little: a tie is no reason to move a core.
            worst = min(short, key=lambda c: (got[c.name] / c.needs, -min(c.has, c.needs), c.name))
            got[worst.name] += 1
            left -= 1
    return got


def worst_share(got: Mapping[str, int], claims: Sequence[Claim]) -> float:
    """The least share of its need that anybody has, at most 1."""
    return min((min(got[c.name] / c.needs, 1.0) for c in claims), default=1.0)


def spread(spare: int, got: Mapping[str, int], claims: Sequence[Claim]) -> dict[str, int]:
    """Give cores that nobody needs to those who have least above their need: there is no batch to use them."""
    result = dict(got)
    for _ in range(spare):
        least = min(claims, key=lambda c: (result[c.name] / c.needs, -c.has, c.name))
        result[least.name] += 1
    return result
