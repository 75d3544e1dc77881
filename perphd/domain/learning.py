"""Learning settings that an operator may choose, shared by configuration and models.

This module does not import numpy, because every call of ``perphctl`` and ``perphd restore`` reads the configuration and
must start fast.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Learner: TypeAlias = Literal["staged", "ogbrt", "residual"]
"""Learner of a model's corrections.

``staged``: a shared level and stages with fixed signs. ``ogbrt``: boosted trees, with local cells that correct them.
``residual``: local cells alone.
"""
DEFAULT_LEARNER: Learner = "ogbrt"
"""Default learner.

``staged`` predicts better in nearly every phase. In the quick policy bench, however, six of eleven runs missed the
target for longer with it than with ``ogbrt``, and none for less time (12.0 s against 8.25 s of 1320 s).
"""
Ablated: TypeAlias = Literal["level", "prior"]
"""Reduced learners for ablation in benches. ``level``: the shared level alone; ``prior``: physics alone."""

GATE_MAPE: Final = 0.2
"""Maximum mean relative error of a model (0.2 is 20 %) at which a policy may act on it."""
