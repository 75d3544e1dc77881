"""Performance predictor: one Res-Perf model per LRA, learned from every suitable sample.

A model is physics (how processors are shared) times a learned correction with a confidence band. It predicts many
allocations at once. Only this package learns; policies query it through ``domain.policy.ResPerfModel``.
"""

from perphd.predictor.model import LraModel, Observation
from perphd.predictor.registry import Registry

__all__ = ["LraModel", "Observation", "Registry"]
