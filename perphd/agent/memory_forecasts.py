"""Reads the forecast worker's memory forecasts for the resource shaper.

The worker writes a separate small file for this purpose (``MEMORY_FILE``): 10 KiB for 100 workloads, read
once a minute. While the file is unchanged, a check costs one stat(2).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from perphd.domain.forecast import MEMORY_FILE, MemoryForecast

WINDOW_S: Final = 60.0
"""Length in seconds of the worker's forecast windows, which begin at full minutes of the epoch."""
LIVE_S: Final = 1.5 * WINDOW_S
"""Age of the file in seconds from which the worker counts as absent."""


class MemoryForecasts:
    """Follows the file in this folder; ``wall_clock``: seconds since the epoch."""

    def __init__(self, folder: Path, wall_clock: Callable[[], float]) -> None:
        self._path, self._wall_clock = str(folder / MEMORY_FILE), wall_clock
        self._seen: tuple[int, int] | None = None
        self._told: Mapping[str, Any] = {}
        self._found: dict[str, MemoryForecast | None] = {}
        self._made_s = -math.inf
        self._first = True

    def look(self, now_s: float) -> bool | None:
        """True if the worker has published since the last call, False if not; None if the worker is absent."""
        try:
            facts = os.stat(self._path)
            seen = (facts.st_ino, facts.st_mtime_ns)
        except OSError:
            seen = None
        if seen == self._seen:
            self._first = False
            return False if now_s - self._made_s < LIVE_S else None
        self._seen, self._told, self._found = seen, {} if seen is None else _read(self._path), {}
        is_old, self._first = self._first, False  # the file found at the start may be from an earlier worker
        if is_old or seen is None:
            return None
        self._made_s = now_s
        return True

    def of(self, name: str) -> MemoryForecast | None:
        """The forecast of this workload for the present or the previous window; None without one."""
        if name not in self._found:  # decoded per workload, since decoding all at once would take half a tick
            self._found[name] = _forecast(self._told.get(name))
        found = self._found[name]
        if found is None:
            return None
        age = int(self._wall_clock() // WINDOW_S) - found.number
        return found if 0 <= age <= 1 else None


def _read(path: str) -> dict[str, Any]:
    """The content of a file; empty if it is invalid."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _forecast(item: Any) -> MemoryForecast | None:
    """One workload's forecast; None if the entry is invalid."""
    try:
        mean, bound = float(item["mean_bytes"]), float(item["bound_bytes"])
        found = MemoryForecast(int(item["number"]), str(item["model"]), mean, bound)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return found if math.isfinite(mean) and math.isfinite(bound) and 0 <= mean <= bound else None
