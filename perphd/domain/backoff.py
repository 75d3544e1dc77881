"""Exponential backoff as a rule without state: the pause that follows a pause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffRule:
    """Pauses that double from ``first_s`` to ``longest_s`` seconds."""

    first_s: float
    longest_s: float

    def after(self, pause_s: float) -> float:
        """The pause that follows one of ``pause_s``; 0: there was none."""
        return min(2 * pause_s, self.longest_s) if pause_s else self.first_s
