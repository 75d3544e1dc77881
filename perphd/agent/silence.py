"""Finds indicators that give no numbers for long, in one stretch or in most samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from perphd.domain.reading import Awaited, Unavailable
from perphd.monitor.sli import SliReading
from perphd.monitor.sli.reading import SLI_FIELDS

WINDOW_S: Final = 60.0
"""Seconds over which samples are counted."""
LEAST_S: Final = 10.0
"""Seconds of observation, or of silence in one stretch, before an indicator counts as silent."""
BEGINS: Final = 0.5
"""Share of samples without numbers from which an indicator counts as silent."""
ENDS: Final = 0.25
"""Share of samples without numbers below which an indicator no longer counts as silent."""


@dataclass(slots=True)
class _Heard:
    """Samples of one indicator: times, and whether each had no numbers. ``since_s``: start of the present silence."""

    marks: deque[tuple[float, bool]] = field(default_factory=deque)
    since_s: float | None = None
    reason: str = ""
    is_silent: bool = False


class Silence:
    """Counts the readings of each workload's indicator. A reading that is not due yet does not count."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def take(self, now_s: float, readings: Mapping[str, SliReading]) -> None:
        """Count the readings of one round."""
        for name, reading in readings.items():
            if not any(isinstance(getattr(reading, one), Awaited) for one in SLI_FIELDS):
                _count(self._heard.setdefault(name, _Heard()), now_s, reading)

    def keep(self, names: Collection[str]) -> None:
        """Forget all workloads but these."""
        self._heard = {name: heard for name, heard in self._heard.items() if name in names}

    def text(self, name: str, now_s: float) -> str:
        """The numbers that a silent indicator lacks, and for how long, as text; empty if it gives them."""
        heard = self._heard.get(name)
        if heard is None or not heard.is_silent:
            return ""
        if heard.since_s is not None and now_s - heard.since_s >= LEAST_S:
            return f"its indicator gives no rate: {heard.reason} (for {_span(now_s - heard.since_s)})"
        missing = sum(is_missing for _, is_missing in heard.marks)
        return (
            f"its indicator gave no rate in {missing} of the last {len(heard.marks)} samples: {heard.reason}"
        )


def _count(heard: _Heard, now_s: float, reading: SliReading) -> None:
    is_missing = reading.is_missing()
    marks = heard.marks
    marks.append((now_s, is_missing))
    while marks[0][0] <= now_s - WINDOW_S:
        marks.popleft()
    if not is_missing:
        heard.since_s = None
    else:
        heard.since_s = now_s if heard.since_s is None else heard.since_s
        if isinstance(reading.work_rate_per_s, Unavailable):
            heard.reason = reading.work_rate_per_s.reason
    share = sum(missing for _, missing in marks) / len(marks)
    lasts = heard.since_s is not None and now_s - heard.since_s >= LEAST_S
    if lasts or (share >= BEGINS and now_s - marks[0][0] >= LEAST_S):
        heard.is_silent = True
    elif share < ENDS:
        heard.is_silent = False


def _span(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
