"""What an application says about itself at one moment, and the seam that every source of it implements."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available


@dataclass(frozen=True, slots=True)
class SliReading:
    """Service-level indicators of one application.

    ``work_rate_per_s``: requests, queries or transactions *completed* per second; ``load_per_s``: requests
    *offered* per second, only where the application knows them (a database that answers what it is asked does
    not); ``latency_*_ms``: response-time percentiles of the interval.
    """

    work_rate_per_s: Reading = NOT_MEASURED
    load_per_s: Reading = NOT_MEASURED
    latency_p50_ms: Reading = NOT_MEASURED
    latency_p95_ms: Reading = NOT_MEASURED
    latency_p99_ms: Reading = NOT_MEASURED

    @classmethod
    def missing(cls, reason: Unavailable) -> SliReading:
        """A reading in which every indicator is ``reason``."""
        return cls(reason, reason, reason, reason, reason)

    def is_missing(self) -> bool:
        """True if not one indicator is a number."""
        return not any(available(getattr(self, name)) for name in SLI_FIELDS)


SLI_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(SliReading))
"""Names of the indicators; the same as the fields of ``Sample`` that they go to."""


@runtime_checkable
class NotedSource(Protocol):
    """A source that knows when its readings are to be taken with care."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for an operator; empty while nothing is to be said."""


class SliSource(Protocol):
    """One application's indicators. ``read`` is bounded in time and never raises (but CancelledError)."""

    async def read(self, now_s: float) -> SliReading:
        """The indicators now; those that could not be had are Unavailable with the reason."""

    async def close(self) -> None:
        """Give connections, threads and processes back; closing twice is fine."""
