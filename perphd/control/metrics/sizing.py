"""The resource shaper and searches for memory limits as metrics."""

from __future__ import annotations

from collections.abc import Sequence

from perphd.control.metrics.text import Page, labels
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.sizing.memory_fit import FitPhase, FitView
from perphd.sizing.shaper import ShaperMode
from perphd.sizing.shaper_view import ShaperView


def add_shaper(page: Page, view: ShaperView) -> None:
    """Add the shaper's metrics; none while it is off."""
    if view.mode == ShaperMode.OFF.value:
        return
    page.add("perphd_shaper_info", 1, labels(mode=view.mode))
    page.add("perphd_shaper_capacity_bytes", view.capacity_bytes)
    page.add("perphd_shaper_reclaimable_bytes", view.reclaimable_bytes)
    for each in view.workloads:
        pairs = labels(workload=each.workload)
        page.add("perphd_shaper_reserved_bytes", each.reserved_bytes, pairs)
        page.add("perphd_shaper_used_bytes", each.used_bytes, pairs)
        page.add("perphd_shaper_target_bytes", each.target_bytes, pairs)
        page.add("perphd_shaper_crashes_total", each.crashes, pairs)
        if each.makes_room_by:
            page.add("perphd_shaper_makes_room", 1, f"{pairs},{labels(by=each.makes_room_by)}")


def add_memory_fits(page: Page, views: Sequence[FitView]) -> None:
    """Add the metrics of every search."""
    for each in views:
        pairs = labels(workload=each.workload)
        for phase in FitPhase:
            is_it = each.phase == phase.value
            page.add("perphd_memfit_phase", is_it, f"{pairs},{labels(phase=phase.value)}")
        page.add("perphd_memfit_epochs_total", each.epochs, pairs)
        page.add("perphd_memfit_crash_epochs_total", each.crashes, pairs)
        page.add("perphd_memfit_limit_bytes", _known(each.limit_bytes), pairs)
        page.add("perphd_memfit_recommended_bytes", _known(each.recommended_bytes), pairs)
        page.add("perphd_memfit_applied", each.applied, pairs)


def _known(size_bytes: float | None) -> Reading:
    return NOT_MEASURED if size_bytes is None else float(size_bytes)
