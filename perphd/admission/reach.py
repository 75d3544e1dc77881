"""A target that is out of reach: settle on the cheapest of the nearly equal best settings, and look again rarely.

Problem: where nothing that batch can give brings an LRA back to its target, trying goes on for ever, and every try
disturbs the LRA. Approach: changes that brought the LRA no nearer to its target are counted. After a handful the
setting that did best of those tried is put in force, or a cheaper one that did nearly as well, and nothing is changed
any more until it is time to look again. Every look may fail once; the pauses between looks double. A change after
which the LRA did better than ever before in the episode does not count: there may be more where that came from, as
with cache ways that help a step at a time.

A target that one of the settings kept is not out of reach: then the episode begins anew instead. So it does when other
things can be set than before: resctrl was mounted, or nobody else insists on masks of his own any more. It ends once
the target was kept for a while. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import inferer
from perphd.admission.backoff import doubled_s
from perphd.admission.context import giving_now
from perphd.admission.ladder import cache_knobs
from perphd.admission.rescue import Move
from perphd.admission.scene import Scene
from perphd.domain.allocation import IDLE, Allocation
from perphd.domain.decision import Action
from perphd.domain.reading import Reading, available
from perphd.domain.workload import Exploration

HANDFUL: Final = 5
"""Settings that may prove no better than those before, returns included, before perphd settles: two instruments tried
and taken back, and one that is left in force."""
BETTER: Final = 1.05
"""A setting brought the LRA nearer to its target if its score is this many times the best one before."""
MOST_PER_MINUTE: Final = 7
"""Changes within a minute while the target is missed; settling is one more."""
MINUTE_S: Final = 60.0
LOOK_AGAIN_S: Final = 600.0
"""The first pause before another look; each look that fails doubles it ..."""
MOST_DOUBLED: Final = 2
"""... so many times."""
LOOK_S: Final = 30.0
"""A look that finds nothing to change ends after this time."""
KEPT_S: Final = 60.0
"""The target must be kept for this long before changes that failed are forgotten."""
NEARLY: Final = 0.97
"""Scores that are this share of the best count as equal to it."""
LEAST_SAMPLES: Final = 2
MOST_TRIED: Final = 12
ALL_AT_ONCE: Final = "batch is kept from all that it can be kept from at once"
_WEIGHT_OF_IDLE: Final = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """How the LRA fared under one allocation: mean logarithm of ``samples`` scores."""

    allocation: Allocation
    log_score: float
    samples: int

    @property
    def score(self) -> float:
        """Geometric mean of its scores."""
        return math.exp(self.log_score)


@dataclass(frozen=True, slots=True)
class Instruments:
    """The settings of batch that can be changed here and now."""

    cpus: bool
    weight: bool
    cache_knobs: int


@dataclass(frozen=True, slots=True)
class Reach:
    """What is remembered of an episode. ``failed``: settings that were left without having done better than those
    before; ``changed_s``: when settings changed, in the last minute.

    ``last``: the allocation of the last sample; ``settled_until_s``: nothing is changed before; None: not settled.
    ``looking_since_s``: a look goes on; ``looks``: that failed; ``kept_since_s``: since when the target is kept without
    a break; ``instruments``: what could be set.
    """

    tried: tuple[Tried, ...] = ()
    failed: int = 0
    changed_s: tuple[float, ...] = ()
    last: Allocation | None = None
    settled_until_s: float | None = None
    looking_since_s: float | None = None
    looks: int = 0
    kept_since_s: float | None = None
    instruments: Instruments | None = None

    @property
    def best(self) -> float:
        """The best score of the episode; NaN if none was seen."""
        return max((t.score for t in self.tried if t.samples >= LEAST_SAMPLES), default=math.nan)


def instruments(scene: Scene) -> Instruments | None:
    """The settings of batch that can be changed here and now; None where there is no batch."""
    if not scene.giving():
        return None
    knobs, cache = scene.knobs(), cache_knobs(scene.snapshot.host, giving_now(scene.snapshot))
    return Instruments(knobs.batch_cpus, knobs.batch_weight, cache)


def strongest(scene: Scene) -> Allocation | None:
    """All that batch can be kept from; None where that is CPU alone, which the policy tries soon enough."""
    shield = scene.shield_allocation()
    return shield if shield != scene.probe_allocation() else None


def having(reach: Reach, instruments: Instruments | None) -> Reach:
    """The episode where these can be set; a new one if they were others. None: there is no batch to set them of."""
    if instruments is None or instruments == reach.instruments:
        return reach
    if reach.instruments is None:
        return replace(reach, instruments=instruments)
    return Reach(changed_s=reach.changed_s, instruments=instruments)


def seen(reach: Reach, current: Allocation, score: Reading, now_s: float, *, clean: bool) -> Reach:
    """The episode after one more sample under ``current``. ``score``: of the sample; ``clean``: nothing settles."""
    if not available(score) or not clean:
        return reach
    since_s = (reach.kept_since_s if reach.kept_since_s is not None else now_s) if score >= 1.0 else None
    if since_s is not None and now_s - since_s >= KEPT_S:
        return Reach(last=current, kept_since_s=since_s, instruments=reach.instruments)
    changed = since_s is None and reach.last is not None and reach.last != current
    if changed and reach.last is not None and _only_memory(reach.last, current):
        changed = False
    if changed and reach.last is not None:
        recent = (*(at_s for at_s in reach.changed_s if now_s - at_s < MINUTE_S), now_s)
        in_vain = not _was_nearer(reach.tried, reach.last)
        reach = replace(reach, failed=reach.failed + in_vain, changed_s=recent)
    reach = replace(reach, kept_since_s=since_s, last=current)
    log = math.log(min(max(score, 1e-3), 10.0))
    known = next((t for t in reach.tried if t.allocation == current), None)
    if known is None:
        now = Tried(current, log, 1)
    else:
        n = known.samples + 1
        now = Tried(current, known.log_score + (log - known.log_score) / n, n)
    others = tuple(t for t in reach.tried if t.allocation != current)
    return replace(reach, tried=(*others, now)[-MOST_TRIED:])


def standing(reach: Reach, current: Allocation, now_s: float) -> tuple[Reach, Move | None]:
    """What holds before anything is decided: HOLD while settled; None where the policy may decide."""
    until_s = reach.settled_until_s
    if until_s is None:
        return reach, None
    if now_s < until_s:
        return reach, Move(Action.HOLD, current, told(reach, now_s))
    # What was seen before tells little of now: the look compares anew.
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
    """The move that is made instead of ``move``, and what is remembered then.

    Args:
        reach: the episode.
        move: what the policy wants.
        current: in force.
        now_s: monotonic seconds.
        scores: clean scores since the last change.
        strongest: all that batch can be kept from at once; no target is out of reach before that was tried.
    """
    if move.action is Action.RELEASE:
        return Reach(instruments=reach.instruments), move
    if reach.kept_since_s is not None:
        return reach, move  # it is on target: giving back has its own rules
    stays = move.chosen == current or _only_memory(move.chosen, current)
    looked = reach.looking_since_s is not None and now_s - reach.looking_since_s >= LOOK_S
    if stays and not looked:
        return reach, move
    if not stays and reach.failed < HANDFUL:
        if sum(now_s - at_s < MINUTE_S for at_s in reach.changed_s) >= MOST_PER_MINUTE:
            return reach, Move(Action.HOLD, current, "enough was changed within the last minute")
        return reach, move
    if len(scores) < LEAST_SAMPLES:
        return reach, Move(Action.HOLD, current, "whether the last change helped is being judged")
    if reach.best >= 1.0:
        return replace(reach, tried=(), failed=0, looking_since_s=None), move
    if strongest is not None and not reach.looks and not _was_tried(strongest, reach.tried):
        return reach, Move(Action.GROW, strongest, "nothing else has helped enough: " + ALL_AT_ONCE)
    chosen = cheapest_of_the_best(reach.tried, current)
    reach = _settled(reach, now_s)
    action = Action.HOLD if chosen == current else Action.ROLLBACK
    return reach, Move(action, chosen, told(reach, now_s))


def cheapest_of_the_best(tried: Sequence[Tried], current: Allocation) -> Allocation:
    """Of the settings that did as well as the best, the one that leaves batch most; ``current`` if none was judged."""
    judged = [t for t in tried if t.samples >= LEAST_SAMPLES]
    if not judged:
        return current
    best = max(t.score for t in judged)
    near = [t.allocation for t in judged if t.score >= NEARLY * best]
    return max(near, key=lambda a: (_left_to_batch(a), a == current))


def told(reach: Reach, now_s: float) -> str:
    """The state of the episode in words."""
    minutes = max(0.0, (reach.settled_until_s or now_s) - now_s) / 60.0
    best = "" if math.isnan(reach.best) else f"{100.0 * reach.best:.0f} % of it is the best that was reached"
    parts = ("the target is out of reach", best, f"nothing more is tried for {minutes:.0f} min")
    return "; ".join(part for part in parts if part)


def may_try(exploration: Exploration, move: Move, current: Allocation) -> str:
    """Why an exploration is not made; empty if it may be, or if the move is none.

    A place that is predicted to be worse than the present one is never tried, unless everything may be.
    """
    if move.action is not Action.EXPLORE or exploration is Exploration.ALL:
        return ""
    if exploration is Exploration.OFF:
        return "nothing known is better, and exploration is off"
    if move.chosen.cpu.exclusive and not current.cpu.exclusive:
        return "nothing known is better, and only batch's settings may be explored"
    scores = {c.allocation: c.score for c in move.candidates}
    if scores.get(move.chosen, math.inf) < scores.get(current, 0.0):
        return "what is untried is predicted to be worse"
    return ""


def _was_tried(wanted: Allocation, tried: Sequence[Tried]) -> bool:
    """Whether this much was taken from batch already, or more."""
    return any(
        inferer.asks_no_more(wanted, replace(t.allocation, memory_bytes=wanted.memory_bytes)) for t in tried
    )


def _was_nearer(tried: Sequence[Tried], left: Allocation) -> bool:
    """Whether the LRA did better under this setting than under all others; so for the first one of an episode."""
    others = [t.score for t in tried if t.allocation != left]
    judged = [t.score for t in tried if t.allocation == left and t.samples >= LEAST_SAMPLES]
    return not others or (bool(judged) and judged[0] >= BETTER * max(others))


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
