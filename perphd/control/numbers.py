"""Numbers and durations as perphctl shows them. Separate from ``render``, which is slow to import."""

from __future__ import annotations

from perphd.domain.reading import Reading, available

NONE = "-"


def duration(seconds: float) -> str:
    """Text such as ``2 h 03 min``."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(reading: Reading, unit: str = "") -> str:
    """A number with three to four digits; ``-`` if there is none."""
    if not available(reading):
        return NONE
    size = abs(reading)
    shown = f"{reading:.0f}" if size >= 100 else f"{reading:.3g}"
    return f"{shown} {unit}".rstrip()
