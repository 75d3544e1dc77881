"""Creates the learned corrections of a model, by kind of learner."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from perphd.domain.learning import Ablated, Learner
from perphd.predictor import features
from perphd.predictor.boosted import Boosted, Correction
from perphd.predictor.persist import ResidualState
from perphd.predictor.residual import Residual
from perphd.predictor.staged import Staged
from perphd.predictor.stages import COUNT
from perphd.predictor.trial import LENGTH, OnTrial, Start

SCALES: Final = np.array([0.4, 0.45, 0.5, 0.35, 0.6, 0.4, 0.4])
WORK_SD: Final = 0.2
DELAY_SD: Final = 0.35
"""Standard deviations of the prior (log units)."""
_STAGES: Final = {"staged": COUNT, "level": 1, "prior": 0}
"""Number of stages in use, by learner."""


def correction(learner: Learner | Ablated, prior_sd: float, noise_sd: float, sign: int) -> Correction:
    """A new correction. ``sign``: 1 if a larger value is better for the LRA, -1 if a smaller one is."""
    if learner == "residual":
        return Residual(SCALES, prior_sd, noise_sd)
    if learner == "ogbrt":
        signs = features.WORK_SIGNS if sign > 0 else features.DELAY_SIGNS
        return Boosted(SCALES, prior_sd, noise_sd, signs)
    return Staged(SCALES, prior_sd, noise_sd, sign, _STAGES[learner])


def for_channel(learner: Learner | Ablated, channel: str) -> Correction:
    """A new correction of the channel ``work`` or ``delay``."""
    if channel == "work":
        return correction(learner, WORK_SD, 0.06, +1)
    return correction(learner, DELAY_SD, 0.15, -1)


def told(alone: Correction, channel: str, start: Start) -> OnTrial:
    """A correction that starts from other hosts' estimates, on trial beside ``alone``.

    Stages hold the estimates, whatever the learner: they need no samples before they answer.
    """
    made = stages_of(channel)
    made.begin_told(start.x, start.prior, start.y, start.noise_var)
    return OnTrial(made, alone)


def stages_of(channel: str) -> Staged:
    """New stages of the channel ``work`` or ``delay``."""
    made = for_channel("staged", channel)
    assert isinstance(made, Staged)
    return made


def restored(
    learner: Learner | Ablated, channel: str, state: ResidualState, now_s: float, elapsed_s: float
) -> Correction:
    """The correction with this state.

    A trial continues. Its correction that learns alone starts from the cells, which are this host's own
    samples.

    Raises:
        InvalidModel: the values are inconsistent.
    """
    made: Correction = stages_of(channel) if state.told else for_channel(learner, channel)
    made.restore(state, now_s, elapsed_s)
    if not state.told or not state.trial_left:
        return made
    alone = for_channel(learner, channel)
    alone.restore(replace(state, staged=None, told=False), now_s, elapsed_s)
    return OnTrial(made, alone, LENGTH - state.trial_left, state.trial_excess)


def settled(learned: Correction) -> Correction:
    """``learned``, or the winner of its trial once that is over."""
    return learned.acting if isinstance(learned, OnTrial) and learned.is_over else learned


def is_told(learned: Correction) -> bool:
    """True if this correction, or the acting one of its trial, started from other hosts' estimates."""
    acting = learned.acting if isinstance(learned, OnTrial) else learned
    return isinstance(acting, Staged) and acting.told
