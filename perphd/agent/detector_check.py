"""Checks the detector's false-alarm rate when the daemon starts."""

from __future__ import annotations

from perphd.admission import calibration
from perphd.agent.running_config import RunningConfig
from perphd.domain.status import DetectorTest


class DetectorCheck:
    """Runs the check and keeps its result."""

    def __init__(self, config: RunningConfig) -> None:
        self._config = config
        self.result: DetectorTest | None = None

    def run(self) -> None:
        """Check the rate under the configuration in force. This takes about a second of CPU time."""
        config = self._config.now
        self.result = calibration.self_test(config.policy, config.daemon.period_s)

    def problems(self) -> tuple[str, ...]:
        """A sentence if the check failed."""
        text = calibration.failure(self.result) if self.result is not None else ""
        return (text,) if text else ()
