"""Indicators that the application delivers itself, through the control socket (``perphctl sli push``)."""

from __future__ import annotations

import math
from dataclasses import replace

from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.sli.options import seconds
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import Deliveries, Resolution


class PushSource:
    """Returns each push once; until the next push, readings are Awaited for up to ``max_age_s``."""

    def __init__(self, spec: SliSpec) -> None:
        self._max_age_s = seconds(spec, "max_age_s")
        self._pushed = Deliveries()
        self._reading = SliReading.missing(Unavailable("nothing has been pushed yet"))

    @property
    def resolution(self) -> Resolution:
        """The usual time between two pushes."""
        return self._pushed.resolution

    def worked(self, cpu_s: float | None) -> None:
        """Do nothing: pushed values are not counters, so CPU time says nothing about their resolution."""

    def push(self, reading: SliReading, now_s: float) -> None:
        """Take new indicators, which replace all earlier ones."""
        self._pushed.delivered(now_s)
        self._reading = replace(reading, resolution_s=self.resolution.reading)

    async def read(self, now_s: float) -> SliReading:
        """The indicators pushed since the last reading."""
        age_s = self._pushed.age_s(now_s)
        if math.isfinite(age_s) and age_s > self._max_age_s:
            stale = f"stale: nothing was pushed for more than {self._max_age_s:g} s"
            return SliReading.missing(Unavailable(stale))
        reading = self._reading
        if math.isfinite(age_s):
            self._reading = SliReading.missing(self.resolution.awaited())
        return reading

    async def close(self) -> None:
        """Do nothing, because no resource is held."""
