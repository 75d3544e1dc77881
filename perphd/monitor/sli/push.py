"""Indicators that the application delivers itself, through the control socket (``perphctl sli push``)."""

from __future__ import annotations

from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.sli.options import seconds
from perphd.monitor.sli.reading import SliReading


class PushSource:
    """Holds what was pushed last, until it is ``max_age_s`` old."""

    def __init__(self, spec: SliSpec) -> None:
        self._max_age_s = seconds(spec, "max_age_s")
        self._reading = SliReading.missing(Unavailable("nothing was pushed yet"))
        self._pushed_at_s: float | None = None

    def push(self, reading: SliReading, now_s: float) -> None:
        """Take new indicators; the former ones are forgotten as a whole."""
        self._reading, self._pushed_at_s = reading, now_s

    async def read(self, now_s: float) -> SliReading:
        """The indicators pushed last."""
        if self._pushed_at_s is not None and now_s - self._pushed_at_s > self._max_age_s:
            stale = f"stale: nothing was pushed for more than {self._max_age_s:g} s"
            return SliReading.missing(Unavailable(stale))
        return self._reading

    async def close(self) -> None:
        """Nothing is held."""
