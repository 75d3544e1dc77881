"""Exponential backoff: pauses that double after each failed attempt. No other module doubles a pause."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_DOUBLINGS: Final = 6
"""Maximum number of doublings in ``doubled_s``: up to 64 times its base."""


@dataclass(frozen=True, slots=True)
class BackoffRule:
    """Pauses that double from ``first_s`` to ``longest_s`` seconds."""

    first_s: float
    longest_s: float

    def after(self, pause_s: float) -> float:
        """The next pause in seconds, after a pause of ``pause_s`` seconds (0: after the first failure)."""
        return min(2 * pause_s, self.longest_s) if pause_s else self.first_s

    def nth(self, pauses: int) -> float:
        """The pause that follows this number of earlier ones."""
        return min(self.first_s * 2.0 ** min(pauses, 64), self.longest_s)


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


def doubled_s(base_s: float, repeats: int) -> float:
    """``base_s`` doubled ``repeats`` times, at most 6; a negative count counts as 0."""
    return base_s * 2.0 ** min(max(repeats, 0), MOST_DOUBLINGS)
