"""Online gradient-boosted regression trees: a Res-Perf model that learns from every sample.

``Ogbrt`` is the learner. ``Trees`` is the portable form of a model (plain arrays), ``Forest`` the resident one (bit
masks). Uses numpy only.
"""

from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.learner import Ogbrt
from perphd.predictor.ogbrt.settings import Learned, OgbrtSettings, TreePrediction
from perphd.predictor.ogbrt.trees import InvalidModel, Trees

__all__ = ["Forest", "InvalidModel", "Learned", "Ogbrt", "OgbrtSettings", "TreePrediction", "Trees"]
