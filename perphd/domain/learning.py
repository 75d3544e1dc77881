"""How models learn, as far as an operator chooses: shared by the configuration and the models, and free of numpy.

What reads the configuration starts at every call of a program (``perphctl``, ``perphd restore``); it must be light.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Learner: TypeAlias = Literal["ogbrt", "residual"]
"""How corrections are learned: boosted trees below local cells, or the cells alone."""
DEFAULT_LEARNER: Learner = "ogbrt"

GATE_MAPE: Final = 0.2
"""Greatest mean relative error at which a model may act."""
