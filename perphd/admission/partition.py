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

from perphd.admission.backoff import doubled_s
from perphd.domain.smt import thread_speed

KNEE_BUSY: Final = 0.60
"""Busy share of many CPUs at which an unknown service is as likely as not on target; ``KNEE_FEW`` less per CPU^-1:"""
KNEE_FEW: Final = 0.3
KNEE_WIDTH: Final = 0.06
"""Busy share by which the guess is unsure (of a logistic curve)."""
SAME_DEMAND: Final = 1.05
"""Demands that differ by less than this factor count as equal."""
LESS_DEMAND: Final = 1.15
"""Demand must fall by this factor before what was too few is thought of again."""
FAILED_BEFORE: Final = 0.5
"""Part of a chance that is left where the same was too few some time ago."""
GOOD_LASTS_S: Final = 300.0
KNOWN, NEVER = 0.95, 0.03
"""Chances of what is known to be enough, and to be too little."""
LEAST_GAIN: Final = 1.10
"""The worst score must win by this factor, or cores that others need as well are not moved."""
STEEP: Final = 6.0
LEAST_SCORE, MOST_SCORE = 0.05, 1.3
"""Of a score that is only guessed: how fast it falls (log units per busy share), and its bounds."""
BURSTS: Final = 2.0
"""(1 + cv^2) / 2 of arrivals and service times, where nothing is known; the archetypes have 1.8 to 8."""
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


@dataclass(frozen=True, slots=True)
class Anchor:
    """A state in which the LRA was on target, from which others are predicted.

    ``score``: over target; ``busy``: share of its CPUs' time; ``service_share``: CPU time of a request over its delay.
    """

    score: float
    busy: float
    cores: int
    service_share: float


def predicted(anchor: Anchor, cores: int, demand: float, threads_per_core: int) -> tuple[float, float]:
    """Score with so many cores, and its uncertainty (sd of its logarithm), by an M/M/c queue with bursts.

    Waiting for a CPU by Sakasegawa's approximation (1977), as the 95th percentile of an exponential tail; a request's
    CPU time grows as siblings get busy.
    """
    busy = busy_share(demand, cores, threads_per_core)
    more_cpu = _speed(anchor.busy, threads_per_core) / _speed(busy, threads_per_core) - 1.0
    more_wait = _wait(busy, cores * threads_per_core) - _wait(anchor.busy, anchor.cores * threads_per_core)
    growth = max(1.0 + anchor.service_share * (more_cpu + more_wait), 0.5)
    score = anchor.score / growth / max(busy / 0.97, 1.0) ** 20
    return min(max(score, LEAST_SCORE / max(busy, 1.0)), 10.0), 0.1 + 0.5 * abs(math.log(growth))


def _wait(busy: float, cpus: int) -> float:
    """95th percentile of waiting for one of these CPUs, in service times."""
    queued = min(busy, 1.0) ** (math.sqrt(2.0 * (cpus + 1.0)) - 1.0)
    return BURSTS * math.log(max(queued / 0.05, 1.0)) / (cpus * max(1.0 - busy, 0.02))


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


def chance(
    seen: Sequence[Seen],
    cores: int,
    demand: float,
    threads_per_core: int,
    now_s: float,
    anchor: Anchor | None = None,
) -> float:
    """Probability that ``cores`` suffice for this demand: by experience, else by the queue from ``anchor``, else by
    how busy they would be.
    """
    alive = [s for s in seen if s.until_s > now_s]
    bad = [s for s in alive if not s.good and cores <= s.cores and demand * LESS_DEMAND >= s.demand]
    if bad:
        return NEVER
    if any(s.good and cores >= s.cores and demand <= s.demand * SAME_DEMAND for s in alive):
        return KNOWN
    if anchor is not None:
        score, sd = predicted(anchor, cores, demand, threads_per_core)
        guess = 0.5 * (1.0 + math.erf(math.log(score) / (sd * math.sqrt(2.0))))
        if any(not s.good and cores <= s.cores and demand * LESS_DEMAND >= s.demand for s in seen):
            guess *= FAILED_BEFORE  # it may be tried again, but what speaks against it is not forgotten yet
        return min(max(guess, NEVER), KNOWN)
    busy = busy_share(demand, cores, threads_per_core)
    knee = _knee(alive, cores, threads_per_core)
    guess = 1.0 / (1.0 + math.exp(min((busy - knee) / KNEE_WIDTH, 50.0)))
    return min(max(guess, NEVER), KNOWN)


def _knee(alive: Sequence[Seen], cores: int, threads_per_core: int) -> float:
    """Busy share of these cores at which meeting the target is as likely as not.

    Cores that were seen busier and on target move the guess up, those that missed it when less busy move it down.
    """
    knee = KNEE_BUSY - KNEE_FEW / (cores * threads_per_core)
    fine = [busy_share(s.demand, s.cores, threads_per_core) for s in alive if s.good and s.cores <= cores]
    poor = [busy_share(s.demand, s.cores, threads_per_core) for s in alive if not s.good and s.cores >= cores]
    if fine:
        knee = max(knee, max(fine) + KNEE_WIDTH)
    if poor:
        knee = min(knee, min(poor) - KNEE_WIDTH)
    return knee


def expected(
    seen: Sequence[Seen],
    cores: int,
    demand: float,
    threads_per_core: int,
    now_s: float,
    anchor: Anchor | None = None,
) -> float:
    """Score to be expected with these cores: what was seen; beyond, it falls by e in ``1 / STEEP`` of busy share."""
    alive = [s for s in seen if s.until_s > now_s]
    busy = busy_share(demand, cores, threads_per_core)
    over = busy - _knee(alive, cores, threads_per_core)
    # However far it is from enough, more is a little better.
    score = min(max(math.exp(-STEEP * over), LEAST_SCORE / max(busy, 1.0)), MOST_SCORE)
    if anchor is not None:
        score, _ = predicted(anchor, cores, demand, threads_per_core)
    for s in alive:
        if s.good and cores >= s.cores and demand <= s.demand * SAME_DEMAND:
            score = max(score, s.score)
        elif not s.good and cores <= s.cores and demand * SAME_DEMAND >= s.demand:
            score = min(score, s.score)
    return score


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
    return doubled_s(ban_s, times - 1)


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


def share_out(cores: int, claims: Sequence[Claim]) -> dict[str, int]:
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
