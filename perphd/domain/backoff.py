"""Exponential backoff: the pause before each next try. The only code that doubles a pause."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_DOUBLINGS: Final = 6
"""``doubled_s`` grows to 64 times its base."""


@dataclass(frozen=True, slots=True)
class BackoffRule:
    """Pauses that double from ``first_s`` to ``longest_s`` seconds."""

    first_s: float
    longest_s: float

    def after(self, pause_s: float) -> float:
        """The pause that follows one of ``pause_s``; 0: there was none."""
        return min(2 * pause_s, self.longest_s) if pause_s else self.first_s

    def nth(self, pauses: int) -> float:
        """The pause that follows this number of earlier ones."""
        return min(self.first_s * 2.0 ** min(pauses, 64), self.longest_s)


@dataclass(slots=True)
class RetryPause:
    """The pause before the next try: ``pause_s`` seconds, until ``until_s``."""

    rule: BackoffRule
    pause_s: float = 0.0
    until_s: float = -math.inf

    def failed(self, now_s: float) -> None:
        """Begin the next pause."""
        self.pause_s = self.rule.after(self.pause_s)
        self.until_s = now_s + self.pause_s

    def succeeded(self) -> None:
        """Forget the failures."""
        self.pause_s, self.until_s = 0.0, -math.inf


def doubled_s(base_s: float, repeats: int) -> float:
    """``base_s`` doubled ``repeats`` times, at most 6; a negative count counts as 0."""
    return base_s * 2.0 ** min(max(repeats, 0), MOST_DOUBLINGS)
