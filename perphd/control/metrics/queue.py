"""The batch queue as metrics: jobs by state, copper's offer, an event."""

from __future__ import annotations

from perphd.control.metrics.text import Page, labels
from perphd.domain.queue import QueueSummary


def add_queue(page: Page, summary: QueueSummary | None) -> None:
    """Everything about the queue; nothing where there is none."""
    if summary is None:
        return
    from perphd.batch.job import JobState  # a host without a queue does not carry its modules

    for state in JobState:
        page.add("perphd_queue_jobs", summary.counts.get(state.value, 0), labels(state=state.value))
    page.add("perphd_queue_copper_share", 1.0 if summary.event is None else summary.event.share)
    offer = summary.offer
    if offer is None:
        return
    page.add("perphd_copper_offer_generation", offer.generation)
    page.add("perphd_copper_offer_cpus", offer.cpus.copper)
    page.add("perphd_copper_offer_bytes", offer.memory.copper)
    for name, resource in (("cpu", offer.cpus), ("memory", offer.memory)):
        pairs = labels(resource=name)
        page.add("perphd_copper_offer_windows_total", resource.windows, pairs)
        page.add("perphd_copper_offer_exceeded_ratio", resource.exceeded_ratio, pairs)
        page.add("perphd_copper_offer_given_ratio", resource.given_ratio, pairs)
