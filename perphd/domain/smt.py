"""Speed of hardware threads that share a core (SMT)."""

from __future__ import annotations

from typing import Final

SIBLING_SPEED: Final = 0.63
"""Speed of a hardware thread whose sibling is busy. Measurements with the workload archetypes gave 0.60 to 0.71.

Two busy siblings together do 1.26 times the work of one alone. Intel states 1.15 to 1.30 for servers.
"""
SMT_SLOWER: Final = 1.0 / SIBLING_SPEED
"""CPU time for the same work beside a busy sibling, relative to an idle one."""


def thread_speed(busy: float) -> float:
    """Mean speed of hardware threads that are busy for this share of their time, relative to idle siblings.

    Both siblings are busy at once for the square of that share. ``busy`` above 1 counts as 1.
    """
    return 1.0 - (1.0 - SIBLING_SPEED) * min(busy, 1.0) ** 2
