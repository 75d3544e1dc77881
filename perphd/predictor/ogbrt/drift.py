"""Detects changes of the application: a two-sided CUSUM on the model's standardised one-step errors.

    S+ = max(0, S+ + z - k),  S- = max(0, S- - z - k),  alarm when either exceeds h             (Page, 1954)

z is clipped, so that a single outlier cannot raise the alarm, and the statistics restart after an alarm.
Because the model adapts by itself, a change leaves only a short burst of errors. A CUSUM sums the burst,
while rules like "n samples beyond m sigma" miss it. river's ADWIN and Page-Hinkley find the same changes but
import 100 MiB; tools/bench/predictor has the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Settings of the CUSUM.

    Attributes:
        slack: k in standard deviations.
        threshold: h in standard deviations.
        clip: bound of one z.
        quiet: samples after an alarm without another alarm.
    """

    slack: float = 1.0
    threshold: float = 8.0
    clip: float = 4.0
    quiet: int = 30


class Drift:
    """Tracks standardised errors; deterministic.

    Attributes:
        up, down: the statistics S+ and S-.
        since: samples since the last alarm.
        alarms: number of alarms.
    """

    def __init__(self, settings: DriftSettings = DriftSettings()) -> None:
        self._settings = settings
        self.up = self.down = 0.0
        self.since = settings.quiet
        self.alarms = 0

    def restore(self, up: float, down: float, since: int, alarms: int) -> None:
        """Restore these values."""
        self.up, self.down, self.since, self.alarms = up, down, since, alarms

    def update(self, z: float) -> bool:
        """Process one standardised error; returns True if it raises the alarm."""
        settings = self._settings
        z = min(max(z, -settings.clip), settings.clip)
        self.up = max(0.0, self.up + z - settings.slack)
        self.down = max(0.0, self.down - z - settings.slack)
        self.since += 1
        if max(self.up, self.down) <= settings.threshold:
            return False
        self.up = self.down = 0.0
        if self.since <= settings.quiet:
            return False
        self.since = 0
        self.alarms += 1
        return True
