"""The wanted settings of the last plan, and the time at which the kernel's values were last read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perphd.domain.allocation import Settings

RESYNC_S: Final = 5.0
"""Longest time in seconds between two reads of the kernel's values, to notice other writers."""


class PlannedSettings:
    """The last plan. After ``discard``, the next round plans again and reads the kernel's values back."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, Settings], float] | None = None

    def discard(self) -> None:
        """Make the next round plan again."""
        self._last = None

    def note(self, wanted: Mapping[str, Settings], now_s: float) -> None:
        """Note the settings that are planned at ``now_s``."""
        self._last = (wanted, now_s)

    def is_due(self, wanted: Mapping[str, Settings], now_s: float) -> bool:
        """True if other settings are wanted than last time, or if that was ``RESYNC_S`` ago."""
        return self._last is None or self._last[0] != wanted or now_s - self._last[1] >= RESYNC_S
