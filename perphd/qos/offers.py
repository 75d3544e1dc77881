"""Copper's offer, window by window. All use outside the queue's jobs counts as silver that reserves the whole host.

    predicted = the peak of the last window of five minutes
    copper    = capacity - predicted - margin            memory: at most 80 % of the host together

The margin follows from the errors of these predictions, and every window is evaluated when it is over
(``perphd.qos.overcommit``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perphd.domain.queue import CopperOffer, OfferedResource
from perphd.qos.bands import MEMORY_LIMIT_RATIO
from perphd.qos.overcommit import WINDOW_S, Overcommit, Slack, after_window, slack


@dataclass(frozen=True, slots=True)
class FollowedResource:
    """One resource: its capacity, the peak of the present window, the prediction for it and the slack offered."""

    capacity: float
    limit: float | None = None
    learned: Overcommit = Overcommit()
    peak: float | None = None
    predicted: float | None = None
    given: Slack | None = None


@dataclass(frozen=True, slots=True)
class FollowedOffer:
    """Offers of CPUs and memory, and the seconds of the present window that have passed."""

    cpus: FollowedResource
    memory: FollowedResource
    generation: int = 0
    lasted_s: float = 0.0


def followed(cpus: float, memory_bytes: float) -> FollowedOffer:
    """The initial state for a host of this size."""
    limit = MEMORY_LIMIT_RATIO * memory_bytes
    return FollowedOffer(FollowedResource(cpus), FollowedResource(memory_bytes, limit))


def with_use(
    offer: FollowedOffer, seconds: float, cpus: float | None, memory_bytes: float | None
) -> FollowedOffer:
    """The offer after another ``seconds``, with the peak use of everything that is not a job."""
    known = replace(
        offer,
        cpus=_with_peak(offer.cpus, cpus),
        memory=_with_peak(offer.memory, memory_bytes),
        lasted_s=offer.lasted_s + seconds,
    )
    if known.lasted_s < WINDOW_S:
        return known
    return FollowedOffer(_next(known.cpus), _next(known.memory), known.generation + 1)


def shown(offer: FollowedOffer, at_unix_s: float) -> CopperOffer:
    """The offer in its published form."""
    return CopperOffer(offer.generation, at_unix_s, _shown(offer.cpus), _shown(offer.memory))


def _with_peak(resource: FollowedResource, used: float | None) -> FollowedResource:
    if used is None:
        return resource
    return replace(resource, peak=max(used, 0.0 if resource.peak is None else resource.peak))


def _next(resource: FollowedResource) -> FollowedResource:
    """Close the window: learn from it and compute the next offer. A window without measurements is skipped."""
    peak = resource.peak
    if peak is None:
        return replace(resource, predicted=None, given=None)
    learned = resource.learned
    if resource.predicted is not None and resource.given is not None:
        learned = after_window(learned, resource.capacity, resource.predicted, resource.given, peak)
    given = slack(learned, resource.capacity, resource.capacity, peak, resource.limit)
    return replace(resource, learned=learned, peak=None, predicted=peak, given=given)


def _shown(resource: FollowedResource) -> OfferedResource:
    past = resource.learned.backtest
    if resource.predicted is None or resource.given is None:
        return OfferedResource(resource.capacity)
    return OfferedResource(
        resource.capacity,
        resource.predicted,
        resource.given.margin,
        resource.given.copper,
        past.windows,
        past.exceeded_ratio,
        past.given_ratio,
    )
