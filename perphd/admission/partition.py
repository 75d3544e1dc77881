"""Core counts of several LRAs: the number that each needs, and the division if they want more than there are.

Pure. An LRA's needs follow from experience where it applies: fewer cores under no less demand are no better than a
number that was too few, and more cores under no more demand are no worse than a number that was enough. Elsewhere they
follow from a band of the score: the model's prediction (``partition_model``), whose prior is the queue estimate here:
an open loop's delay hardly grows until its cores are half busy, and explodes soon after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from perphd.domain.backoff import doubled_s
from perphd.domain.policy import Band
from perphd.domain.smt import thread_speed

KNEE_BUSY: Final = 0.60
"""Busy share of many CPUs at which an unknown service meets its target with even odds.

For few CPUs, it is less by ``KNEE_FEW`` / CPUs.
"""
KNEE_FEW: Final = 0.3
KNEE_SD: Final = 0.103
"""Standard deviation (busy share) of that point."""
KNEE_WIDTH: Final = 0.06
"""Least distance (busy share) of that point from cores seen on target, or below it."""
SPARE_BUSY: Final = 0.024
"""Busy share below that point from which cores count as idle."""
SAME_DEMAND: Final = 1.05
"""Factor within which demands count as equal."""
LESS_DEMAND: Final = 1.15
"""Factor by which demand must fall before a number of cores that was too few is tried again."""
FAILED_BEFORE: Final = 0.5
"""Factor on the chance of a number of cores that was once too few."""
MOST_LOST: Final = 0.005
"""Largest share of time that an LRA may spend below target for retrying a number of cores that was too few.

At the same demand, a try that cost x seconds is repeated after x / ``MOST_LOST`` seconds at the earliest. On a day with
2,000 jobs, LRAs should stay within half a percentage point of their performance without jobs.
"""
LONGEST_BAN_S: Final = 14400.0
"""Longest time in seconds for which a number of cores is not retried, because loads change over the day."""
GOOD_LASTS_S: Final = 300.0
KNOWN, NEVER = 0.95, 0.03
"""Chances of a number of cores known to be enough, and known to be too few."""
LEAST_GAIN: Final = 1.10
"""Factor by which the worst score must improve before cores move between LRAs that lack cores."""
STEEP: Final = 6.0
"""Fall of the estimated score of an unknown service, in log units per busy share."""
LEAST_SCORE, MOST_SCORE = 0.05, 1.3
"""Bounds of that score."""
MOST_RATIO: Final = 10.0
"""Upper bound of every other score."""
BURSTS: Final = 2.0
"""Assumed (1 + cv^2) / 2 of arrivals and service times; the archetypes have 1.8 to 8."""
MOST_SEEN: Final = 24


@dataclass(frozen=True, slots=True)
class Seen:
    """Experience with ``cores`` under a demand (hardware threads busy at full speed): enough, or too few.

    ``until_s``: time until which it counts. ``times``: consecutive failures, each of which doubles that time;
    0: enough.
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
    """An operating point on target, from which others are predicted.

    ``score``: performance over target. ``busy``: busy share of its CPUs' time. ``service_share``: CPU time of
    a request over its delay.
    """

    score: float
    busy: float
    cores: int
    service_share: float


def queue_estimate(
    seen: Sequence[Seen],
    cores: int,
    demand: float,
    threads_per_core: int,
    now_s: float,
    anchor: Anchor | None = None,
) -> Band:
    """The score with ``cores`` cores from queueing and SMT alone, without a model; its ``support`` is 0.

    With an anchor it comes from an M/M/c queue with bursts, else from how busy the cores would be: the score falls by a
    factor of e per ``1 / STEEP`` of busy share, and the uncertainty is that of the knee.
    """
    busy = busy_share(demand, cores, threads_per_core)
    least = LEAST_SCORE / max(busy, 1.0)  # even far from enough, more cores are slightly better
    if anchor is not None:
        growth = _growth(anchor, busy, cores, threads_per_core)
        score = anchor.score / growth / max(busy / 0.97, 1.0) ** 20
        return Band(min(max(score, least), MOST_RATIO), 0.1 + 0.5 * abs(math.log(growth)), 0.0)
    over = busy - _knee([s for s in seen if s.until_s > now_s], cores, threads_per_core)
    return Band(max(math.exp(-STEEP * over), least), STEEP * KNEE_SD, 0.0)


def _growth(anchor: Anchor, busy: float, cores: int, threads_per_core: int) -> float:
    """Delay with these cores over the anchor's.

    Waiting for a CPU follows Sakasegawa's approximation (1977), as the 95th percentile of an exponential tail. A
    request's CPU time grows as SMT siblings get busy.
    """
    more_cpu = _speed(anchor.busy, threads_per_core) / _speed(busy, threads_per_core) - 1.0
    more_wait = _wait(busy, cores * threads_per_core) - _wait(anchor.busy, anchor.cores * threads_per_core)
    return max(1.0 + anchor.service_share * (more_cpu + more_wait), 0.5)


def _wait(busy: float, cpus: int) -> float:
    """95th percentile of the wait for one of these CPUs, as a multiple of the service time."""
    queued = min(busy, 1.0) ** (math.sqrt(2.0 * (cpus + 1.0)) - 1.0)
    return BURSTS * math.log(max(queued / 0.05, 1.0)) / (cpus * max(1.0 - busy, 0.02))


def base_demand(usage_cpus: float, busy_share: float, threads_per_core: int) -> float:
    """CPU demand without SMT interference, from the use and the busy share of the CPUs over which it was spread."""
    return usage_cpus * _speed(busy_share, threads_per_core)


@lru_cache(maxsize=4096)
def busy_share(demand: float, cores: int, threads_per_core: int) -> float:
    """Busy share of these cores' CPUs under a demand, with SMT interference; above 1 means overload."""
    cpus = cores * threads_per_core
    busy = demand / cpus
    for _ in range(8):
        busy = demand / (cpus * _speed(busy, threads_per_core))
    return busy


def _speed(busy: float, threads_per_core: int) -> float:
    """Speed of a hardware thread relative to a whole core if CPUs are busy for this share of their time."""
    return thread_speed(busy) if threads_per_core > 1 else 1.0


def is_idle(cores: int, demand: float, threads_per_core: int) -> bool:
    """True if this demand would not keep this number of cores busy."""
    return busy_share(demand, cores, threads_per_core) <= _knee((), cores, threads_per_core) - SPARE_BUSY


def chance(seen: Sequence[Seen], cores: int, demand: float, now_s: float, band: Band) -> float:
    """Probability that ``cores`` suffice for this demand: from experience, else from ``band``, the score expected."""
    failed = [s for s in seen if not s.good and cores <= s.cores and demand * LESS_DEMAND >= s.demand]
    if any(s.until_s > now_s for s in failed):
        return NEVER
    good = (s for s in seen if s.good and s.until_s > now_s)
    if any(cores >= s.cores and demand <= s.demand * SAME_DEMAND for s in good):
        return KNOWN
    guess = 0.5 * (1.0 + math.erf(math.log(band.value) / (max(band.sd, 1e-3) * math.sqrt(2.0))))
    if failed:
        guess *= FAILED_BEFORE  # may be tried again, at reduced odds
    return min(max(guess, NEVER), KNOWN)


def _knee(alive: Sequence[Seen], cores: int, threads_per_core: int) -> float:
    """Busy share of these cores at which the target is met with even odds.

    Busier cores seen on target raise it; less busy cores seen below target lower it.
    """
    knee = KNEE_BUSY - KNEE_FEW / (cores * threads_per_core)
    fine = [busy_share(s.demand, s.cores, threads_per_core) for s in alive if s.good and s.cores <= cores]
    poor = [busy_share(s.demand, s.cores, threads_per_core) for s in alive if not s.good and s.cores >= cores]
    if fine:
        knee = max(knee, max(fine) + KNEE_WIDTH)
    if poor:
        knee = min(knee, min(poor) - KNEE_WIDTH)
    return knee


def expected(seen: Sequence[Seen], cores: int, demand: float, now_s: float, band: Band) -> float:
    """Expected score with these cores: that of ``band``, within what experience allows."""
    score = band.value
    for s in seen:
        if s.until_s <= now_s:
            continue
        if s.good and cores >= s.cores and demand <= s.demand * SAME_DEMAND:
            score = max(score, s.score)
        elif not s.good and cores <= s.cores and demand * SAME_DEMAND >= s.demand:
            score = min(score, s.score)
    return score


def note(
    seen: tuple[Seen, ...], new: Seen, now_s: float, ban_s: float, least_s: float = 0.0
) -> tuple[Seen, ...]:
    """The experience with one entry added.

    A success removes failures with more cores under no more demand, and vice versa. A failure is forgotten once it has
    not recurred for ``ban_s``, doubled with each earlier failure.

    Args:
        seen: the experience until now.
        new: the new entry.
        now_s: monotonic time.
        ban_s: lifetime of the first failure in seconds; it doubles with each further failure.
        least_s: least lifetime of this failure.
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
                continue  # implied by the new one
            if not old.good and old.cores >= new.cores and old.demand <= new.demand:
                kept.append(replace(old, until_s=min(old.until_s, now_s)))
                continue
        elif old.good:
            if old.cores <= new.cores and old.demand * SAME_DEMAND >= new.demand:
                continue
        elif old.cores == new.cores and old.demand <= new.demand * SAME_DEMAND**4:
            times = max(times, old.times + 1)
            if old.demand >= new.demand / SAME_DEMAND:
                least_s = max(least_s, old.until_s - now_s)
                continue
        kept.append(old)
    if not new.good:
        least_s = min(least_s, LONGEST_BAN_S)
        new = replace(new, times=times, until_s=now_s + max(_ban_s(times, ban_s), least_s))
    return (*kept[1 - MOST_SEEN :], new)


def _ban_s(times: int, ban_s: float) -> float:
    return doubled_s(ban_s, times - 1)


@dataclass(frozen=True, slots=True)
class Claim:
    """One LRA's claim to cores. ``priority``: claims with a higher priority are served first. ``has``: its cores now.

    ``scores``: performance over target expected with 1, 2, ... cores, non-decreasing; 1 is enough.
    """

    name: str
    priority: int
    has: int
    scores: tuple[float, ...]

    def score(self, cores: int) -> float:
        """Score expected with a number of cores."""
        return self.scores[min(cores, len(self.scores)) - 1]

    def needs(self, level: float) -> int:
        """Fewest cores with which the score reaches ``level``, or its maximum if that is lower."""
        level = min(level, self.scores[-1])
        return next(n for n, score in enumerate(self.scores, 1) if score >= level)


def share_out(cores: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Divide cores: one for each claim, then by priority class, within a class by max-min of the score.

    Each class first gets the fewest cores that bring all its LRAs to their highest common level. The rest goes
    first to LRAs that reach their target with the fewest cores, then to LRAs below target as far as their
    score is expected to rise. Any remainder is not assigned. Raises ValueError if there are fewer cores than
    claims.
    """
    if cores < len(claims):
        raise ValueError(f"{cores} cores cannot be divided among {len(claims)} LRAs: each needs at least one")
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
    """Lowest score expected with these cores, at most 1."""
    return min((min(c.score(max(counts[c.name], 1)), 1.0) for c in claims), default=1.0)


def spread(spare: int, got: Mapping[str, int], claims: Sequence[Claim]) -> dict[str, int]:
    """Add spare cores to the LRAs with the least above their need; used when no batch wants them."""
    result = dict(got)
    for _ in range(spare):
        least = min(claims, key=lambda c: (result[c.name] / c.needs(1.0), -c.has, c.name))
        result[least.name] += 1
    return result
