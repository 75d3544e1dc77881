"""What follows from a change for one LRA: it is remembered when it is decided, overtaken, judged, taken back.

``outcomes`` says what samples tell of a change, here it is said what becomes of it then: whether it stands, how much
may be given back next, what is held against the model's advice, what is not tried again. Values in, values out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import outcomes, quarantine
from perphd.admission.detector import Judgement, rearm
from perphd.admission.lra_state import LraState, rose
from perphd.admission.outcomes import Came, Pending
from perphd.admission.rescue import Move
from perphd.admission.scatter import mean
from perphd.admission.scene import Scene
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Action, Outcome
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available, value_or

FIRST_STRIDE: Final = 2
"""Units of the first step back after a rescue that gave more than enough."""
SUDDEN_TICKS: Final = 3
"""For so long after trouble began, what does not relieve it at once is not waited for; later, steps are looked at."""
BEYOND_STEP: Final = 0.4
"""A score so low after one step back is not that step's doing alone: something else has come."""


@dataclass(frozen=True, slots=True)
class Sequel:
    """What came of a change that is judged. ``state``: after it; ``undo``: what takes it back, None if it stands."""

    state: LraState
    outcome: Outcome
    undo: Move | None


def decided(scene: Scene, state: LraState, move: Move, judged: Judgement) -> LraState:
    """The state after a change was decided. ``judged``: what it was decided on."""
    score: Reading = Unavailable("no clean score before")
    if judged.blatant and available(judged.score):
        score = judged.score  # that is what the change is to cure, not the good time before
    elif state.scores:
        score = mean(state.scores[-3:])
    pending = None
    if move.action in (Action.GROW, Action.EXPLORE, Action.SHRINK):
        load = scene.view.sample.load_per_s if scene.view.sample is not None else NOT_MEASURED
        way = scene.current, move.chosen
        pending = Pending(scene.now_s, *way, move.action, score, load, unproven=move.unproven, home=move.home)
    # A step aside that something else has overtaken is not gone back from.
    aside = state.aside if move.chosen == state.aside.out else state.aside.back()
    return replace(
        state,
        pending=pending,
        gave_back=scene.setting() if move.action is Action.SHRINK else None,
        aside=aside,
        scores=(),
        slack_since_s=None,
        unknown_since_s=None,
        detector=rearm(state.detector),
    )


def in_force(scene: Scene, state: LraState) -> LraState:
    """The state at the next tick: without the change if what was decided is not what is in force.

    It was refused, undone or restored: there is nothing to judge, and deciding the same again at once would only be
    refused again.
    """
    pending = state.pending
    if pending is None or pending.after == scene.current:
        return state
    if pending.before == scene.current:
        state, _ = regret(scene, state, pending.after)
    return replace(state, pending=None)


def overtaken(scene: Scene, pending: Pending, judged: Judgement, load: Reading) -> str:
    """Why it is not waited for what comes of a change that gave the LRA more; empty if it is."""
    if not (judged.blatant and available(judged.score)):
        return ""
    if not scene.is_clean() and rose(load, pending.load):
        return "its load goes on rising: "  # what was decided was for a load that is no more
    sudden = scene.now_s - judged.verdict.since_s <= SUDDEN_TICKS * scene.snapshot.period_s
    if sudden and outcomes.is_no_better(pending, judged.score):
        return "the last step has not helped: "
    return ""


def beyond(scene: Scene, state: LraState, pending: Pending, score: float, load: Reading) -> str:
    """Why undoing a step back that left far too little is not enough; empty if that step alone explains it."""
    if rose(load, pending.load):
        return "its load has risen: "
    if score < BEYOND_STEP and not state.quarantine.active(scene.now_s):
        return "far below its target, more than the last step explains: "
    return ""


def judge(scene: Scene, state: LraState, pending: Pending, noise_sd: float) -> Sequel | None:
    """What came of the change, from the clean scores since; None while they leave that open.

    Args:
        scene: of the decision.
        state: what is remembered of the LRA.
        pending: the change.
        noise_sd: scatter of one sample's score, in log units.
    """
    if not state.scores:
        return None
    came = outcomes.judge(pending, state.scores, noise_sd, scene.nothing, scene.settings)
    if came is Came.OPEN:
        return None
    before, after = pending.score_before, mean(state.scores)
    held = quarantine.judged(state.quarantine, pending, came, after, scene.now_s, scene.settings)
    stands = not _is_undone(pending, came)
    words = "the target is kept" if came is Came.HELPED and pending.action is Action.SHRINK else came
    text = f"score {value_or(before, math.nan):.2f} -> {after:.2f}: {words}"
    outcome = Outcome(scene.now_s, scene.view.spec.name, pending.at_s, before, after, kept=stands, text=text)
    stride = _next_stride(scene, state, pending, came, noise_sd)
    state = replace(state, pending=None, stride=stride, quarantine=held)
    if stands:
        return Sequel(state, outcome, None)
    state, move = undone(scene, state, pending, text)
    return Sequel(state, outcome, move)


def _is_undone(pending: Pending, came: Came) -> bool:
    """True if a change with such an outcome is taken back."""
    return came in (Came.TOO_LITTLE, Came.WORSE) or (came is Came.NO_HELP and pending.must_help)


def _next_stride(scene: Scene, state: LraState, pending: Pending, came: Came, noise_sd: float) -> int:
    """How many units may be given back next."""
    if came is not Came.HELPED:
        return 1
    if pending.action is Action.SHRINK:
        units = outcomes.units_between(pending.before, pending.after, scene.snapshot.host.mba_levels_pct)
        doubt = noise_sd / math.sqrt(len(state.scores))
        return outcomes.next_stride(units, pending.score_before, mean(state.scores), doubt)
    rescued = state.aside.out != pending.after and outcomes.is_ample(state.scores, noise_sd)
    return FIRST_STRIDE if rescued else 1


def undone(scene: Scene, state: LraState, pending: Pending, why: str) -> tuple[LraState, Move]:
    """The state after a change is taken back and regretted, and the move that does it."""
    state, wait_s = regret(scene, state, pending.after)
    kept = tuple(r for r in state.regrets if r.allocation != pending.origin)
    state = replace(state, pending=None, slack_since_s=None, regrets=kept, stride=1)
    reason = f"{why}: taken back, nothing like it is tried for {wait_s:.0f} s"
    return state, Move(Action.ROLLBACK, pending.origin, reason)


def regret(scene: Scene, state: LraState, allocation: Allocation) -> tuple[LraState, float]:
    """The state with an allocation that was not enough, and for how long nothing like it is tried (s)."""
    if not scene.view.enforced:
        return state, 0.0  # what is only watched has shown nothing of what was decided
    setting, regret_s = scene.setting(), scene.settings.regret_s
    gave = state.gave_back
    if gave is not None and allocation == scene.current:
        # More load, or other batch, is not the doing of what was given back.
        blame = setting.beside == gave.beside and not rose(setting.load, gave.load)
        harmed = state.harmed.again(scene.now_s, setting, regret_s) if blame else state.harmed
        state = replace(state, gave_back=None, harmed=harmed)
    stood_s = scene.now_s - scene.view.protected_since_s if allocation == scene.current else 0.0
    regrets, wait_s = outcomes.regret(state.regrets, allocation, scene.now_s, regret_s, setting, stood_s)
    return replace(state, regrets=regrets), wait_s
