"""Reads histories of CPU and memory from the store, with reservations."""

from __future__ import annotations

import math
from typing import Final

from perphd.commands.reservations import ReservedPlace
from perphd.monitor.windows import SeriesWindows, read_windows
from perphd.sizing.rows import SizeHistory
from perphd.sizing.shaper import Resource

SERIES_OF: Final = {Resource.CPU: "cpu_usage_cores", Resource.MEMORY: "memory_working_set_bytes"}


def history(place: ReservedPlace, workload: str, resource: Resource, windows: SeriesWindows) -> SizeHistory:
    """One resource of one workload."""
    held = place.reservation(workload, resource)
    most = place.most.get(SERIES_OF[resource], math.inf)
    return SizeHistory(
        workload, resource, windows.numbers, windows.values, windows.now, held, windows.missing, most
    )


def histories(place: ReservedPlace, last_s: float) -> list[SizeHistory]:
    """Both resources of every workload that was sampled in the last hour of the store.

    Raises:
        QueryError: there is no store, there are no samples, or SQLite cannot read the store.
    """
    found = read_windows(place.store, last_s, series=tuple(SERIES_OF.values()))
    return [
        history(place, each.workload, resource, each.series[name])
        for each in found.workloads
        for resource, name in SERIES_OF.items()
    ]
