"""How long what has failed is not tried again: twice as long each time, up to a bound."""

from __future__ import annotations

from typing import Final

MOST_DOUBLINGS: Final = 6


def doubled_s(base_s: float, repeats: int) -> float:
    """``base_s`` doubled ``repeats`` times: 64 times as long at most; fewer than none counts as none."""
    return base_s * 2.0 ** min(max(repeats, 0), MOST_DOUBLINGS)
