"""Chances and ratios that decisions of all kinds compare with, one meaning each."""

from __future__ import annotations

from typing import Final

SURE: Final = 0.9
"""Chance to meet the target that counts as certain. A wrong guess is corrected after a few samples."""
LIKELY: Final = 0.6
"""Worth a long step back to batch, and what a rescue by single cores aims at."""
FAIR: Final = 0.35
"""Worth trying."""
BOLD: Final = 0.2
"""Worth a step back that would give batch much, or that another LRA waits for."""
SLIM: Final = 0.1
"""Worth exploring when the target is missed."""

HELPED_RATIO: Final = 1.03
"""A change that raises the score by less than this did not help."""
WORSE_RATIO: Final = 0.95
"""A change that lowers the score below this share of what it was is undone."""
