"""Table ``[sizing]``: the resource shaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perphd.agent.config_schema import setting


@dataclass(frozen=True, slots=True)
class SizingConfig:
    """Table ``[sizing]``. Workloads with ``reserved_memory`` take part; only those with ``shape`` are changed."""

    shaper: Literal["off", "observe", "optimistic", "pessimistic"] = setting(
        "off",
        "observe: say what each workload should hold, write nothing; pessimistic: shrink workloads to their forecast, "
        "and decide before the kernel does who freezes or ends when forecasts collide; optimistic: shrink alone, for "
        "comparison. The last two need the mode enforce as well",
    )
    interval_s: float = setting(
        60.0,
        "forecasts and plans are made so often, from the greatest use",
        low=1.0,
        high=3600.0,
        unit="s",
        expert=True,
    )
    k1_pct: float = setting(
        5.0,
        "share of the reservation that is always kept above the forecast",
        low=0.0,
        high=100.0,
        unit="%",
        expert=True,
    )
    k2: float = setting(
        3.0, "spreads of the forecast that are kept above it", low=0.0, high=10.0, expert=True
    )
    memory_bytes: int = setting(
        0,
        "memory that the workloads with reserved_memory have together; 0: what the host, or the limit of a group that "
        "they all lie in, has left for them",
        kind="size",
        key="memory",
    )
    hard_limit: bool = setting(
        False, "memory.max follows the target as well: above it the kernel kills, not only slows down"
    )
