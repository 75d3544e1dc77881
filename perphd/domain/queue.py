"""Summary of the batch queue: job counts, resources offered to copper, the current event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perphd.domain.reading import NOT_MEASURED, Reading


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """One resource's offer to copper jobs, in CPUs or bytes, and the accuracy of earlier offers.

    ``copper``: the amount offered. ``predicted``: a high quantile of the use by everything else in the next five
    minutes. ``margin``: reserve for the errors of earlier predictions. ``windows``: number of completed five-minute
    windows. ``exceeded_ratio``: share of those windows in which everything else used more than the offer had left
    to it. ``given_ratio``: share of the host that was offered.
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
    """Resources that copper jobs may use for the next five minutes.

    ``generation`` grows with every offer; 0: no offer yet. An event reduces it to ``EventStatus.share``.
    """

    generation: int
    at_unix_s: float
    cpus: OfferedResource
    memory: OfferedResource


@dataclass(frozen=True, slots=True)
class EventStatus:
    """An event during which copper gets only part of its offer.

    ``share``: part of the offer that copper gets now. ``copper_share``: part that the operator set for the
    event. ``ends_unix_s``: scheduled end; ``over_unix_s``: end of the ramp back to the full offer.
    """

    share: float
    copper_share: float
    ends_unix_s: float
    over_unix_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Number of stored jobs by state, copper's present offer, and the current event."""

    counts: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    offer: CopperOffer | None = None
    event: EventStatus | None = None
