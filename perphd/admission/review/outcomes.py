"""Evaluates a change from the samples taken after it settled, allowing for their scatter.

All functions are pure, and the policy keeps the values in its memory. A harmful change is rolled back and starts a
cooldown, which doubles with every repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.admission.detector.judge import Target
from perphd.admission.detector.scatter import mean
from perphd.admission.inference import inferer
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import HELPED_RATIO, WORSE_RATIO
from perphd.domain.allocation import Allocation
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import Action
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.signals import Performance

PATIENCE = 3
"""Maximum number of samples for an undecided change, as a multiple of ``evaluate_ticks``."""
_CLEAR = 1.0
_CLEAR_SIGMA = 1.5
"""Number of standard errors below target from which a score under ``WORSE_RATIO`` decides early."""
FEW = 3
"""Minimum number of samples that prove a lasting shortfall."""
SLIGHTLY, OFTEN, OFTEN_OF = 0.98, 3, 8
"""OFTEN of OFTEN_OF samples below SLIGHTLY times the target are too many, whatever their mean."""
_AMPLE = 0.05
MOST_STRIDE = 8
"""Maximum units of cores, ways or bandwidth to give back in one step."""
_PILED_UP = 0.4
"""Score below which requests have presumably queued up."""
_COSTLIER = 1.5
"""Assumed cost of the next units relative to the last ones, because each unit costs more than the one before."""
_CERTAIN = 3.0
_DOUBTFUL = 0.5
_BEFORE_SAMPLES = 3
REGRET_SLOWS: Final = 2.0
"""Increase in the wait before the next reduction for each allocation in cooldown, as a multiple of the wait."""
_MOST_REGRETS = 16
FREE: Final = 4
"""Number of harmful reductions after which apparent slack is doubted, because each try costs the LRA performance."""
FORGETS: Final = 64.0
"""Multiple of ``regret_s`` after which an unrepeated failure is forgotten."""
LOAD_ROSE: Final = 1.2
"""Growth of the load after which earlier allocations no longer show how much is enough."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change under evaluation; ``load``: the LRA's load when it was decided.

    ``unproven``: no model supports it, so it stands only if it helps. ``home``: allocation to return to on rollback, if
    not ``before``. ``room_before``: ``room`` before the change.
    """

    at_s: float
    before: Allocation
    after: Allocation
    action: Action
    score_before: Reading
    load: Reading = NOT_MEASURED
    unproven: bool = False
    home: Allocation | None = None
    room_before: Reading = NOT_MEASURED

    @property
    def origin(self) -> Allocation:
        """Allocation to return to on rollback."""
        return self.home if self.home is not None else self.before

    @property
    def must_help(self) -> bool:
        """True if the change is rolled back unless it helps.

        Ineffective cache and bandwidth restrictions are lifted at once, and the next resource is tried.
        """
        same_cpu = self.before.cpu == self.after.cpu
        return self.unproven or (same_cpu and self.before.memory_bytes == self.after.memory_bytes)


class Came(StrEnum):
    """Findings about a pending change."""

    OPEN = "open"  # undecided
    HELPED = "it helped"
    NO_HELP = "it did not help"
    TOO_LITTLE = "too little is left"
    WORSE = "it made things worse"


def judge(
    pending: Pending, scores: Sequence[float], noise_sd: float, nothing: Allocation, settings: PolicySettings
) -> Came:
    """Evaluate a change from the clean scores since then (1 = on target).

    Args:
        pending: the change.
        scores: scores of the clean samples since the change, at least one.
        noise_sd: scatter of one sample's score, in log units.
        nothing: the allocation without protection; a first protection never counts as worse.
        settings: ``evaluate_ticks`` samples decide, or up to ``PATIENCE`` times as many while undecided.
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
    # Taking more from batch cannot harm the LRA; if the LRA performs worse, the trouble has grown.
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
    # Continue to watch a change that must help while the samples do not show whether it helps.
    watched = pending.unproven or (pending.must_help and doubtful)
    return Came.OPEN if watched and n < PATIENCE * settings.evaluate_ticks else Came.NO_HELP


def is_ample(scores: Sequence[float], noise_sd: float) -> bool:
    """True if the mean is too far above target for scatter to explain."""
    return math.log(mean(scores)) > _AMPLE + _CERTAIN * noise_sd / math.sqrt(len(scores))


def is_no_better(pending: Pending, score: float) -> bool:
    """True if an LRA that got CPUs shows no relief yet.

    This does not apply to caches, which take time to fill, nor while requests have piled up, because the
    oldest of them complete last.
    """
    grown = pending.action in (Action.GROW, Action.EXPLORE) and pending.before.cpu != pending.after.cpu
    grown = grown and score > _PILED_UP
    return grown and available(pending.score_before) and score < pending.score_before * HELPED_RATIO


def room(perf: Performance, target: Target, score: float) -> float:
    """Distance of an LRA above its target in one sample; 1 is on target.

    In an open loop, work equals the demand and exceeds its target by at most the tolerance, whatever the
    spare capacity. There, accepted over observed delay shows how much a reduction may cost.
    """
    if not (available(perf.load) and available(perf.delay) and available(target.delay)) or perf.delay <= 0:
        return score
    return max(target.delay / perf.delay, score)


def units_between(a: Allocation, b: Allocation, levels_pct: Sequence[int]) -> int:
    """Largest difference of two allocations in units of cores, ways or throttle levels (``levels_pct``)."""
    low, high = sorted((a.mbw_pct, b.mbw_pct))
    throttle = sum(low < level <= high for level in {*levels_pct, 100})
    cores = abs(a.cpu.batch_cores - b.cpu.batch_cores)
    return max(1, cores, abs(a.llc_ways - b.llc_ways), throttle)


def next_stride(stride: int, before: Reading, after: float, doubt: float) -> int:
    """Number of units that may be given back next: twice as many if the cost of the last units leaves room.

    Args:
        stride: units of the step just evaluated.
        before: room before it.
        after: room since then.
        doubt: scatter of that room in log units, which may hide a cost of this size.
    """
    if not available(before):
        return 1
    cost = max(math.log(before / after), doubt) / stride
    room = math.log(after) / (_COSTLIER * cost)
    return max(1, min(2 * stride, int(room), MOST_STRIDE))


def still_short(scores: Sequence[float], noise_sd: float, settings: PolicySettings) -> bool:
    """True if enough samples since the last change have a mean below target.

    A degraded LRA must return to its target, not only to within its scatter.
    """
    n = PATIENCE * settings.evaluate_ticks
    last = scores[-n:]
    doubt = noise_sd / math.sqrt(max(len(last), 1))
    if len(last) < min(FEW, n):
        return False
    return -math.log(mean(last)) > (_DOUBTFUL if len(last) >= n else _CLEAR) * doubt


def is_often_short(scores: Sequence[float], settings: PolicySettings) -> bool:
    """True if too many of the latest samples are below target, whatever their mean.

    Short samples are averaged in groups first.
    """
    size = max(1, settings.evaluate_ticks // 2)
    last = scores[-OFTEN_OF * size :]
    means = [mean(last[i : i + size]) for i in range(len(last) % size, len(last), size)]
    return sum(s < SLIGHTLY for s in means) >= OFTEN


@dataclass(frozen=True, slots=True)
class Setting:
    """Circumstances of a failure: the batch workloads present (names), and the LRA's load."""

    beside: frozenset[str] = frozenset()
    load: Reading = NOT_MEASURED

    def resembles(self, other: Setting) -> bool:
        """True if an allocation that was not enough under ``other`` is probably not enough here."""
        return self.beside == other.beside and not self.is_easier(other)

    def is_easier(self, other: Setting) -> bool:
        """True if the LRA's load is clearly lower than under ``other``."""
        return available(self.load) and available(other.load) and self.load * LOAD_ROSE < other.load


ANYWHERE: Final = Setting()


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A failed allocation, which is not tried again until ``until_s`` under a similar ``setting``.

    Until ``firm_until_s``, the cooldown also applies at lower load and beside other batch, because bursts repeat.
    """

    allocation: Allocation
    until_s: float
    times: int
    setting: Setting = ANYWHERE
    firm_until_s: float = -math.inf

    def bars(self, now_s: float, setting: Setting) -> bool:
        """True if the allocation must not be tried now."""
        return self.until_s > now_s and (now_s < self.firm_until_s or setting.resembles(self.setting))


def cool_down(
    cooldowns: tuple[Cooldown, ...],
    allocation: Allocation,
    now_s: float,
    regret_s: float,
    setting: Setting = ANYWHERE,
    stood_s: float = math.inf,
) -> tuple[tuple[Cooldown, ...], float]:
    """Record that an allocation was not enough; returns the new list and the length of its cooldown (s).

    The length doubles each time. Failures are forgotten once the allocation has been in force for as long as its
    last cooldown, or after ``FORGETS`` times ``regret_s``. Time in which the allocation was not in force does not
    count.

    Args:
        cooldowns: the existing cooldowns.
        allocation: the insufficient allocation.
        now_s: monotonic time.
        regret_s: the first cooldown's length.
        setting: circumstances of the failure.
        stood_s: seconds for which it had been in force.
    """

    def counts(known: Cooldown) -> bool:
        alike = known.allocation == allocation or (
            known.allocation.cpu == allocation.cpu and inferer.asks_no_more(allocation, known.allocation)
        )
        wait_s = _wait_s(known.times, regret_s)
        old = now_s >= known.until_s + FORGETS * regret_s
        forgiven = old or (now_s >= known.until_s + wait_s and stood_s >= wait_s)
        return alike and setting.resembles(known.setting) and not forgiven

    times = 1 + max((known.times for known in cooldowns if counts(known)), default=0)
    wait_s = _wait_s(times, regret_s)
    same = allocation, setting.beside
    others = tuple(r for r in cooldowns if (r.allocation, r.setting.beside) != same)[1 - _MOST_REGRETS :]
    return (*others, Cooldown(allocation, now_s + wait_s, times, setting, now_s + regret_s)), wait_s


def _wait_s(times: int, regret_s: float) -> float:
    return doubled_s(regret_s, times - 1)


@dataclass(frozen=True, slots=True)
class Harmed:
    """Reductions that harmed the LRA: their number, and the time (monotonic) and circumstances of the last one."""

    times: int = 0
    at_s: float = -math.inf
    setting: Setting = ANYWHERE

    def here(self, now_s: float, setting: Setting, regret_s: float) -> int:
        """Number of harmful reductions relevant here and not forgotten."""
        recent = now_s < self.at_s + FORGETS * regret_s
        return self.times if recent and setting.resembles(self.setting) else 0

    def again(self, now_s: float, setting: Setting, regret_s: float) -> Harmed:
        """The record with one more harmful reduction."""
        return Harmed(self.here(now_s, setting, regret_s) + 1, now_s, setting)


def patience(regretted: Sequence[Allocation], harmed: int = 0) -> float:
    """Factor on the wait before a reduction.

    Args:
        regretted: allocations in cooldown.
        harmed: reductions that harmed the LRA here; each beyond the first ``FREE`` doubles the wait.
    """
    return max(1.0 + REGRET_SLOWS * len(regretted), doubled_s(1.0, harmed - FREE))


def alive(cooldowns: Sequence[Cooldown], now_s: float, setting: Setting = ANYWHERE) -> tuple[Allocation, ...]:
    """Allocations in cooldown at ``now_s`` under circumstances like ``setting``."""
    return tuple(r.allocation for r in cooldowns if r.bars(now_s, setting))
