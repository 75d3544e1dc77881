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
    history_rows: int = setting(
        40_000,
        "with enabled: runs of batch are recorded in the job history (perphctl predict), which keeps so many rows, one "
        "of about 4.6 KiB for each feature and quantity; 0: runs are not recorded",
        low=0,
        high=10_000_000,
        expert=True,
    )
