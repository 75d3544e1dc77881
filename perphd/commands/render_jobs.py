"""Jobs of the batch queue as text for people."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence

from perphd.batch.job import JobState
from perphd.batch.view import JobDetail, JobForecast, JobRow, Times
from perphd.batch.work import RunTimeBasis, WorkKind
from perphd.control.numbers import duration
from perphd.control.table import Part, Styled, table, text
from perphd.domain.queue import CopperOffer, EventStatus, OfferedResource, QueueSummary
from perphd.domain.reading import available
from perphd.domain.units import format_bytes

_STYLES = {
    JobState.RUNNING: "green",
    JobState.FROZEN: "yellow",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
    JobState.DONE: "dim",
}
_SHOWN = 60


def list_parts(
    rows: Sequence[JobRow], summary: QueueSummary, now_s: float, everything: bool
) -> Iterable[Part]:
    """A line for every job. ``everything``: the list includes ended jobs."""
    lines = [_line(row, now_s) for row in rows]
    parts: list[Part] = []
    if lines:
        columns = ("JOB", "NAME", "USER", "STATE", "SINCE", "CPUS", "MEMORY", "DEADLINE", "WHY")
        parts.append(table("", columns, lines, right=(0, 5, 6)))
    left = sum(summary.counts.values()) - len(rows)
    said = counts_text(summary.counts)
    more = "" if everything else " (--all shows those that have ended)"
    parts.append(text(f"{said}{f'; {left} not shown{more}' if left > 0 else ''}"))
    if summary.problem:
        parts.append(text(Styled(summary.problem, "red")))
    return parts


def job_parts(row: JobRow, now_s: float) -> Iterable[Part]:
    """Everything about one job."""
    detail = row.detail
    if detail is None:
        return [text(f"job {row.id}: {row.name}", f"state     {row.state} (it belongs to another user)")]
    cpus = "1 CPU" if detail.cpus == 1 else f"{detail.cpus:g} CPUs"
    lines = [
        f"job {row.id}: {row.name}",
        f"state     {_state(row, detail, now_s)}",
        f"command   {shlex.join(detail.command)}",
        f"as        {detail.user}, in {detail.directory}",
        f"asks for  {cpus}, {format_bytes(detail.memory_bytes)}, band {detail.band}",
        f"submitted {_clock(detail.submitted_unix_s, now_s)}",
    ]
    if detail.reason:
        lines.insert(2, f"why       {detail.reason}")
    if detail.order:
        lines.insert(3 if detail.reason else 2, f"order     {detail.order}")
    if detail.elastic is not None and detail.array is not None:
        least, most = detail.elastic
        part = "core" if detail.array[0] < least else "elastic"
        lines.append(f"elastic   worker {detail.array[0]} ({part}) of a job with {least} to {most} workers")
    if detail.deadline_unix_s is not None:
        lines.append(f"deadline  {_deadline(detail, row.state, now_s)}")
    if detail.after:
        lines.append(f"follows   {', '.join(f'job {number}' for number in detail.after)}")
    lines += _forecast(row, detail, now_s)
    if detail.attempt > 1 or detail.failures or detail.preemptions:
        lines.append(
            f"attempts  {detail.attempt}, of which {detail.failures} failed (retries: {detail.retries}); preemptions: "
            f"{detail.preemptions}; {duration(detail.lost_s)} of work lost"
        )
    if detail.workload:
        lines.append(f"workload  {detail.workload} (unit {detail.unit})")
    lines.append(f"output    {detail.output or f'perphctl logs {row.id}'}")
    return [text(*lines)]


def event_text(event: EventStatus, now_s: float) -> str:
    """An event in a sentence."""
    why = f" ({event.reason})" if event.reason else ""
    if now_s >= event.ends_unix_s:
        back_s = max(0.0, event.over_unix_s - now_s)
        return f"event{why}: ended; copper gets {event.share:.0%} of its offer now, and all of it in {duration(back_s)}"
    left_s, ramp_s = event.ends_unix_s - now_s, event.over_unix_s - event.ends_unix_s
    return (
        f"event{why}: copper gets {event.share:.0%} of its offer for {duration(left_s)} more, and all of it within "
        f"{duration(ramp_s)} after that"
    )


def offer_text(offer: CopperOffer) -> str:
    """Copper's offer in one line."""
    if not available(offer.cpus.copper) or not available(offer.memory.copper):
        return "copper's offer: not known until five minutes have passed"
    return (
        f"copper's offer {offer.generation}: {offer.cpus.copper:.1f} of {offer.cpus.capacity:g} CPUs, "
        f"{format_bytes(offer.memory.copper)} of {format_bytes(offer.memory.capacity)}; {_checked(offer)}"
    )


def _checked(offer: CopperOffer) -> str:
    if not offer.cpus.windows and not offer.memory.windows:
        return "no offer has been compared with actual use yet"
    return (
        f"earlier offers were too high in {_missed(offer.cpus)} (CPUs) and {_missed(offer.memory)} (memory)"
    )


def event_parts(event: EventStatus | None, offer: CopperOffer | None, now_s: float) -> Iterable[Part]:
    """Whether an event limits the jobs now, and the resources offered to copper."""
    lines = ["No event is in force." if event is None else event_text(event, now_s)]
    if offer is not None:
        lines.append(offer_text(offer))
    return [text(*lines)]


def queue_lines(summary: QueueSummary, now_s: float) -> list[str]:
    """The queue as a part of the status; empty if there are no jobs and no event is in force."""
    lines = []
    live = {state: count for state, count in summary.counts.items() if not JobState(state).ended}
    if live:
        lines.append(f"queue: {counts_text(live)} (perphctl jobs)")
    if summary.event is not None:
        lines.append(event_text(summary.event, now_s))
    return lines


def _missed(resource: OfferedResource) -> str:
    return f"{resource.exceeded_ratio:.1%} of {resource.windows} windows"


def end_text(row: JobRow) -> str:
    """The end of a job in one sentence."""
    detail = row.detail
    if detail is None:
        return f"job {row.id}: {row.state}"
    status = f", status {detail.status}" if detail.status is not None else ""
    why = f": {detail.reason}" if detail.reason else ""
    return f"job {row.id} ({row.name}): {row.state}{status}, after {duration(detail.ran_s)}{why}"


def _line(row: JobRow, now_s: float) -> tuple[str | Styled, ...]:
    state = Styled(str(row.state), _STYLES.get(row.state, ""))
    detail = row.detail
    if detail is None:
        return (str(row.id), row.name, "", state, "", "", "", "", "")
    status = f" {detail.status}" if detail.status else ""
    why = detail.reason if len(detail.reason) <= _SHOWN else f"{detail.reason[: _SHOWN - 3]}..."
    return (
        str(row.id),
        row.name,
        detail.user,
        Styled(f"{row.state}{status}", _STYLES.get(row.state, "")),
        duration(max(0.0, now_s - detail.since_unix_s)),
        f"{detail.cpus:g}",
        format_bytes(detail.memory_bytes),
        "" if detail.deadline_unix_s is None else _deadline(detail, row.state, now_s),
        why,
    )


def _state(row: JobRow, detail: JobDetail, now_s: float) -> str:
    status = f" with status {detail.status}" if detail.status is not None else ""
    ran = f", ran for {duration(detail.ran_s)}" if detail.attempt else ""
    return f"{row.state}{status}, since {_clock(detail.since_unix_s, now_s)}{ran}"


def _deadline(detail: JobDetail, state: JobState, now_s: float) -> str:
    assert detail.deadline_unix_s is not None
    end_s = detail.since_unix_s if state.ended else now_s
    left_s = detail.deadline_unix_s - end_s
    if state is JobState.DONE:
        return "met" if left_s >= 0 else f"missed by {duration(-left_s)}"
    if state.ended:
        return "not met"
    return f"in {duration(left_s)}" if left_s >= 0 else f"missed {duration(-left_s)} ago"


def _forecast(row: JobRow, detail: JobDetail, now_s: float) -> list[str]:
    found = detail.forecast
    if row.state.ended:
        return []
    if not isinstance(found, JobForecast):
        return [f"forecast  none: {found.reason}"]
    lines = []
    if not row.state.active:
        lines.append(f"starts    {_times(found.start, now_s)}")
    lines.append(f"ends      {_times(found.end, now_s)}")
    lines += _basis(found.basis)
    if available(found.meets_deadline):
        lines.append(f"chance    {found.meets_deadline:.0%} to meet its deadline")
    return lines


def _basis(basis: RunTimeBasis) -> list[str]:
    """The basis of the predicted run time: work done, usual work of similar jobs, and the rate of work."""
    if basis.by is WorkKind.NOTHING:
        return []
    done, usual, rate = duration(basis.done), duration(basis.usual), ""
    if basis.by is WorkKind.CPU_TIME:
        rate = f", at {basis.rate:.2g} CPUs"
    elif basis.by is WorkKind.INSTRUCTIONS:
        done, usual, rate = f"{basis.done:.3g}", f"{basis.usual:.3g}", f", at {basis.rate:.3g} per second"
    why = f" ({basis.why})" if basis.why else ""
    return [f"run time  by {basis.by}: {done} of {usual} done{rate}{why}"]


def _times(times: Times, now_s: float) -> str:
    p10, p50, p90 = (duration(max(0.0, each - now_s)) for each in (times.p10, times.p50, times.p90))
    return f"in {p50} (p10 {p10}, p90 {p90})"


def _clock(at_s: float, now_s: float) -> str:
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    return f"{local} ({duration(max(0.0, now_s - at_s))} ago)"


def counts_text(counts: Mapping[str, int]) -> str:
    """The number of jobs in each state, in words."""
    return ", ".join(f"{counts[state]} {state}" for state in JobState if counts.get(state)) or "no job"
