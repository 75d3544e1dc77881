"""The resource shaper for display; commands decode it without importing the shaper itself."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.reading import Reading


@dataclass(frozen=True, slots=True)
class ShapedWorkload:
    """One workload for display. ``model``: the forecaster in use; empty if none."""

    workload: str
    role: str
    application: str
    shaped: bool
    reserved_bytes: float
    used_bytes: Reading
    target_bytes: Reading
    reason: str
    crashes: int = 0
    makes_room_by: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class ShaperView:
    """The shaper for display. ``reclaimable_bytes``: capacity less the targets of all workloads that stay."""

    mode: str
    interval_s: float
    capacity_bytes: Reading
    reclaimable_bytes: Reading
    workloads: tuple[ShapedWorkload, ...] = ()
    proposed: tuple[str, ...] = ()
