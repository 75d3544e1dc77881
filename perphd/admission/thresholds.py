"""Chances and ratios shared by all decisions."""

from __future__ import annotations

from typing import Final

SURE: Final = 0.9
"""Chance of meeting the target that counts as certain. Wrong decisions are corrected within a few samples."""
LIKELY: Final = 0.6
"""Chance that justifies a reduction by several units; also the chance at which a rescue by single cores aims."""
FAIR: Final = 0.35
"""Chance of meeting the target that justifies a change."""
BOLD: Final = 0.2
"""Chance of meeting the target that justifies a reduction with a large gain for batch or another LRA."""
SLIM: Final = 0.1
"""Chance of meeting the target that justifies exploration when the target is missed."""

HELPED_RATIO: Final = 1.03
"""Factor on the score above which a change has helped."""
WORSE_RATIO: Final = 0.95
"""Factor on the score below which a change is rolled back."""
