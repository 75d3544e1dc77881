"""The interface of compared learners, and a learner that does not learn."""

from __future__ import annotations

from typing import Protocol

from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.ogbrt.trees import Floats, Trees


class Learner(Protocol):
    """Predicts log-performance and may learn one sample at a time."""

    def predict(self, x: Floats) -> Floats:
        """Expected log-performance of rows (n, F); shape (n,)."""

    def learn(self, x: Floats, y: float) -> None:
        """Learn one sample: features (F,), log-performance."""


class Static:
    """The warm start without learning."""

    def __init__(self, trees: Trees) -> None:
        self._forest = Forest.compile(trees)
        self._values = self._forest.values()

    def predict(self, x: Floats) -> Floats:
        """See ``Learner``."""
        return self._forest.predict(x, self._values)

    def learn(self, x: Floats, y: float) -> None:
        """Ignore the sample."""
