"""``perphctl status`` in words and tables of at most 80 columns. Pure functions of domain values.

The most important parts come first: the host, every LRA in one line, batch, the last changes, and conditions
that need an operator. Permanent properties of a host are left to doctor, and perphd's own cost is shown on
request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perphd.commands.render_host import group_name, host_lines
from perphd.commands.render_jobs import queue_lines
from perphd.control.numbers import NONE, duration, number
from perphd.control.render import (
    HEALTH_STYLE,
    declared_lines,
    delay_unit,
    limited_notes,
    pause_text,
    self_cost,
    settings_text,
    trial_text,
)
from perphd.control.table import WIDTH, Cell, Part, Styled, folded, plain, table, text
from perphd.domain.allocation import IDLE, Allocation, CpuInstrument
from perphd.domain.condition import BatchCondition, LraCondition
from perphd.domain.decision import AWAITED, PROVISIONAL_TARGET, TO_BEST, Action, Cause, Decision, Health
from perphd.domain.forecast import ForecastSummary
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.signals import Performance, performance, work_unit
from perphd.domain.status import AgentStatus, Change, WorkloadStatus
from perphd.domain.units import format_bytes
from perphd.domain.workload import Kind, Mode

CAUSE_WORDS: Final = {
    Cause.CPU: "CPU",
    Cause.SMT: "SMT",
    Cause.MEMORY: "memory",
    Cause.LLC: "cache",
    Cause.MBW: "bandwidth",
    Cause.IO: "disk",
    Cause.STORAGE: "storage",
    Cause.NETWORK: "network",
    Cause.THROTTLED: "own limit",
    Cause.REMOTE: "elsewhere",
}
"""The resource that an LRA lacks, in one word."""
_DROPPED: Final = ("USES", "MAX", "TARGET")
"""Columns that are dropped in this order if a table is too wide; -v and --json include them."""
_LONG: Final = 1e6
"""Smallest number that is shown with an exponent."""
_CONDITION_STYLE: Final[Mapping[str, str]] = {
    LraCondition.STALLED: "bold red",
    LraCondition.NO_LOAD: "dim",
    BatchCondition.STARVED: "yellow",
    BatchCondition.THROTTLED: "yellow",
    BatchCondition.FROZEN: "yellow",
    BatchCondition.IDLE: "dim",
    BatchCondition.GONE: "dim",
}
_FLOOR_MET: Final = 0.9
"""Share of a floor from which the floor counts as met."""
ACTION_WORDS: Final = {
    Action.HOLD: "no change",
    Action.GROW: "more protection",
    Action.SHRINK: "back to batch",
    Action.EXPLORE: "trial",
    Action.ROLLBACK: "undone",
    Action.RELEASE: "all given back",
}
"""The effect of a decision, worded for a reader who also sees batch's settings."""
LRA_HEADS: Final = ("LRA", "HEALTH", "RATE", "TARGET", "DELAY", "MAX", "USES", "HAS")
BATCH_HEADS: Final = ("BATCH", "STATE", "GIVEN", "WANTED", "MEMORY", "IN FORCE")


def status_parts(status: AgentStatus, now_s: float, verbose: bool = False) -> list[Part]:
    """The output of ``perphctl status``. ``now_s``: the daemon's monotonic clock, for ages."""
    lras = [item for item in status.workloads if item.spec.kind is Kind.LRA]
    batch = [item for item in status.workloads if item.spec.kind is Kind.BATCH]
    host = () if status.host is None else host_lines(status.host, status.workloads)
    parts: list[Part] = [text(headline(status), *(line for each in host for line in folded(each)))]
    if verbose:
        parts.append(text(*(Styled(line, "dim") for line in _itself(status))))
    if lras:
        parts += _lras([lra_row(item, status) for item in lras])
        if lines := [line for item in lras for line in why_lines(item, status, now_s, verbose)]:
            parts.append(text(*(part for line in lines for part in folded(line))))
    if batch:
        parts += _batch(batch, status)
        if verbose and (tried := [line for item in batch for line in _tried(item, now_s)]):
            parts.append(text(*tried))
    if verbose and status.workloads:
        parts.append(_uses(status.workloads))
    parts += _by_themselves(status.workloads, verbose)
    if not status.workloads:
        parts.append(text("No workload is declared. perphctl init proposes some; or perphctl lra add,"))
        parts.append(text("perphctl batch add."))
    if status.queue is not None and (about := queue_lines(status.queue, time.time())):
        parts.append(text(*(line for each in about for line in folded(each))))
    if status.changes:
        changes = (line for change in status.changes for line in folded(f"  {_change_line(change, now_s)}"))
        parts.append(text("Last changes:", *changes))
    parts += _needs_somebody(status)
    if verbose and status.notes:
        parts.append(text(*(Styled(note, "dim") for note in status.notes)))
    return parts


def health_words(item: WorkloadStatus) -> str:
    """An LRA's health in a word or two."""
    if not item.present:
        return "not running"
    if item.condition:
        return item.condition
    if item.decision is None:
        return "starting"
    verdict = item.decision.verdict
    short = CAUSE_WORDS.get(verdict.cause, "")
    match verdict.health:
        case Health.UNKNOWN:
            return "no rate" if item.sli_problem else "learning"
        case Health.DEGRADED:
            return f"slow: {short}" if short else "slow"
        case Health.SUSPECT:
            return f"watch: {short}" if short else "watch"
        case Health.OVERPROVISIONED:
            return "ok, ample"
    return "ok"


def has_words(allocation: Allocation | None) -> str:
    """An LRA's cores: exclusive, shared with batch, or all of them with demoted batch."""
    if allocation is None or allocation.cpu.instrument is CpuInstrument.NONE:
        return "shared" if allocation is None or not _more(allocation) else f"shared{_more(allocation)}"
    cpu = allocation.cpu
    if cpu.exclusive:
        own = f"{cpu.lra_cores} own"
        return own + _more(allocation)
    if cpu.instrument is CpuInstrument.CONFINED:
        return f"{cpu.total_cores - cpu.batch_cores}+{cpu.batch_cores} shared" + _more(allocation)
    weight = "idle" if cpu.batch_weight is IDLE else f"w{cpu.batch_weight}"
    return f"all, batch {weight}" + _more(allocation)


def _more(allocation: Allocation) -> str:
    """Marks for further protection; perphctl explain spells them out."""
    marks = [
        word
        for word, is_there in (
            ("mem", allocation.memory_bytes),
            ("cache", allocation.llc_ways or allocation.own_ways),
            ("bw", allocation.mbw_pct < 100),
        )
        if is_there
    ]
    return "".join(f"+{mark}" for mark in marks)


def performance_of(item: WorkloadStatus) -> Performance | None:
    """Performance in an LRA's last complete sample; None without one."""
    told = item.full_sample if item.full_sample is not None else item.sample
    return None if told is None else performance(told, item.spec.objective.latency_percentile)


def headline(status: AgentStatus) -> Styled:
    """Version, mode and age of the daemon."""
    style = "bold green" if status.mode is Mode.ENFORCE else "bold"
    paused = " (paused)" if any(not pause.workload for pause in status.pauses) else ""
    words = [f"perphd {status.version}: {status.mode}{paused}", f"up {duration(status.uptime_s)}"]
    if status.policy != "perph":
        words.append(f"policy {status.policy}")
    return Styled(", ".join(words), style)


def _itself(status: AgentStatus) -> list[str]:
    pace = f"policy {status.policy}, tick {status.tick}, every {status.pace_s:g} s"
    if status.attentive:
        pace += f" (usually {status.period_s:g} s: {status.attentive})"
    ahead = [] if status.forecast is None else _forecast(status.forecast)
    lines = [pace, *self_cost(status.cost, status.journal_entries), *ahead]
    return [str(piece) for line in lines for piece in folded(line)]


def _forecast(summary: ForecastSummary | Unavailable) -> list[str]:
    if isinstance(summary, Unavailable):
        return [f"forecasts: {summary.reason}"]
    words = [f"forecasts: {summary.forecasts} of {summary.series} series"]
    peaks = [
        f"{summary.peak_cores:.2f} cores" if available(summary.peak_cores) else "",
        format_bytes(summary.peak_bytes) if available(summary.peak_bytes) else "",
    ]
    if any(peaks):
        words.append(f"the host's peak of the next hour {', '.join(filter(None, peaks))}")
    memory = format_bytes(summary.rss_bytes) if available(summary.rss_bytes) else NONE
    words.append(f"their worker: {number(summary.cpu_pct)} % of a CPU, {memory}")
    return ["; ".join([*words, *([summary.problem] if summary.problem else [])])]


def lra_row(item: WorkloadStatus, status: AgentStatus) -> tuple[Cell, ...]:
    """An LRA under ``LRA_HEADS``."""
    decision, sample, perf = item.decision, item.sample, performance_of(item)
    health = _health_cell(item)
    if sample is None or not item.present or perf is None:
        return (_name(item, status), health, *[NONE] * 6)
    work, delay = work_unit(perf.work_source), delay_unit(perf.delay_source)
    return (
        _name(item, status),
        health,
        compact(perf.work, work),
        _target(decision.target_work if decision is not None else None, work),
        compact(perf.delay, delay),
        _target(decision.target_delay if decision is not None else None, delay),
        compact(sample.cpu_usage_cores),
        has_words(item.protection),
    )


def _lras(rows: Sequence[tuple[Cell, ...]]) -> list[Part]:
    """The LRAs. Drops less important columns if the table would be wider than a terminal."""

    def without(count: int) -> tuple[list[str], list[list[Cell]], list[int]]:
        columns = [n for n, head in enumerate(LRA_HEADS) if head not in _DROPPED[:count]]
        right = [place for place, n in enumerate(columns) if 2 <= n <= 6]
        return [LRA_HEADS[n] for n in columns], [[row[n] for n in columns] for row in rows], right

    for count in range(len(_DROPPED) + 1):
        heads, kept, right = without(count)
        made = table("", heads, kept, right=right)
        if _fits(made):
            return [made]
    return _last_below(*without(len(_DROPPED)))


def _fits(part: Part) -> bool:
    return all(len(line) <= WIDTH for line in plain([part]).splitlines())


def _last_below(heads: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[int]) -> list[Part]:
    """A table whose last column is too long for a terminal: its cells follow as lines."""
    short = table("", heads[:-1], [row[:-1] for row in rows], right=right)
    return [short, text(*(part for row in rows for part in folded(f"{row[0]}: {row[-1]}")))]


def _health_cell(item: WorkloadStatus) -> Styled:
    words = health_words(item)
    if item.present and item.condition:
        return Styled(words, _CONDITION_STYLE.get(item.condition, "yellow"))
    if item.decision is None or not item.present:
        return Styled(words, "yellow")
    return Styled(words, HEALTH_STYLE[item.decision.verdict.health])


def _target(reading: Reading | None, unit: str) -> Cell:
    if reading is None:
        return NONE
    return Styled("learning", "dim") if isinstance(reading, Unavailable) else compact(reading, unit)


def compact(reading: Reading, unit: str = "") -> str:
    """A number with its unit and no space: ``2552/s``, ``6.51ms``, ``1.4``."""
    if available(reading) and abs(reading) >= _LONG:
        return f"{reading:.3g}{unit}".replace(" ", "")
    return number(reading, unit).replace(" ", "")


def _batch(items: Sequence[WorkloadStatus], status: AgentStatus) -> list[Part]:
    """Batch in a table; settings in force follow below if too long for a column."""
    rows = [batch_row(item, status) for item in items]
    made = table("", BATCH_HEADS, rows, right=range(2, 5))
    return [made] if _fits(made) else _last_below(BATCH_HEADS, rows, range(2, 5))


def batch_row(item: WorkloadStatus, status: AgentStatus) -> tuple[Cell, ...]:
    """A batch workload under ``BATCH_HEADS``."""
    sample = item.sample
    if sample is None or not item.present:
        waiting = Styled("not running", "dim")
        return (_name(item, status), waiting, NONE, NONE, NONE, settings_text(item.in_force))
    given, waits = sample.cpu_usage_cores, sample.run_delay_cores
    wanted = given + waits if available(given) and available(waits) else NONE
    return (
        _name(item, status),
        _batch_state(item),
        compact(given),
        wanted if isinstance(wanted, str) else compact(wanted),
        _size(sample.memory_current_bytes),
        settings_text(item.in_force),
    )


def _batch_state(item: WorkloadStatus) -> Cell:
    """The state of batch, with its duration if it is starved."""
    if item.condition == BatchCondition.STARVED and item.starved_s >= 1.0:
        return Styled(f"{item.condition} {duration(item.starved_s)}", "yellow")
    return Styled(item.condition or "running", _CONDITION_STYLE.get(item.condition, ""))


def _by_themselves(workloads: Sequence[WorkloadStatus], verbose: bool) -> list[Part]:
    """Workloads that declared themselves; with ``verbose``, also the places of their declarations."""
    names = [item.spec.name for item in workloads if item.spec.declared_by]
    lines = declared_lines(workloads) if verbose else (f"Declared by themselves: {', '.join(names)}",)
    return [text(*(Styled(str(part), "dim") for line in lines for part in folded(line)))] if names else []


def _uses(workloads: Sequence[WorkloadStatus]) -> Part:
    """Each workload's use other than CPU time; cache and bandwidth if measured for any workload."""
    cache = any(item.sample is not None and item.sample.domains for item in workloads)
    rows = [_uses_row(item, cache) for item in workloads]
    heads = ("WORKLOAD", "MEMORY", *(("CACHE", "BANDWIDTH") if cache else ()), "DISK", "WAITS FOR CPU")
    return table("", heads, rows, right=range(1, len(heads)))


def _uses_row(item: WorkloadStatus, cache: bool) -> tuple[Cell, ...]:
    sample = item.sample
    if sample is None:
        return (item.spec.name, *[NONE] * (5 if cache else 3))
    disk = [rate for rate in (sample.read_bytes_per_s, sample.write_bytes_per_s) if available(rate)]
    shared = (_size(sample.llc_occupancy_bytes), _size(sample.mbw_bytes_per_s, "/s")) if cache else ()
    return (
        item.spec.name,
        _size(sample.memory_current_bytes),
        *shared,
        _size(sum(disk), "/s") if disk else NONE,
        compact(sample.cpu_some_pct, "%"),
    )


def _size(reading: Reading, unit: str = "") -> str:
    return f"{format_bytes(reading)}{unit}".replace(" ", "") if available(reading) else NONE


def _name(item: WorkloadStatus, status: AgentStatus) -> str:
    if item.pause is not None:
        return item.spec.name if not item.pause.workload else f"{item.spec.name} [paused]"
    return item.spec.name if item.mode is status.mode else f"{item.spec.name} [{item.mode}]"


def why_lines(item: WorkloadStatus, status: AgentStatus, now_s: float, verbose: bool) -> list[Cell]:
    """The reason why an LRA needs attention, or what enforce would do; with ``verbose``, the reason in every case."""
    if not item.present:
        return []  # the table shows it, and the problems of the status name the cgroup
    if item.problem:
        return [Styled(f"{item.spec.name}: {item.problem}", "yellow")]
    decision = item.decision
    if decision is None:
        return []
    name, verdict = item.spec.name, decision.verdict
    culprit = f" (because of {group_name(verdict.culprit)})" if verdict.culprit else ""
    lines: list[Cell] = []
    if decision.target_provisional:
        lines.append(Styled(f"{name}: {PROVISIONAL_TARGET}", "yellow"))
    limit = item.in_force.memory_high_bytes
    if isinstance(limit, int):
        lines.append(f"{name}: memory to {format_bytes(float(limit))}; see perphctl memfit status")
    would = item.mode is Mode.OBSERVE and decision.chosen != decision.current
    if would:
        lines.append(f"{name}: enforce would set: {has_words(decision.chosen)}: {decision.reason}{culprit}")
    elif verbose or verdict.health in (Health.DEGRADED, Health.SUSPECT):
        lines.append(f"{name}: {decision.reason}{culprit}")
    elif item.mode is Mode.OBSERVE and item.would is not None:
        ago = duration(now_s - item.would.at_s)
        wish = f"{has_words(item.would.chosen)} ({_effect(item.would)})"
        lines.append(Styled(f"{name}: {ago} ago enforce would have set: {wish}; see perphctl report", "cyan"))
    indent = " " * len(name)
    if not verbose:
        return lines
    lines += [Styled(f"{indent}  {seen.text}", "dim") for seen in verdict.evidence if seen.signal == AWAITED]
    if item.spec.sli is not None and item.sli_resolution:
        lines.append(Styled(f"{indent}  {item.spec.sli.source}: resolution {item.sli_resolution}", "dim"))
    if item.outcome is not None:
        came = f"last outcome: {item.outcome.text} ({duration(now_s - item.outcome.at_s)} ago)"
        lines.append(Styled(f"{indent}  {came}", "dim"))
    return lines


def _tried(item: WorkloadStatus, now_s: float) -> list[Cell]:
    """The last trial of a change to one batch job for the benefit of all batch."""
    if not item.present or item.outcome is None:
        return []
    ago = duration(now_s - item.outcome.at_s)
    return [Styled(f"{item.spec.name}: {item.outcome.text} ({ago} ago)", "dim")]


def _floor(item: WorkloadStatus) -> Cell | None:
    """A note if a batch workload did not get its floor."""
    asks_nothing = item.condition in (BatchCondition.IDLE, BatchCondition.GONE)
    if not item.present or item.spec.kind is not Kind.BATCH or asks_nothing:
        return None
    floor, got = item.spec.guaranteed_cores, item.recent_cores
    if not available(got) or got >= _FLOOR_MET * floor:
        return None
    text_of = f"{item.spec.name}: got {got:.2f} cores over the last 10 s, min_cores is {floor:g}"
    return Styled(text_of, "yellow")


def _change_line(change: Change, now_s: float) -> str:
    ago = f"{duration(now_s - change.at_s)} ago"
    return f"{ago:>14}  {change_text(change)}"


def change_text(change: Change) -> str:
    """A change of an LRA's protection, without its age."""
    would = "" if change.mode is Mode.ENFORCE else "would be "
    before, after = has_words(change.before), has_words(change.after)
    what = f"{before} -> {after}" if before != after else f"stays {after}"
    return f"{change.workload}: {would}{what} ({_effect(change)})"


def _effect(made: Change | Decision) -> str:
    """The effect of a decision."""
    return TO_BEST if made.to_best else ACTION_WORDS[made.action]


def _needs_somebody(status: AgentStatus) -> list[Part]:
    lines = needs_lines(status)
    return [text(*(part for line in lines for part in folded(line)))] if lines else []


def needs_lines(status: AgentStatus) -> list[Cell]:
    """Conditions that need an operator: pauses, a trial, unmet floors, problems."""
    lines: list[Cell] = [Styled(pause_text(pause), "bold yellow") for pause in status.pauses]
    if status.trial is not None:
        lines.append(Styled(trial_text(status.trial), "bold"))
    lines += [line for item in status.workloads if (line := _floor(item)) is not None]
    if status.window:
        lines.append(Styled(f"The change window is closed ({status.window}).", "yellow"))
    lines += [Styled(f"! {note}", "yellow") for note in (*status.problems, *limited_notes(status.workloads))]
    return lines


def mode_lines(answer: Mapping[str, Any]) -> list[str]:
    """Lines that name the mode in force and how long it lasts. ``answer``: the daemon's answer to the change."""
    wanted, configured = answer["mode"], answer["configured_mode"]
    who = answer["workload"] or "all workloads"
    same = answer["workload"] is None and wanted == configured
    lasts = "as configured" if same else f"until perphd restarts (the configuration says {configured})"
    said = [f"{who}: {wanted}, {lasts}"]
    if answer["paused"] and wanted == "enforce":
        said.append("A pause is in force, so nothing is written until it ends: perphctl resume")
    return said
