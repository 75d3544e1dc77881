"""How models learn, as far as an operator chooses: shared by the configuration and the models, and free of numpy.

What reads the configuration starts at every call of a program (``perphctl``, ``perphd restore``); it must be light.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Learner: TypeAlias = Literal["staged", "ogbrt", "residual"]
"""How corrections are learned: a shared level and stages that keep their signs; boosted trees below local cells; or the
cells alone."""
DEFAULT_LEARNER: Learner = "ogbrt"
"""Stages are nearer to the truth in nearly every phase, yet in the quick policy bench six of eleven runs missed more
seconds with them and none fewer (12.0 s against 8.25 s of 1320): they act once policies use their bands."""
Ablated: TypeAlias = Literal["level", "prior"]
"""What a bench has beside them to tell what learning is worth: the level alone, and nothing but physics."""

GATE_MAPE: Final = 0.2
"""Greatest mean relative error at which a model may act."""
