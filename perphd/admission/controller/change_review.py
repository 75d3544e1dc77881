"""Life cycle of one change to an LRA's allocation: recorded, superseded, evaluated, rolled back.

``outcomes`` evaluates a change from samples. This module decides the consequences: whether the change stands, how much
may be given back next, whether the model's advice is suspended, and which allocations enter a cooldown. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.admission.controller.lra_state import LraState, rose
from perphd.admission.detector.judge import ALMOST_WHOLE, Judgement, rearm
from perphd.admission.detector.scatter import mean
from perphd.admission.features import quarantine
from perphd.admission.moves.rescue import Move
from perphd.admission.review import outcomes
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import Came, Pending
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action, Outcome
from perphd.domain.quick import replace
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available

FIRST_STRIDE: Final = 2
"""Number of units that the first reduction gives back after a rescue that gave more than enough."""
SUDDEN_TICKS: Final = 3
"""Number of ticks from the start of trouble in which a change without immediate relief is superseded at once."""
BEYOND_STEP: Final = 0.4
"""Score below which a reduction by one unit cannot be the only cause.

A reduction by several units may explain any score, because performance may fall steeply between them. The allocation
before the reduction kept the target.
"""


@dataclass(frozen=True, slots=True)
class ChangeReview:
    """Result of evaluating a change.

    ``state``: the state afterwards; ``undo``: the move that rolls the change back, None if it stands.
    """

    state: LraState
    outcome: Outcome
    undo: Move | None


def decided(lra: LraContext, state: LraState, move: Move, judged: Judgement) -> LraState:
    """The state after deciding a change. ``judged``: the judgement on which it was based."""
    score: Reading = Unavailable("no clean score before")
    if judged.blatant and available(judged.score):
        score = judged.score  # compare with the present shortfall, not with the earlier good scores
    elif state.scores:
        score = mean(state.scores[-3:])
    room: Reading = mean(state.rooms[-3:]) if state.rooms else NOT_MEASURED
    pending = None
    if move.action in (Action.GROW, Action.EXPLORE, Action.SHRINK):
        load = lra.view.sample.load_per_s if lra.view.sample is not None else NOT_MEASURED
        way = lra.current, move.chosen
        pending = Pending(
            lra.now_s,
            *way,
            move.action,
            score,
            load,
            unproven=move.unproven,
            home=move.home,
            room_before=room,
        )
    # A superseded exploration step is not reverted.
    aside = state.aside if move.chosen == state.aside.out else state.aside.back()
    return replace(
        state,
        pending=pending,
        gave_back=lra.setting() if move.action is Action.SHRINK else None,
        aside=aside,
        scores=(),
        rooms=(),
        slack_since_s=None,
        unknown_since_s=None,
        detector=rearm(state.detector),
    )


def in_force(lra: LraContext, state: LraState) -> LraState:
    """The state at the next tick; drops a decided change that is not in force.

    Such a change was refused, rolled back or restored. It enters a cooldown, because it would only be refused
    again if repeated at once.
    """
    pending = state.pending
    if pending is None or pending.after == lra.current:
        return state
    if pending.before == lra.current:
        state, _ = cool_down(lra, state, pending.after)
    return replace(state, pending=None)


def overtaken(lra: LraContext, pending: Pending, judged: Judgement, load: Reading) -> str:
    """Reason to supersede a change before its evaluation; empty if there is none."""
    if not (judged.blatant and available(judged.score)):
        return ""
    if not lra.is_clean() and rose(load, pending.load):
        return "its load continues to rise: "  # the change was sized for a lower load
    period_s = lra.snapshot.period_s
    sudden = lra.now_s - judged.verdict.since_s <= SUDDEN_TICKS * period_s
    # Part of a period shows mostly what was queued before the change.
    shown = lra.now_s - pending.at_s >= ALMOST_WHOLE * period_s
    if sudden and shown and outcomes.is_no_better(pending, judged.score):
        return "the last step has not helped: "
    return ""


def beyond(lra: LraContext, state: LraState, pending: Pending, score: float, load: Reading) -> str:
    """Reason why rolling back a harmful reduction is not enough; empty if the reduction alone explains the score."""
    if rose(load, pending.load):
        return "its load has risen: "
    levels_pct = lra.snapshot.host.mba_levels_pct
    single = outcomes.units_between(pending.before, pending.after, levels_pct) == 1
    if score < BEYOND_STEP and single and not state.quarantine.active(lra.now_s):
        return "far below its target, more than the last step explains: "
    return ""


def judge(lra: LraContext, state: LraState, pending: Pending, noise_sd: float) -> ChangeReview | None:
    """Evaluate a change from the clean scores since it was made; None while they leave the outcome open.

    Args:
        lra: context of the decision.
        state: state of the LRA.
        pending: the change.
        noise_sd: scatter of one score, in log units.
    """
    if not state.scores:
        return None
    came = outcomes.judge(pending, state.scores, noise_sd, lra.nothing, lra.settings)
    if came is Came.OPEN:
        return None
    before, after = pending.score_before, mean(state.scores)
    held = quarantine.judged(state.quarantine, pending, came, after, lra.now_s, lra.settings)
    stands = not _is_undone(pending, came)
    words = "the target is kept" if came is Came.HELPED and pending.action is Action.SHRINK else came
    known = f"{before:.2f} -> {after:.2f}" if available(before) else f"{after:.2f}, not known before"
    text = f"score {known}: {words}"
    outcome = Outcome(lra.now_s, lra.view.spec.name, pending.at_s, before, after, kept=stands, text=text)
    stride = _next_stride(lra, state, pending, came, noise_sd)
    state = replace(state, pending=None, stride=stride, quarantine=held)
    if stands:
        if came is Came.NO_HELP and pending.action is not Action.SHRINK:
            # The previous allocation was no worse, so end its cooldown.
            state = replace(state, cooldowns=_without(state, pending.before))
        return ChangeReview(state, outcome, None)
    state, move = undone(lra, state, pending, text)
    return ChangeReview(state, outcome, move)


def _is_undone(pending: Pending, came: Came) -> bool:
    """True if a change with this outcome is rolled back."""
    return came in (Came.TOO_LITTLE, Came.WORSE) or (came is Came.NO_HELP and pending.must_help)


def _next_stride(lra: LraContext, state: LraState, pending: Pending, came: Came, noise_sd: float) -> int:
    """Number of units that may be given back next."""
    if came is not Came.HELPED:
        return 1
    rooms = state.rooms or state.scores
    if pending.action is Action.SHRINK:
        units = outcomes.units_between(pending.before, pending.after, lra.snapshot.host.mba_levels_pct)
        doubt = noise_sd / math.sqrt(len(rooms))
        before = pending.room_before if available(pending.room_before) else pending.score_before
        return outcomes.next_stride(units, before, mean(rooms), doubt)
    rescued = state.aside.out != pending.after and outcomes.is_ample(rooms, noise_sd)
    return FIRST_STRIDE if rescued else 1


def undone(lra: LraContext, state: LraState, pending: Pending, why: str) -> tuple[LraState, Move]:
    """The state after rolling back a change, with a cooldown, and the move that rolls it back."""
    state, wait_s = cool_down(lra, state, pending.after)
    kept = _without(state, pending.origin)
    state = replace(state, pending=None, slack_since_s=None, cooldowns=kept, stride=1)
    reason = f"{why}: rolled back, with a cooldown of {wait_s:.0f} s"
    return state, Move(Action.ROLLBACK, pending.origin, reason)


def _without(state: LraState, allocation: Allocation) -> tuple[outcomes.Cooldown, ...]:
    """The cooldowns without that of this allocation."""
    return tuple(each for each in state.cooldowns if each.allocation != allocation)


def cool_down(lra: LraContext, state: LraState, allocation: Allocation) -> tuple[LraState, float]:
    """The state with a cooldown on an insufficient allocation, and the cooldown's length in seconds."""
    if not lra.view.enforced:
        return state, 0.0  # decisions have no effect on an observed LRA
    setting, regret_s = lra.setting(), lra.settings.regret_s
    gave = state.gave_back
    if gave is not None and allocation == lra.current:
        # Do not blame the reduction if load or batch has changed since.
        blame = setting.beside == gave.beside and not rose(setting.load, gave.load)
        harmed = state.harmed.again(lra.now_s, setting, regret_s) if blame else state.harmed
        state = replace(state, gave_back=None, harmed=harmed)
    stood_s = lra.now_s - lra.view.protected_since_s if allocation == lra.current else 0.0
    cooldowns, wait_s = outcomes.cool_down(state.cooldowns, allocation, lra.now_s, regret_s, setting, stood_s)
    return replace(state, cooldowns=cooldowns), wait_s
