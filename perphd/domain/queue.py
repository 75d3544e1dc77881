"""The batch queue in a few figures, what copper may use, and an event that cuts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perphd.domain.reading import NOT_MEASURED, Reading


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """What copper may use of one resource, in CPUs or bytes, and how good earlier offers were.

    ``predicted``: a high quantile of what everything else will use within the next five minutes; ``margin``: from the
    errors of earlier predictions. ``windows``: five-minute windows that are over; ``exceeded_ratio``: the share of
    them in which everything else used more than was left to it; ``given_ratio``: the share of the host that
    was offered.
    """

    capacity: float
    predicted: Reading = NOT_MEASURED
    margin: Reading = NOT_MEASURED
    copper: Reading = NOT_MEASURED
    windows: int = 0
    exceeded_ratio: float = 0.0
    given_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class CopperOffer:
    """What copper may use for the next five minutes. ``generation`` grows with every offer; 0: there is none yet.

    Before an event is applied: ``EventStatus.share`` is the part of it that copper gets now.
    """

    generation: int
    at_unix_s: float
    cpus: OfferedResource
    memory: OfferedResource


@dataclass(frozen=True, slots=True)
class EventStatus:
    """An event: ``share`` of its offer that copper gets now; it ends by itself, and its ramp later still."""

    share: float
    copper_share: float
    ends_unix_s: float
    over_unix_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """How many jobs are in which state, of those that are kept; what copper may use now, and an event."""

    counts: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    offer: CopperOffer | None = None
    event: EventStatus | None = None
