"""Handles a target that is out of reach: holds the cheapest of the best settings, and seldom tries others.

Problem: if no restriction of batch brings an LRA back to its target, trial and error never ends, and every try disturbs
the LRA. Approach: count the changes that brought the LRA no nearer to its target. After ``HANDFUL``, restore the best
setting tried, or a cheaper one that is nearly as good, and change nothing until the next attempt. Each attempt may fail
once, and the pauses between attempts double. A change that gave the LRA its best result of the episode does
not count, because more may follow, as with cache ways that help one step at a time.

A target that one of the settings reliably met is not out of reach: the episode then restarts, at a limited rate. It
also restarts when the available knobs change: resctrl was mounted, or another program gave up its masks. It
ends once the target has been met for a while.

On a full host samples scatter, and the best of several means of few samples is good by chance alone. A setting
therefore counts as better, or good enough, only if the difference exceeds its samples' scatter, and one sample on
target exempts only reductions from the count. While a setting of ``WELL_KNOWN`` samples meets the target in the mean,
the target is within reach and every change is allowed. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.admission.context import giving_now
from perphd.admission.inference import inferer
from perphd.admission.inference.ladder import cache_knobs
from perphd.admission.moves.rescue import Move
from perphd.admission.review.lra_context import LraContext
from perphd.domain.allocation import IDLE, Allocation
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import TO_BEST, Action
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, available
from perphd.domain.workload import Exploration

HANDFUL: Final = 5
"""Number of settings without improvement after which perphd holds the best. Returns to earlier settings count as well.

Five settings are enough to try and revert two instruments, and to leave a third in force.
"""
BETTER: Final = 1.05
"""A setting is an improvement if its score exceeds the best earlier one by this factor."""
SURELY: Final = 2.5
"""Number of standard errors by which the scores of two settings must differ to exceed their samples' scatter."""
FEW: Final = 6.0
"""Correction of the scatter of n samples, as a factor 1 + FEW / n."""
MOST_PER_MINUTE: Final = 7
"""Maximum number of changes in the first minute while the target is missed, besides the one to the held setting."""
MOST_LATER: Final = 5
"""Maximum number of changes in ten minutes after the first minute, besides the one to the held setting."""
MINUTE_S: Final = 60.0
LONG_S: Final = 600.0
LOOK_AGAIN_S: Final = 600.0
"""First pause before another attempt, in seconds."""
MOST_DOUBLED: Final = 2
"""Maximum number of doublings of that pause."""
LOOK_S: Final = 30.0
"""Seconds after which an attempt without a change ends."""
KEPT_S: Final = 60.0
"""Seconds for which the target must be met before failed changes are forgotten."""
MET_S: Final = 10.0
"""Seconds for which the target must be met before an episode's text says so."""
NEARLY: Final = 0.97
"""Share of the best score above which scores count as equal to it."""
LEAST_SAMPLES: Final = 2
WELL_KNOWN: Final = 6
"""Number of samples whose mean shows whether a setting meets the target."""
MOST_TRIED: Final = 12
ALL_AT_ONCE: Final = "batch is restricted in every resource at once"
ENOUGH: Final = "the limit of recent changes is reached"
_WEIGHT_OF_IDLE: Final = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """Performance under one allocation.

    ``log_score``: mean logarithm of ``samples`` scores. ``squares``: sum of squared deviations from it.
    """

    allocation: Allocation
    log_score: float
    samples: int
    squares: float = 0.0

    @property
    def score(self) -> float:
        """Geometric mean of the scores under this allocation."""
        return math.exp(self.log_score)


@dataclass(frozen=True, slots=True)
class Instruments:
    """Knobs of batch that can be set now."""

    cpus: bool
    weight: bool
    cache_knobs: int


@dataclass(frozen=True, slots=True)
class Reach:
    """State of an episode.

    ``tried``: results by setting. ``failed``: number of settings abandoned without an improvement. ``changed_s``: times
    of changes in the last ten minutes. ``began_s``: time of the first change. ``last``: allocation of the last sample.
    ``settled_until_s``: end of holding the setting; None: not held. ``looking_since_s``: start of the present attempt.
    ``looks``: number of failed attempts. ``kept_since_s``: time since which the target has been met. ``instruments``:
    available knobs. ``anew_s``: time of the last restart because a setting had met the target.
    """

    tried: tuple[Tried, ...] = ()
    failed: int = 0
    changed_s: tuple[float, ...] = ()
    began_s: float | None = None
    last: Allocation | None = None
    settled_until_s: float | None = None
    looking_since_s: float | None = None
    looks: int = 0
    kept_since_s: float | None = None
    instruments: Instruments | None = None
    anew_s: float = -math.inf

    @property
    def best(self) -> float:
        """The best score of the episode; NaN if there is none."""
        return max((t.score for t in self.tried if t.samples >= LEAST_SAMPLES), default=math.nan)


def instruments(lra: LraContext) -> Instruments | None:
    """Knobs of batch that can be set now; None if there is no batch."""
    if not lra.giving():
        return None
    knobs, cache = lra.knobs(), cache_knobs(lra.snapshot.host, giving_now(lra.snapshot))
    return Instruments(knobs.batch_cpus, knobs.batch_weight, cache)


def strongest(lra: LraContext) -> Allocation | None:
    """The strongest restriction of batch; None if it restricts only CPU, which the policy tries anyway."""
    probe = lra.probe_allocation()
    shield = lra.with_shield(probe)
    return shield if shield != probe else None


def having(reach: Reach, instruments: Instruments | None) -> Reach:
    """The episode with these knobs available; a new one if they changed. None: there is no batch."""
    if instruments is None or instruments == reach.instruments:
        return reach
    if reach.instruments is None:
        return replace(reach, instruments=instruments)
    return Reach(changed_s=reach.changed_s, began_s=reach.began_s, instruments=instruments)


def seen(reach: Reach, current: Allocation, score: Reading, now_s: float, *, clean: bool) -> Reach:
    """The episode after one more sample under ``current``.

    ``score``: score of the sample. ``clean``: True if no change is settling.
    """
    if not available(score) or not clean:
        return reach
    since_s = (reach.kept_since_s if reach.kept_since_s is not None else now_s) if score >= 1.0 else None
    if since_s is not None and now_s - since_s >= KEPT_S:
        return Reach(last=current, kept_since_s=since_s, instruments=reach.instruments, anew_s=reach.anew_s)
    changed = reach.last is not None and reach.last != current
    if changed and reach.last is not None and _only_memory(reach.last, current):
        changed = False
    if changed and reach.last is not None:
        recent = (*(at_s for at_s in reach.changed_s if now_s - at_s < LONG_S), now_s)
        in_vain = not _was_nearer(reach.tried, reach.last)
        began_s = reach.began_s if reach.began_s is not None else now_s
        reach = replace(reach, failed=reach.failed + in_vain, changed_s=recent, began_s=began_s)
    reach = replace(reach, kept_since_s=since_s, last=current)
    log = math.log(min(max(score, 1e-3), 10.0))
    known = next((t for t in reach.tried if t.allocation == current), None)
    if known is None:
        now = Tried(current, log, 1)
    else:
        n = known.samples + 1
        mean = known.log_score + (log - known.log_score) / n
        now = Tried(current, mean, n, known.squares + (log - known.log_score) * (log - mean))
    others = tuple(t for t in reach.tried if t.allocation != current)
    return replace(reach, tried=(*others, now)[-MOST_TRIED:])


def standing(reach: Reach, current: Allocation, now_s: float) -> tuple[Reach, Move | None]:
    """The state, and a HOLD while the setting is held; None instead of a move if the policy decides."""
    until_s = reach.settled_until_s
    if until_s is None:
        return reach, None
    if now_s < until_s:
        return reach, Move(Action.HOLD, current, told(reach, now_s))
    # The attempt compares settings again, because earlier samples are outdated.
    reach = replace(
        reach, tried=(), failed=HANDFUL - 1, last=current, looking_since_s=now_s, settled_until_s=None
    )
    return reach, None


def checked(
    reach: Reach,
    move: Move,
    current: Allocation,
    now_s: float,
    scores: Sequence[float],
    strongest: Allocation | None = None,
) -> tuple[Reach, Move]:
    """The state after this tick, and the move that replaces ``move``.

    Args:
        reach: the episode.
        move: the policy's proposal.
        current: allocation in force.
        now_s: monotonic time.
        scores: clean scores since the last change.
        strongest: strongest restriction of batch; no target counts as out of reach before this was tried.
    """
    if move.action is Action.RELEASE:
        return Reach(instruments=reach.instruments), move
    if _is_met_somewhere(reach):
        return reach, move
    if reach.kept_since_s is not None and move.action is Action.SHRINK:
        return replace(reach, last=move.chosen), move  # on target: reductions follow their own rules
    stays = move.chosen == current or _only_memory(move.chosen, current)
    looked = reach.looking_since_s is not None and now_s - reach.looking_since_s >= LOOK_S
    if stays and not looked:
        return reach, move
    enough = changed_enough(reach.began_s, reach.changed_s, now_s)
    if not stays and reach.failed < HANDFUL:
        return reach, Move(Action.HOLD, current, ENOUGH) if enough else move
    if len(scores) < LEAST_SAMPLES:
        return reach, Move(Action.HOLD, current, "evaluating whether the last change helped")
    if _was_kept(reach.tried) and now_s - reach.anew_s >= LOOK_AGAIN_S:
        return replace(reach, tried=(), failed=0, looking_since_s=None, anew_s=now_s), move
    if strongest is not None and not reach.looks and not _was_tried(strongest, reach.tried):
        if enough:
            return reach, Move(Action.HOLD, current, ENOUGH)
        return reach, Move(Action.GROW, strongest, "nothing else has helped enough: " + ALL_AT_ONCE)
    chosen = cheapest_of_the_best(reach.tried, current)
    reach = _settled(reach, now_s)
    if chosen == current:
        return reach, Move(Action.HOLD, current, told(reach, now_s))
    action = Action.ROLLBACK if inferer.asks_no_more(chosen, current) else Action.GROW
    return reach, Move(action, chosen, f"{TO_BEST}: {told(reach, now_s)}", to_best=True)


def cheapest_of_the_best(tried: Sequence[Tried], current: Allocation) -> Allocation:
    """The setting most favourable to batch among the nearly best ones; ``current`` if none was evaluated."""
    judged = [t for t in tried if t.samples >= LEAST_SAMPLES]
    if not judged:
        return current
    best = max(t.score for t in judged)
    near = [t.allocation for t in judged if t.score >= NEARLY * best]
    return max(near, key=lambda a: (_left_to_batch(a), a == current))


def told(reach: Reach, now_s: float) -> str:
    """The state of the episode as text."""
    minutes = max(0.0, (reach.settled_until_s or now_s) - now_s) / 60.0
    if math.isnan(reach.best):
        best = ""
    elif reach.best < 1.0:
        best = f"the best setting reached {100.0 * reach.best:.0f} % of it in the mean"
    else:
        best = "it was met at times, but no setting met it reliably"
    kept_s = now_s - reach.kept_since_s if reach.kept_since_s is not None else 0.0
    now = "the target was out of reach, and is met now" if kept_s >= MET_S else "the target is out of reach"
    return "; ".join(part for part in (now, best, f"next attempt in {minutes:.0f} min") if part)


def changed_enough(began_s: float | None, changed_s: Sequence[float], now_s: float) -> bool:
    """True if the limit of changes is reached, so that the next one must wait; arguments as in ``Reach``."""
    first_minute_s = (began_s if began_s is not None else now_s) + MINUTE_S
    if now_s < first_minute_s:
        return len(changed_s) >= MOST_PER_MINUTE
    return sum(at_s >= first_minute_s and now_s - at_s < LONG_S for at_s in changed_s) >= MOST_LATER


def may_try(exploration: Exploration, move: Move, current: Allocation) -> str:
    """Reason why an exploration is not allowed; empty if it is, or if the move is not an exploration.

    A setting predicted to be worse is tried only if all exploration is allowed.
    """
    if move.action is not Action.EXPLORE or exploration is Exploration.ALL:
        return ""
    if exploration is Exploration.OFF:
        return "no known setting is better, and exploration is off"
    if move.chosen.cpu.exclusive and not current.cpu.exclusive:
        return "no known setting is better, and only batch's settings may be explored"
    scores = {c.allocation: c.score for c in move.candidates}
    if scores.get(move.chosen, math.inf) < scores.get(current, 0.0):
        return "untried settings are predicted to be worse"
    return ""


def _was_tried(wanted: Allocation, tried: Sequence[Tried]) -> bool:
    """True if batch was already restricted at least this much."""
    return any(
        inferer.asks_no_more(wanted, replace(t.allocation, memory_bytes=wanted.memory_bytes)) for t in tried
    )


def _scatter(tried: Sequence[Tried]) -> float:
    """Standard deviation of one sample's logarithm about its setting's mean, corrected for few samples."""
    free = sum(t.samples - 1 for t in tried)
    return math.sqrt(sum(t.squares for t in tried) / free) * (1.0 + FEW / free) if free > 0 else 0.0


def _was_nearer(tried: Sequence[Tried], left: Allocation) -> bool:
    """True if the setting ``left`` was significantly better than all others, or the only one of the episode."""
    others = [t for t in tried if t.allocation != left]
    judged = [t for t in tried if t.allocation == left and t.samples >= LEAST_SAMPLES]
    if not others or not judged:
        return not others
    here, best = judged[0], max(others, key=lambda t: t.log_score)
    doubt = SURELY * _scatter(tried) * math.sqrt(1.0 / here.samples + 1.0 / best.samples)
    return here.log_score - best.log_score >= max(math.log(BETTER), doubt)


def _was_kept(tried: Sequence[Tried]) -> bool:
    """True if one of these settings met the target significantly."""
    doubt = SURELY * _scatter(tried)
    judged = [t for t in tried if t.samples >= LEAST_SAMPLES]
    return any(t.log_score >= doubt / math.sqrt(t.samples) for t in judged)


def _is_met_somewhere(reach: Reach) -> bool:
    """True if a well-sampled setting meets the target in the mean."""
    return any(t.samples >= WELL_KNOWN and t.log_score >= 0.0 for t in reach.tried)


def _settled(reach: Reach, now_s: float) -> Reach:
    pause_s = doubled_s(LOOK_AGAIN_S, min(reach.looks, MOST_DOUBLED))
    return replace(
        reach, failed=HANDFUL, settled_until_s=now_s + pause_s, looking_since_s=None, looks=reach.looks + 1
    )


def _left_to_batch(a: Allocation) -> tuple[float, ...]:
    weight = _WEIGHT_OF_IDLE if a.cpu.batch_weight is IDLE else a.cpu.batch_weight
    return (not a.cpu.exclusive, a.cpu.batch_cores, weight, -a.llc_ways, a.mbw_pct)


def _only_memory(a: Allocation, b: Allocation) -> bool:
    return a != b and replace(a, memory_bytes=b.memory_bytes) == b
