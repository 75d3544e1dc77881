"""Online gradient-boosted regression trees: the Res-Perf model that learns from every sample.

The portable form is ``trees.Trees`` (plain arrays), the resident form ``forest.Forest`` (bit masks); both are numpy
only.
"""

from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import InvalidModel, Trees

__all__ = ["Forest", "InvalidModel", "Trees"]
