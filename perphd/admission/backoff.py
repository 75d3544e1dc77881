"""Exponential backoff, capped at 64 times the base delay."""

from __future__ import annotations

from typing import Final

MOST_DOUBLINGS: Final = 6


def doubled_s(base_s: float, repeats: int) -> float:
    """``base_s`` doubled ``repeats`` times, at most 6; a negative count counts as 0."""
    return base_s * 2.0 ** min(max(repeats, 0), MOST_DOUBLINGS)
