"""An application's own indicators at one moment, and the interface of every source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from perphd.domain.reading import NOT_MEASURED, Awaited, Reading, Unavailable, available
from perphd.monitor.sli.resolution import Counted, Resolution


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The evidence behind an indicator: number of requests, and the seconds over which they were counted."""

    events: Reading = NOT_MEASURED
    window_s: Reading = NOT_MEASURED


NOTHING_BEHIND: Final = SampleSize()


@dataclass(frozen=True, slots=True)
class SliReading:
    """Service-level indicators of one application.

    - ``work_rate_per_s``: requests, queries or transactions *completed* per second.
    - ``load_per_s``: requests *offered* per second, only if the application knows them (database servers do
      not).
    - ``latency_*_ms``: response-time percentiles of the interval.
    - ``work``, ``p50``, ``p95``, ``p99``: the evidence behind the work rate and each percentile.
    - ``resolution_s``: reporting period of the source.
    """

    work_rate_per_s: Reading = NOT_MEASURED
    load_per_s: Reading = NOT_MEASURED
    latency_p50_ms: Reading = NOT_MEASURED
    latency_p95_ms: Reading = NOT_MEASURED
    latency_p99_ms: Reading = NOT_MEASURED
    work: SampleSize = NOTHING_BEHIND
    p50: SampleSize = NOTHING_BEHIND
    p95: SampleSize = NOTHING_BEHIND
    p99: SampleSize = NOTHING_BEHIND
    resolution_s: Reading = NOT_MEASURED

    @classmethod
    def missing(cls, reason: Unavailable) -> SliReading:
        """A reading in which every indicator is ``reason``."""
        return cls(reason, reason, reason, reason, reason)

    def is_missing(self) -> bool:
        """True if no indicator is a number."""
        return not any(available(getattr(self, name)) for name in SLI_FIELDS)

    def is_awaited(self, percentile: str) -> bool:
        """True if the work rate, or the latency that is judged, is not due yet."""
        judged = (self.work_rate_per_s, getattr(self, f"latency_{percentile}_ms"))
        return any(isinstance(reading, Awaited) for reading in judged)

    def behind(self, percentile: str) -> SampleSize:
        """The evidence behind this percentile: ``p50``, ``p95`` or ``p99``."""
        found: SampleSize = getattr(self, percentile)
        return found


SLI_FIELDS: Final = ("work_rate_per_s", "load_per_s", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms")
"""Names of the indicators, equal to the fields of ``Sample`` that hold them."""


PUSHED_FIELDS: Final = (*SLI_FIELDS, "work_events", "latency_events")
"""Names that an application may deliver: the indicators, and the numbers of requests behind them."""


def told(values: Mapping[str, float]) -> SliReading:
    """The reading from delivered values, keyed by ``PUSHED_FIELDS``."""
    absent = Unavailable("the source did not provide this value")
    indicators: dict[str, Any] = {name: values.get(name, absent) for name in SLI_FIELDS}
    latency = SampleSize(values.get("latency_events", NOT_MEASURED))
    work = SampleSize(values.get("work_events", NOT_MEASURED))
    return SliReading(**indicators, work=work, p50=latency, p95=latency, p99=latency)


def behind(counted: Counted) -> SampleSize:
    """The evidence behind a rate."""
    return SampleSize(counted.events, counted.window_s)


@runtime_checkable
class NotedSource(Protocol):
    """A source that can warn of misleading readings."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for an operator; empty if there are none."""


class SliSource(Protocol):
    """One application's indicators. ``read`` is bounded in time and raises nothing but CancelledError."""

    @property
    def resolution(self) -> Resolution:
        """Reporting period of the source, as far as it is known."""

    async def read(self, now_s: float) -> SliReading:
        """The indicators now: Unavailable if they could not be read, Awaited if they are not due yet."""

    def worked(self, cpu_s: float | None) -> None:
        """Take the application's CPU time between the last two readings; None if unknown."""

    async def close(self) -> None:
        """Release connections, threads and processes; closing twice is allowed."""
