"""Core counts of several LRAs: the number that each needs, and the division if they want more than there are.

Pure. An LRA's needs follow from experience where it applies: fewer cores under no less demand are no better than a
number that was too few, and more cores under no more demand are no worse than a number that was enough. Elsewhere they
follow from a band of the score: the model's prediction (``partition_model``), whose prior is the queue estimate here:
an open loop's delay hardly grows until its cores are half busy, and explodes soon after.

Estimates are columns with a row for each number of cores, because numpy values 128 numbers as fast as a few.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perphd.domain.backoff import doubled_s
from perphd.domain.policy import Band
from perphd.domain.smt import SIBLING_SPEED, thread_speed

Floats: TypeAlias = NDArray[np.float64]

KNEE_BUSY: Final = 0.60
"""Busy share of its CPUs at which an unknown service meets its target with even odds, if it has many CPUs.

With n CPUs, the share is lower by ``KNEE_FEW`` / n.
"""
KNEE_FEW: Final = 0.3
KNEE_SD: Final = 0.103
"""Standard deviation (busy share) of that point."""
KNEE_WIDTH: Final = 0.06
"""Minimum distance (busy share) of that point from numbers of cores known to be enough, or known to be too few."""
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
"""Assumed (1 + cv^2) / 2 of arrivals and service times; the simulator's services have 1.8 to 8."""
MOST_SEEN: Final = 24
ROUNDS: Final = 8
"""Iterations that find a busy share."""


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


@dataclass(frozen=True, slots=True, eq=False)
class ScoreBands:
    """Bands of the score with 1, 2, ... cores, as columns (n,); ``domain.policy.Band`` explains them."""

    value: Floats
    sd: Floats
    support: Floats

    @classmethod
    def of(cls, bands: Sequence[Band]) -> ScoreBands:
        """These bands as columns."""
        return cls(
            np.array([b.value for b in bands], dtype=np.float64),
            np.array([b.sd for b in bands], dtype=np.float64),
            np.array([b.support for b in bands], dtype=np.float64),
        )

    def band(self, cores: int) -> Band:
        """The band with a number of cores."""
        place = cores - 1
        return Band(float(self.value[place]), float(self.sd[place]), float(self.support[place]))


def queue_estimates(
    seen: Sequence[Seen],
    busy: Floats,
    threads_per_core: int,
    now_s: float,
    anchor: Anchor | None = None,
) -> ScoreBands:
    """The scores with 1, 2, ... cores from queueing and SMT alone, without a model; their ``support`` is 0.

    With an anchor they come from an M/M/c queue with bursts, else from how busy the cores would be: the score falls by
    a factor of e per ``1 / STEEP`` of busy share, and the uncertainty is that of the knee. ``busy``: ``busy_shares``.
    """
    cores, nothing = np.arange(1.0, len(busy) + 1.0), np.zeros_like(busy)
    least = LEAST_SCORE / np.maximum(busy, 1.0)  # even far from enough, more cores are slightly better
    if anchor is not None:
        growth = _growth(anchor, busy, cores, threads_per_core)
        score = anchor.score / growth / np.maximum(busy / 0.97, 1.0) ** 20
        value = np.minimum(np.maximum(score, least), MOST_RATIO)
        return ScoreBands(value, 0.1 + 0.5 * np.abs(np.log(growth)), nothing)
    over = busy - _knees([s for s in seen if s.until_s > now_s], cores, threads_per_core)
    value = np.maximum(np.exp(-STEEP * over), least)
    return ScoreBands(value, np.full_like(busy, STEEP * KNEE_SD), nothing)


def _growth(anchor: Anchor, busy: Floats, cores: Floats, threads_per_core: int) -> Floats:
    """Delay with each of these numbers of cores over the anchor's.

    Waiting for a CPU follows Sakasegawa's approximation (1977), as the 95th percentile of an exponential tail. A
    request's CPU time grows as SMT siblings get busy.
    """
    more_cpu = _speed(anchor.busy, threads_per_core) / _speeds(busy, threads_per_core) - 1.0
    there = np.array([anchor.busy]), np.array([float(anchor.cores * threads_per_core)])
    more_wait = _wait(busy, cores * threads_per_core) - _wait(*there)
    return np.asarray(np.maximum(1.0 + anchor.service_share * (more_cpu + more_wait), 0.5), dtype=np.float64)


def _wait(busy: Floats, cpus: Floats) -> Floats:
    """95th percentile of the wait for one of these CPUs, as a multiple of the service time."""
    queued = np.minimum(busy, 1.0) ** (np.sqrt(2.0 * (cpus + 1.0)) - 1.0)
    waits = BURSTS * np.log(np.maximum(queued / 0.05, 1.0)) / (cpus * np.maximum(1.0 - busy, 0.02))
    return np.asarray(waits, dtype=np.float64)


def base_demand(usage_cpus: float, busy_share: float, threads_per_core: int) -> float:
    """CPU demand without SMT interference, from the use and the busy share of the CPUs over which it was spread."""
    return usage_cpus * _speed(busy_share, threads_per_core)


@lru_cache(maxsize=4096)
def busy_share(demand: float, cores: int, threads_per_core: int) -> float:
    """Busy share of these cores' CPUs under a demand, with SMT interference; above 1 means overload."""
    cpus = cores * threads_per_core
    busy = demand / cpus
    for _ in range(ROUNDS):
        busy = demand / (cpus * _speed(busy, threads_per_core))
    return busy


def busy_shares(demand: float, most: int, threads_per_core: int) -> Floats:
    """``busy_share`` of 1 to ``most`` cores."""
    cpus = np.arange(1.0, most + 1.0) * threads_per_core
    busy = demand / cpus
    if threads_per_core > 1:
        for _ in range(ROUNDS):
            busy = demand / (cpus * _speeds(busy, threads_per_core))
    return np.asarray(busy, dtype=np.float64)


def _speed(busy: float, threads_per_core: int) -> float:
    """Speed of a hardware thread relative to a whole core if CPUs are busy for this share of their time."""
    return thread_speed(busy) if threads_per_core > 1 else 1.0


def _speeds(busy: Floats, threads_per_core: int) -> Floats:
    """``_speed`` for each of these busy shares."""
    if threads_per_core <= 1:
        return np.ones_like(busy)
    full = np.minimum(busy, 1.0)
    speeds: Floats = 1.0 - (1.0 - SIBLING_SPEED) * full * full
    return speeds


def is_idle(cores: int, demand: float, threads_per_core: int) -> bool:
    """True if this demand would not keep this number of cores busy."""
    knee = KNEE_BUSY - KNEE_FEW / (cores * threads_per_core)
    return busy_share(demand, cores, threads_per_core) <= knee - SPARE_BUSY


def chances(
    seen: Sequence[Seen], demand: float, now_s: float, most: int, bands: Callable[[], ScoreBands]
) -> list[float]:
    """Probabilities that 1 to ``most`` cores suffice for this demand, from experience as far as it reaches.

    Elsewhere from the scores expected (``bands``), which are not asked for if no number is left open.
    """
    failed = [s for s in seen if not s.good and demand * LESS_DEMAND >= s.demand]
    doubted = max((s.cores for s in failed), default=0)  # may be tried again, at reduced odds
    banned = min(max((s.cores for s in failed if s.until_s > now_s), default=0), most)
    good = (s for s in seen if s.good and s.until_s > now_s and demand <= s.demand * SAME_DEMAND)
    known = min((s.cores - 1 for s in good), default=most)
    found = [NEVER] * banned
    if banned < known:
        open_ = slice(banned, known)
        expects = bands()
        sigmas = np.log(expects.value[open_]) / (np.maximum(expects.sd[open_], 1e-3) * math.sqrt(2.0))
        for cores, each in enumerate(sigmas.tolist(), banned + 1):
            guess = 0.5 * (1.0 + math.erf(each)) * (FAILED_BEFORE if cores <= doubted else 1.0)
            found.append(min(max(guess, NEVER), KNOWN))
    return found + [KNOWN] * (most - len(found))


def _knees(alive: Sequence[Seen], cores: Floats, threads_per_core: int) -> Floats:
    """Busy share of each of 1, 2, ... cores at which the target is met with even odds.

    Busier cores seen on target raise it; less busy cores seen below target lower it.
    """
    knees = KNEE_BUSY - KNEE_FEW / (cores * threads_per_core)
    for s in (s for s in alive if s.good):
        more = knees[s.cores - 1 :]
        np.maximum(more, busy_share(s.demand, s.cores, threads_per_core) + KNEE_WIDTH, out=more)
    for s in (s for s in alive if not s.good):
        fewer = knees[: s.cores]
        np.minimum(fewer, busy_share(s.demand, s.cores, threads_per_core) - KNEE_WIDTH, out=fewer)
    return np.asarray(knees, dtype=np.float64)


def expected(seen: Sequence[Seen], demand: float, now_s: float, bands: ScoreBands) -> Floats:
    """Expected scores with 1, 2, ... cores: those of ``bands``, within what experience allows."""
    scores = bands.value.copy()
    for s in seen:
        if s.until_s <= now_s:
            continue
        if s.good and demand <= s.demand * SAME_DEMAND:
            more = scores[s.cores - 1 :]
            np.maximum(more, s.score, out=more)
        elif not s.good and demand * SAME_DEMAND >= s.demand:
            fewer = scores[: s.cores]
            np.minimum(fewer, s.score, out=fewer)
    return scores


def note(
    seen: tuple[Seen, ...], new: Seen, now_s: float, ban_s: float, least_s: float = 0.0
) -> tuple[Seen, ...]:
    """The experience with one entry added.

    A success ends the bans after failures with at least as many cores under no more demand. A failure removes successes
    with at most as many cores under at least about the same demand. A failure bans its number of cores for ``ban_s``,
    doubled with each further failure; it is forgotten after another such time.

    Args:
        seen: the experience until now.
        new: the new entry.
        now_s: monotonic time.
        ban_s: length of the ban after a first failure, in seconds.
        least_s: minimum length of the ban after this failure, in seconds; limited to ``LONGEST_BAN_S``.
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

    ``scores``: performance over target expected with 1, 2, ... cores, non-decreasing; a score of 1 is enough.
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
        return bisect_left(self.scores, min(level, self.scores[-1])) + 1


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
        level = _highest_level(peers, left)
        got.update({c.name: c.needs(level) for c in peers})
        left -= _beyond_one(peers, level)
        short = [c for c in peers if c.score(got[c.name]) < 1.0]
        for claim in sorted(short, key=lambda c: (c.needs(1.0) - got[c.name], -c.has, c.name)):
            more = claim.needs(1.0) - got[claim.name]
            if more <= left:
                got[claim.name] += more
                left -= more
        short = [c for c in peers if c.score(got[c.name]) < 1.0]
        for claim in sorted(short, key=lambda c: (c.score(got[c.name]), -c.has, c.name)):
            more = claim.needs(claim.score(got[claim.name] + left)) - got[claim.name]
            got[claim.name] += more
            left -= more
    return got


def _highest_level(claims: Sequence[Claim], spare: int) -> float:
    """Highest level, at most 1, that all these claims reach with one core each and the spare ones."""
    levels = sorted({min(s, 1.0) for c in claims for s in c.scores})
    # The lowest level needs no spare core, and no level needs fewer than a lower one.
    beyond = bisect_left(levels, spare + 1, lo=1, key=lambda level: _beyond_one(claims, level))
    return levels[beyond - 1]


def _beyond_one(claims: Sequence[Claim], level: float) -> int:
    """Cores beyond one each that bring these claims to a level."""
    return sum(claim.needs(level) for claim in claims) - len(claims)


def worst(counts: Mapping[str, int], claims: Sequence[Claim]) -> float:
    """Lowest score expected with these cores, at most 1."""
    return min((min(c.score(max(counts[c.name], 1)), 1.0) for c in claims), default=1.0)


def spread(spare: int, got: Mapping[str, int], claims: Sequence[Claim]) -> dict[str, int]:
    """Give each spare core to the LRA with the fewest cores relative to its need; used when no batch wants them."""
    result = dict(got)
    needs = {c.name: c.needs(1.0) for c in claims}
    for _ in range(spare):
        least = min(claims, key=lambda c: (result[c.name] / needs[c.name], -c.has, c.name))
        result[least.name] += 1
    return result
