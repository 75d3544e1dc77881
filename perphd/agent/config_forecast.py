"""Table ``[forecast]``: forecasts of what workloads and the host will use."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.agent.config_schema import setting


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """Table ``[forecast]``."""

    enabled: bool = setting(
        False,
        "once a minute a niced process of its own forecasts every workload's use and the host's peak from the store; "
        "the resource shaper sizes memory by it, nothing else acts on it",
    )
