"""What came of a change: judged on samples taken after it settled, as far as their scatter lets one tell.

Pure functions and values; the policy keeps them in its memory. A change that did harm is undone and *regretted*:
nothing like it is tried for a while that doubles with every repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.admission import inferer
from perphd.admission.backoff import doubled_s
from perphd.admission.scatter import mean
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO, WORSE_RATIO
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action
from perphd.domain.reading import NOT_MEASURED, Reading, available

PATIENCE = 3
"""While the samples cannot tell, a change is watched for so many times ``evaluate_ticks``."""
_CLEAR = 1.0
_CLEAR_SIGMA = 1.5
"""One sample after a step back is enough when it is below ``WORSE_RATIO`` and by so many times its scatter."""
FEW = 3
"""Samples of which one is no news."""
SLIGHTLY, OFTEN, OFTEN_OF = 0.98, 3, 8
"""So many of so many samples slightly below target are too many, whatever their mean."""
_AMPLE = 0.05
MOST_STRIDE = 8
"""Units of cores, ways or bandwidth that are given back in one step at most."""
_PILED_UP = 0.4
"""A delay that is so many times (1 / this) the accepted one is one of requests that had to queue up."""
_COSTLIER = 1.5
"""The next units are taken to cost so many times what the last ones did: knees bend."""
_CERTAIN = 3.0
_DOUBTFUL = 0.5
_BEFORE_SAMPLES = 3
REGRET_SLOWS: Final = 2.0
"""For every step back that had to be undone, the next is waited for so many times longer (besides the usual time)."""
_MOST_REGRETS = 16
FREE: Final = 4
"""Steps back that may harm before it is doubted that what looks like slack is any: looking for it costs some."""
FORGETS: Final = 64.0
"""Times ``regret_s`` after which a failure that was not repeated is forgotten."""
LOAD_ROSE: Final = 1.2
"""Growth of the load that makes what was enough before no measure of what is enough now."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change whose outcome is not judged yet; ``load``: what was asked of the LRA when it was decided.

    ``unproven``: no model spoke for it, so that it stands only if it helps; ``home``: where it is taken back to, if not
    to ``before``.
    """

    at_s: float
    before: Allocation
    after: Allocation
    action: Action
    score_before: Reading
    load: Reading = NOT_MEASURED
    unproven: bool = False
    home: Allocation | None = None

    @property
    def origin(self) -> Allocation:
        """Where it is taken back to."""
        return self.home if self.home is not None else self.before

    @property
    def must_help(self) -> bool:
        """True if it is undone where it does not help.

        Cache and bandwidth that did not help are batch's again at once: the next dimension is tried instead.
        """
        same_cpu = self.before.cpu == self.after.cpu
        return self.unproven or (same_cpu and self.before.memory_bytes == self.after.memory_bytes)


class Came(StrEnum):
    """What can be said of a pending change."""

    OPEN = "open"  # not yet
    HELPED = "it helped"
    NO_HELP = "it did not help"
    TOO_LITTLE = "too little is left"
    WORSE = "it made things worse"


def judge(
    pending: Pending, scores: Sequence[float], noise_sd: float, nothing: Allocation, settings: PolicySettings
) -> Came:
    """What came of it, from the scores of the clean samples since (1 = on target).

    Args:
        pending: the change.
        scores: one per clean sample since the change, at least one.
        noise_sd: scatter of one sample's score, in log units.
        nothing: the allocation that protects nothing: what raised protection from it is never called worse.
        settings: ``evaluate_ticks`` samples are awaited, ``PATIENCE`` times as many while they leave it open.
    """
    n, after = len(scores), mean(scores)
    doubt = noise_sd / math.sqrt(n)
    early = n < settings.evaluate_ticks
    if pending.action is Action.SHRINK:
        if is_ample(scores, noise_sd):
            return Came.HELPED
        short = -math.log(max(after, 1e-6))
        if after < WORSE_RATIO and short > _CLEAR_SIGMA * doubt:
            return Came.TOO_LITTLE
        if early or n < min(2, settings.evaluate_ticks):
            return Came.OPEN
        if short <= 0:
            return Came.HELPED
        if short > _CLEAR * doubt:
            return Came.TOO_LITTLE
        if n < PATIENCE * settings.evaluate_ticks:
            return Came.OPEN
        return Came.TOO_LITTLE if short > _DOUBTFUL * doubt else Came.HELPED
    if n < min(2, settings.evaluate_ticks) or (early and scores[-1] >= 1.0):
        return Came.OPEN
    before = pending.score_before
    if not available(before) or after >= 1.0:
        return Came.HELPED
    # What only takes more from batch does no harm: if it is worse since, the trouble has grown.
    only_more = inferer.asks_no_more(pending.before, pending.after)
    if pending.before.cpu != nothing.cpu and not only_more and after < before * WORSE_RATIO:
        both = noise_sd * math.sqrt(1.0 / n + 1.0 / _BEFORE_SAMPLES)
        if math.log(before / after) > _CLEAR * both:
            return Came.WORSE
        if n < PATIENCE * settings.evaluate_ticks:
            return Came.OPEN
    if after >= before * HELPED_RATIO:
        return Came.HELPED
    both = noise_sd * math.sqrt(1.0 / n + 1.0 / _BEFORE_SAMPLES)
    doubtful = math.log(before * HELPED_RATIO / after) < both
    # What is undone when it does not help is watched for as long as the samples leave that open.
    watched = pending.unproven or (pending.must_help and doubtful)
    return Came.OPEN if watched and n < PATIENCE * settings.evaluate_ticks else Came.NO_HELP


def is_ample(scores: Sequence[float], noise_sd: float) -> bool:
    """True if it is so far above target that no scatter explains it: there is no need to look any longer."""
    return math.log(mean(scores)) > _AMPLE + _CERTAIN * noise_sd / math.sqrt(len(scores))


def is_no_better(pending: Pending, score: float) -> bool:
    """True if the CPUs that an LRA was given have not even begun to relieve it.

    Caches take their time to fill. And of one so far below its target that requests have piled up nothing can be told
    yet: the oldest come last.
    """
    grown = pending.action in (Action.GROW, Action.EXPLORE) and pending.before.cpu != pending.after.cpu
    grown = grown and score > _PILED_UP
    return grown and available(pending.score_before) and score < pending.score_before * HELPED_RATIO


def units_between(a: Allocation, b: Allocation, levels_pct: Sequence[int]) -> int:
    """By how many units of cores, ways or throttle (``levels_pct``: those there are) two allocations differ at most."""
    low, high = sorted((a.mbw_pct, b.mbw_pct))
    throttle = sum(low < level <= high for level in {*levels_pct, 100})
    cores = abs(a.cpu.batch_cores - b.cpu.batch_cores)
    return max(1, cores, abs(a.llc_ways - b.llc_ways), throttle)


def next_stride(stride: int, before: Reading, after: float, doubt: float) -> int:
    """How many units may be given back next: twice as many, if what these cost leaves room for that.

    Args:
        stride: units of the step that was just judged.
        before: score before it.
        after: score since.
        doubt: scatter of that score, in log units: what the step may have cost unseen.
    """
    if not available(before):
        return 1
    cost = max(math.log(before / after), doubt) / stride
    room = math.log(after) / (_COSTLIER * cost)
    return max(1, min(2 * stride, int(room), MOST_STRIDE))


def still_short(scores: Sequence[float], noise_sd: float, settings: PolicySettings) -> bool:
    """True if the samples since the last change have had their time and their mean is still below target.

    What has once been degraded is to be brought back to its target, not only to where scatter hides the rest.
    """
    n = PATIENCE * settings.evaluate_ticks
    last = scores[-n:]
    doubt = noise_sd / math.sqrt(max(len(last), 1))
    if len(last) < min(FEW, n):
        return False
    return -math.log(mean(last)) > (_DOUBTFUL if len(last) >= n else _CLEAR) * doubt


def is_often_short(scores: Sequence[float], settings: PolicySettings) -> bool:
    """True if too many of the latest samples are below target, whatever their mean.

    Of samples so short that more of them are needed to judge a change, means of several count as one.
    """
    size = max(1, settings.evaluate_ticks // 2)
    last = scores[-OFTEN_OF * size :]
    means = [mean(last[i : i + size]) for i in range(len(last) % size, len(last), size)]
    return sum(s < SLIGHTLY for s in means) >= OFTEN


@dataclass(frozen=True, slots=True)
class Setting:
    """Under what something has shown not to be enough: beside which batch (names), and what was asked of the LRA."""

    beside: frozenset[str] = frozenset()
    load: Reading = NOT_MEASURED

    def resembles(self, other: Setting) -> bool:
        """True if what was too little under ``other`` is to be expected to be too little here."""
        return self.beside == other.beside and not self.is_easier(other)

    def is_easier(self, other: Setting) -> bool:
        """True if clearly less is asked of the LRA than under ``other``."""
        return available(self.load) and available(other.load) and self.load * LOAD_ROSE < other.load


ANYWHERE: Final = Setting()


@dataclass(frozen=True, slots=True)
class Regret:
    """A step that was too much: nothing that protects no more is tried until ``until_s`` under a like ``setting``.

    Until ``firm_until_s`` it is barred at less load and beside other batch as well: what comes in bursts comes again.
    """

    allocation: Allocation
    until_s: float
    times: int
    setting: Setting = ANYWHERE
    firm_until_s: float = -math.inf

    def bars(self, now_s: float, setting: Setting) -> bool:
        """True if it is not to be tried now."""
        return self.until_s > now_s and (now_s < self.firm_until_s or setting.resembles(self.setting))


def regret(
    regrets: tuple[Regret, ...],
    allocation: Allocation,
    now_s: float,
    regret_s: float,
    setting: Setting = ANYWHERE,
    stood_s: float = math.inf,
) -> tuple[tuple[Regret, ...], float]:
    """Note that an allocation was not enough. Returns the new list and for how long it is not tried again (s).

    Each time it is twice as long. That nobody tried it for a while does not prove it right: its earlier failures are
    forgiven after it has stood for as long as it was barred, or after ``FORGETS`` times ``regret_s``.

    Args:
        regrets: what is known.
        allocation: what was not enough.
        now_s: the time, monotonic.
        regret_s: the shortest time.
        setting: under what it failed.
        stood_s: how long it had been in force.
    """

    def counts(known: Regret) -> bool:
        alike = known.allocation == allocation or (
            known.allocation.cpu == allocation.cpu and inferer.asks_no_more(allocation, known.allocation)
        )
        wait_s = _wait_s(known.times, regret_s)
        old = now_s >= known.until_s + FORGETS * regret_s
        forgiven = old or (now_s >= known.until_s + wait_s and stood_s >= wait_s)
        return alike and setting.resembles(known.setting) and not forgiven

    times = 1 + max((known.times for known in regrets if counts(known)), default=0)
    wait_s = _wait_s(times, regret_s)
    same = allocation, setting.beside
    others = tuple(r for r in regrets if (r.allocation, r.setting.beside) != same)[1 - _MOST_REGRETS :]
    return (*others, Regret(allocation, now_s + wait_s, times, setting, now_s + regret_s)), wait_s


def _wait_s(times: int, regret_s: float) -> float:
    return doubled_s(regret_s, times - 1)


@dataclass(frozen=True, slots=True)
class Harmed:
    """Steps back to batch that have harmed the LRA: how many, the last one's time (monotonic), and under what."""

    times: int = 0
    at_s: float = -math.inf
    setting: Setting = ANYWHERE

    def here(self, now_s: float, setting: Setting, regret_s: float) -> int:
        """Those that tell something of this setting, and are not forgotten."""
        recent = now_s < self.at_s + FORGETS * regret_s
        return self.times if recent and setting.resembles(self.setting) else 0

    def again(self, now_s: float, setting: Setting, regret_s: float) -> Harmed:
        """After one more."""
        return Harmed(self.here(now_s, setting, regret_s) + 1, now_s, setting)


def patience(regretted: Sequence[Allocation], harmed: int = 0) -> float:
    """How many times longer than usual is waited before a step back.

    Args:
        regretted: what is not to be tried now.
        harmed: steps back that harmed the LRA here: each one after the first ``FREE`` doubles the wait.
    """
    return max(1.0 + REGRET_SLOWS * len(regretted), doubled_s(1.0, harmed - FREE))


def alive(regrets: Sequence[Regret], now_s: float, setting: Setting = ANYWHERE) -> tuple[Allocation, ...]:
    """What is regretted now, as far as it was found under a setting like this one."""
    return tuple(r.allocation for r in regrets if r.bars(now_s, setting))
