"""Learners to compare with: the published equations as printed, their sound reading, and a model that never learns.

All start from the same trees and answer the same questions (``base.Learner``); none is used to act.
"""

from perphd.predictor.learners.base import Learner, Static
from perphd.predictor.learners.paper import PaperLiteral
from perphd.predictor.learners.stagewise import StageWise

__all__ = ["Learner", "PaperLiteral", "StageWise", "Static"]
