"""Learners for comparison only: the published equations as printed, their corrected reading, and a static model.

All start from the same trees and share an interface (``base.Learner``); none is used to act.
"""

from tools.bench.predictor.learners.base import Learner, Static
from tools.bench.predictor.learners.paper import PaperLiteral
from tools.bench.predictor.learners.stagewise import StageWise

__all__ = ["Learner", "PaperLiteral", "StageWise", "Static"]
