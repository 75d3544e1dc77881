"""Performance Predictor: one Res-Perf model per LRA, learned from every fit sample.

A model is physics (how processors are shared) times a learned correction with a band; it answers "what if"
for many allocations at once. Only this package learns; policies ask through ``domain.policy.ResPerfModel``.
"""

from perphd.predictor.model import LraModel, Observation
from perphd.predictor.registry import Registry

__all__ = ["LraModel", "Observation", "Registry"]
