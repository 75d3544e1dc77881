"""Exponential backoff: pauses that double after each failed attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffRule:
    """Pauses that double from ``first_s`` to ``longest_s`` seconds."""

    first_s: float
    longest_s: float

    def after(self, pause_s: float) -> float:
        """The next pause in seconds, after a pause of ``pause_s`` seconds (0: after the first failure)."""
        return min(2 * pause_s, self.longest_s) if pause_s else self.first_s


@dataclass(slots=True)
class RetryPause:
    """The pause before the next attempt. ``pause_s``: its length in seconds; ``until_s``: its end (monotonic)."""

    rule: BackoffRule
    pause_s: float = 0.0
    until_s: float = -math.inf

    def failed(self, now_s: float) -> None:
        """Record a failed attempt: begin the next, longer pause."""
        self.pause_s = self.rule.after(self.pause_s)
        self.until_s = now_s + self.pause_s

    def succeeded(self) -> None:
        """Record a successful attempt: end the pause and forget earlier failures."""
        self.pause_s, self.until_s = 0.0, -math.inf
