"""What an application says about itself at one moment, and the seam that every source of it implements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from perphd.domain.reading import NOT_MEASURED, Awaited, Reading, Unavailable, available
from perphd.monitor.sli.resolution import Counted, Resolution


@dataclass(frozen=True, slots=True)
class Behind:
    """What an indicator is made of: requests, and the seconds over which they were counted."""

    events: Reading = NOT_MEASURED
    window_s: Reading = NOT_MEASURED


NOTHING_BEHIND: Final = Behind()


@dataclass(frozen=True, slots=True)
class SliReading:
    """Service-level indicators of one application.

    ``work_rate_per_s``: requests, queries or transactions *completed* per second; ``load_per_s``: requests
    *offered* per second, only where the application knows them (a database that answers what it is asked does
    not); ``latency_*_ms``: response-time percentiles of the interval. ``work``, ``p50``, ``p95``, ``p99``: what is
    behind each. ``resolution_s``: how often the source reports.
    """

    work_rate_per_s: Reading = NOT_MEASURED
    load_per_s: Reading = NOT_MEASURED
    latency_p50_ms: Reading = NOT_MEASURED
    latency_p95_ms: Reading = NOT_MEASURED
    latency_p99_ms: Reading = NOT_MEASURED
    work: Behind = NOTHING_BEHIND
    p50: Behind = NOTHING_BEHIND
    p95: Behind = NOTHING_BEHIND
    p99: Behind = NOTHING_BEHIND
    resolution_s: Reading = NOT_MEASURED

    @classmethod
    def missing(cls, reason: Unavailable) -> SliReading:
        """A reading in which every indicator is ``reason``."""
        return cls(reason, reason, reason, reason, reason)

    def is_missing(self) -> bool:
        """True if not one indicator is a number."""
        return not any(available(getattr(self, name)) for name in SLI_FIELDS)

    def is_awaited(self, percentile: str) -> bool:
        """True if work, or the latency that is judged, is not due yet."""
        judged = (self.work_rate_per_s, getattr(self, f"latency_{percentile}_ms"))
        return any(isinstance(reading, Awaited) for reading in judged)

    def behind(self, percentile: str) -> Behind:
        """What is behind this percentile: ``p50``, ``p95`` or ``p99``."""
        found: Behind = getattr(self, percentile)
        return found


SLI_FIELDS: Final = ("work_rate_per_s", "load_per_s", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms")
"""Names of the indicators; the same as the fields of ``Sample`` that they go to."""


PUSHED_FIELDS: Final = (*SLI_FIELDS, "work_events", "latency_events")
"""Names that an application may tell: the indicators, and how many requests are behind them."""


def told(values: Mapping[str, float]) -> SliReading:
    """The reading of what an application has told: values by ``PUSHED_FIELDS``."""
    absent = Unavailable("not given by this source")
    indicators: dict[str, Any] = {name: values.get(name, absent) for name in SLI_FIELDS}
    latency = Behind(values.get("latency_events", NOT_MEASURED))
    work = Behind(values.get("work_events", NOT_MEASURED))
    return SliReading(**indicators, work=work, p50=latency, p95=latency, p99=latency)


def behind(counted: Counted) -> Behind:
    """What is behind a rate that was counted."""
    return Behind(counted.events, counted.window_s)


@runtime_checkable
class NotedSource(Protocol):
    """A source that knows when its readings are to be taken with care."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for an operator; empty while nothing is to be said."""


class SliSource(Protocol):
    """One application's indicators. ``read`` is bounded in time and never raises (but CancelledError)."""

    @property
    def resolution(self) -> Resolution:
        """How often it reports, as far as that is known."""

    async def read(self, now_s: float) -> SliReading:
        """The indicators now; those that could not be had are Unavailable, those that are not due yet Awaited."""

    def worked(self, cpu_s: float | None) -> None:
        """The CPU time that the application used between the last two readings; None if it is not known."""

    async def close(self) -> None:
        """Give connections, threads and processes back; closing twice is fine."""
