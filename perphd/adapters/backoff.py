"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from typing import Final

from perphd.domain.backoff import BackoffRule

LEAST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0


class Backoff:
    """Pauses that double from ``least_s`` to ``most_s`` seconds. Jitter spreads the retries of a fleet's nodes."""

    def __init__(self, least_s: float = LEAST_PAUSE_S, most_s: float = MOST_PAUSE_S) -> None:
        self._rule = BackoffRule(least_s, most_s)
        self.failures = 0

    def failed(self, at_least_s: float = 0.0) -> float:
        """Count a failure; returns the pause before the next try, in seconds and not below ``at_least_s``."""
        pause_s = self._rule.nth(self.failures)
        self.failures += 1
        return max(at_least_s, pause_s * random.uniform(0.5, 1.0))

    def succeeded(self) -> None:
        """Forget the failures."""
        self.failures = 0
