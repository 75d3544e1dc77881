"""Has the application changed? A two-sided CUSUM on the model's standardised one-step errors.

    S+ = max(0, S+ + z - k),  S- = max(0, S- - z - k),  alarm when either exceeds h             (Page, 1954)

z is clipped, so that a single outlier cannot raise the alarm, and the statistics start anew after it. On the errors
of a model that follows by itself, what is left after a change is a short burst; a CUSUM sums it, where rules of the
kind "so many beyond so many sigma" miss it. river's ADWIN and Page-Hinkley find the same changes and cost an import
of 100 MiB; the comparison is in tools/bench/predictor.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Attributes: ``slack`` k and ``threshold`` h in standard deviations; ``clip`` of one z; ``quiet`` samples after
    an alarm in which no other is raised.
    """

    slack: float = 1.0
    threshold: float = 8.0
    clip: float = 4.0
    quiet: int = 30


class Drift:
    """Watches standardised errors; deterministic.

    Attributes:
        up, down: the statistics S+ and S-.
        since: samples since the last alarm.
        alarms: so many so far.
    """

    def __init__(self, settings: DriftSettings = DriftSettings()) -> None:
        self._settings = settings
        self.up = self.down = 0.0
        self.since = settings.quiet
        self.alarms = 0

    def restore(self, up: float, down: float, since: int, alarms: int) -> None:
        """Go on from these values."""
        self.up, self.down, self.since, self.alarms = up, down, since, alarms

    def update(self, z: float) -> bool:
        """Take one standardised error; True if that raises the alarm."""
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
