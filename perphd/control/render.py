"""The daemon's answers in words and tables: what perphctl shows. Pure functions of domain values."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from perphd.control.render_host import group_name, host_line
from perphd.control.table import Cell, Part, Styled, table, text
from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Settings
from perphd.domain.capability import Area, Capability
from perphd.domain.condition import BatchCondition, LraCondition
from perphd.domain.control import Pause
from perphd.domain.decision import AWAITED, Action, Cause, Health, Outcome, Verdict
from perphd.domain.forecast import ForecastSummary
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import Sample
from perphd.domain.signals import performance, work_unit
from perphd.domain.status import AgentStatus, SelfCost, TrialStatus, WorkloadStatus
from perphd.domain.topology import Topology
from perphd.domain.units import format_bytes
from perphd.domain.workload import Kind, Mode

HEALTH_STYLE = {
    Health.HEALTHY: "green",
    Health.SUSPECT: "yellow",
    Health.DEGRADED: "bold red",
    Health.OVERPROVISIONED: "cyan",
    Health.UNKNOWN: "dim",
}
_AREAS = {Area.MEASURE: "Measuring", Area.ENFORCE: "Enforcing", Area.SERVICE: "Running as a service"}
NONE = "-"
_CONDITION_STYLE: Mapping[str, str] = {
    LraCondition.STALLED: "bold red",
    LraCondition.NO_LOAD: "dim",
    BatchCondition.STARVED: "yellow",
    BatchCondition.THROTTLED: "yellow",
    BatchCondition.FROZEN: "yellow",
    BatchCondition.IDLE: "dim",
    BatchCondition.GONE: "dim",
}
_FLOOR_MET = 0.9
"""Share of a floor from which it counts as met."""
_LRA_HEADS = "LRA,HEALTH,WORK,TARGET,DELAY,TARGET,CORES,MEMORY,LAST,PROTECTION".split(",")
_BATCH_HEADS = "BATCH,STATE,CORES,MEMORY,DISK,WAITS FOR CPU,IN FORCE".split(",")


def status_parts(status: AgentStatus, now_s: float) -> list[Part]:
    """``perphctl status``. ``now_s``: the daemon's monotonic clock, from which ages are told."""
    lras = [item for item in status.workloads if item.spec.kind is Kind.LRA]
    batch = [item for item in status.workloads if item.spec.kind is Kind.BATCH]
    host = () if status.host is None else (host_line(status.host),)
    ahead = () if status.forecast is None else (Styled(_forecast(status.forecast), "dim"),)
    parts: list[Part] = [
        text(_headline(status), *host, Styled(_cost(status.cost, status.journal_entries), "dim"), *ahead)
    ]
    cache = any(_uses_cache(item) for item in status.workloads)
    if lras:
        heads, right = (_cache_heads(_LRA_HEADS), range(2, 10)) if cache else (_LRA_HEADS, range(2, 8))
        parts.append(table("", heads, [_lra_row(item, status, cache) for item in lras], right=right))
        if reasons := [line for item in lras for line in _why(item, now_s)]:
            parts.append(text(*reasons))
    if batch:
        heads, right = (_cache_heads(_BATCH_HEADS), range(2, 8)) if cache else (_BATCH_HEADS, range(2, 6))
        parts.append(table("", heads, [_batch_row(item, status, cache) for item in batch], right=right))
        if tried := [line for item in batch for line in _tried(item, now_s)]:
            parts.append(text(*tried))
    if not status.workloads:
        parts.append(
            text("No workload is declared: perphctl lra add NAME CGROUP, perphctl batch add NAME CGROUP")
        )
    if status.pauses:
        parts.append(text(*(Styled(pause_text(pause), "bold yellow") for pause in status.pauses)))
    if status.trial is not None:
        parts.append(text(Styled(trial_text(status.trial), "bold")))
    if status.notes:
        parts.append(text(*(Styled(note, "dim") for note in status.notes)))
    notes = [*status.problems, *_not_enforceable(status.workloads), *_limited(status.workloads)]
    if notes:
        parts.append(text(*(Styled(f"! {note}", "yellow") for note in notes)))
    return parts


def doctor_parts(capabilities: Iterable[Capability], topology: Topology, seen_by: str) -> list[Part]:
    """``perphctl doctor``: what is there, then what each absence costs and how to get it."""
    items = list(capabilities)
    parts: list[Part] = [text(topology_line(topology), Styled(f"as seen by {seen_by}", "dim"))]
    for area, title in _AREAS.items():
        rows: list[tuple[Cell, ...]] = [
            (item.name, Styled("yes", "green") if item.present else Styled("no", "yellow"), item.detail)
            for item in items
            if item.area is area
        ]
        if rows:
            parts.append(table(title, ("CAPABILITY", "PRESENT", "DETAIL"), rows))
    missing = [item for item in items if not item.present and (item.cost or item.remedy)]
    if missing:
        needs = [(item.name, item.cost or NONE, item.remedy or NONE) for item in missing]
        parts.append(table("What is missing", ("CAPABILITY", "WITHOUT IT", "HOW TO GET IT"), needs))
    return parts


def topology_line(topology: Topology) -> str:
    """The host's processors and memory in one line."""
    cores, cpus = len(topology.usable_cores), len(topology.usable)
    words = [f"{cores} cores", f"{cpus} CPUs ({topology.usable})"]
    if topology.isolated:
        words.append(f"isolated {topology.isolated}")
    if topology.offline:
        words.append(f"offline {topology.offline}")
    sizes = sorted({domain.size_bytes for domain in topology.l3_domains})
    if sizes:
        words.append(
            f"{len(topology.l3_domains)} x L3 of {' or '.join(format_bytes(size) for size in sizes)}"
        )
    words.append(f"{max(1, len(topology.nodes))} memory node{'s' if len(topology.nodes) > 1 else ''}")
    words.append(f"{format_bytes(topology.memory_bytes)} of memory")
    return ", ".join(words)


def settings_text(settings: Settings) -> str:
    """What is in force in words; ``as found`` when perphd has set nothing."""
    words = []
    if settings.cpus is not KEEP:
        words.append(f"CPUs {settings.cpus}")
    if settings.cpu_weight is not KEEP:
        words.append("idle" if settings.cpu_weight is IDLE else f"weight {settings.cpu_weight}")
    if settings.cpu_max_cores is not KEEP:
        words.append(f"at most {settings.cpu_max_cores:g} cores")
    if settings.memory_low_bytes is not KEEP:
        words.append(f"{format_bytes(settings.memory_low_bytes)} protected")
    if settings.memory_high_bytes is not KEEP:
        limit = settings.memory_high_bytes
        words.append("no memory limit" if limit is NO_LIMIT else f"memory to {format_bytes(float(limit))}")
    if settings.llc_masks is not KEEP:
        words.append("LLC " + " ".join(f"{domain}:{mask:x}" for domain, mask in settings.llc_masks))
    if settings.mba_pct is not KEEP:
        words.append("bandwidth " + " ".join(f"{domain}:{pct} %" for domain, pct in settings.mba_pct))
    if settings.mems is not KEEP:
        words.append(f"memory nodes {settings.mems}")
    if settings.memory_min_bytes is not KEEP:
        words.append(f"{format_bytes(settings.memory_min_bytes)} never reclaimed")
    if settings.memory_max_bytes is not KEEP:
        words.append("memory ceiling " + format_bytes(float(settings.memory_max_bytes))
                     if settings.memory_max_bytes is not NO_LIMIT else "no memory ceiling")  # fmt: skip
    if settings.io_weight is not KEEP:
        words.append(f"disk weight {settings.io_weight}")
    if settings.io_max is not KEEP:
        words.append("disks limited")
    if settings.io_latency_us is not KEEP:
        words.append("disk latency targets")
    if settings.egress_max is not KEEP:
        words.append("sends " + ", ".join(f"{format_bytes(float(rate))}/s on {device}"
                                          for device, rate in settings.egress_max))  # fmt: skip
    if settings.frozen is not KEEP:
        words.append("frozen" if settings.frozen else "not frozen")
    return ", ".join(words) if words else "as found"


def verdict_cell(verdict: Verdict) -> Styled:
    """Health, with the cause where one is known."""
    known = verdict.cause not in (Cause.NONE, Cause.UNKNOWN)
    label = f"{verdict.health} ({verdict.cause})" if known else str(verdict.health)
    return Styled(label, HEALTH_STYLE[verdict.health])


def duration(seconds: float) -> str:
    """``2 h 03 min``-like text."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(reading: Reading, unit: str = "") -> str:
    """A number as people read it, three to four digits; ``-`` if there is none."""
    if not available(reading):
        return NONE
    size = abs(reading)
    shown = f"{reading:.0f}" if size >= 100 else f"{reading:.3g}"
    return f"{shown} {unit}".rstrip()


def delay_unit(source: str) -> str:
    """Unit of a delay signal (see domain.signals)."""
    return "ms" if "_ms" in source else "x"


def pause_text(pause: Pause) -> str:
    """A pause in one sentence: whom it covers, until when, by whom and why."""
    until = "until perphctl resume"
    if pause.until_unix_s is not None:
        until = f"until {datetime.datetime.fromtimestamp(pause.until_unix_s).astimezone():%Y-%m-%d %H:%M:%S}"
    if pause.by.startswith("the file "):
        until = f"until {pause.by} is removed"
    why = f": {pause.reason}" if pause.reason else ""
    return f"{pause.workload or 'all workloads'}: paused {until}, by {pause.by}{why}"


def trial_text(trial: TrialStatus) -> str:
    """A running trial in one sentence."""
    ends = datetime.datetime.fromtimestamp(trial.ends_unix_s).astimezone()
    where = f"block {trial.block} of {trial.blocks}" if trial.block else "the run-in"
    void = f"; this block does not count: {trial.void}" if trial.void else ""
    return f"Trial {trial.trial}: {where}, {trial.mode}, until {ends:%Y-%m-%d %H:%M}{void}"


def _headline(status: AgentStatus) -> Styled:
    style = "bold green" if status.mode is Mode.ENFORCE else "bold"
    paused = " (paused)" if any(not pause.workload for pause in status.pauses) else ""
    return Styled(
        f"perphd {status.version}: {status.mode}{paused}, policy {status.policy}, "
        f"up {duration(status.uptime_s)}, tick {status.tick}, {_pace(status)}",
        style,
    )


def _pace(status: AgentStatus) -> str:
    pace = f"every {status.pace_s:g} s"
    return f"{pace} (usually {status.period_s:g} s: {status.attentive})" if status.attentive else pace


def _cost(cost: SelfCost, journal: int) -> str:
    memory = format_bytes(cost.rss_bytes) if available(cost.rss_bytes) else NONE
    words = [
        f"itself: {number(cost.cpu_pct)} % of a CPU, {memory}, {number(cost.open_fds)} descriptors",
        f"tick {number(cost.tick_ms_p50)} ms (p99 {number(cost.tick_ms_p99)} ms)",
    ]
    if available(cost.decide_to_written_ms_p99):
        words.append(f"decision to last write p99 {number(cost.decide_to_written_ms_p99)} ms")
    if cost.missed_ticks:
        words.append(f"{cost.missed_ticks} ticks missed")
    words.append(
        f"{journal} original value{'' if journal == 1 else 's'} kept" if journal else "nothing changed"
    )
    return "; ".join(words)


def _forecast(summary: ForecastSummary | Unavailable) -> str:
    if isinstance(summary, Unavailable):
        return f"forecasts: {summary.reason}"
    words = [f"forecasts: {summary.forecasts} of {summary.series} series"]
    peaks = [
        f"{summary.peak_cores:.2f}cores" if available(summary.peak_cores) else "",
        format_bytes(summary.peak_bytes) if available(summary.peak_bytes) else "",
    ]
    if any(peaks):
        words.append(f"the host's peak of the next hour {', '.join(filter(None, peaks))}")
    memory = format_bytes(summary.rss_bytes) if available(summary.rss_bytes) else NONE
    words.append(f"their worker: {number(summary.cpu_pct)} % of a CPU, {memory}")
    return "; ".join([*words, *([summary.problem] if summary.problem else [])])


def _uses_cache(item: WorkloadStatus) -> bool:
    return item.sample is not None and bool(item.sample.domains)


def _cache_heads(heads: list[str]) -> list[str]:
    """The heads with those of cache and bandwidth after the memory's."""
    after = heads.index("MEMORY") + 1
    return [*heads[:after], "CACHE", "BANDWIDTH", *heads[after:]]


def _cache_cells(sample: Sample, cache: bool) -> tuple[Cell, ...]:
    """Cache occupancy and memory bandwidth, if anybody's is measured."""
    if not cache:
        return ()
    moved = sample.mbw_bytes_per_s
    return _bytes(sample.llc_occupancy_bytes), f"{format_bytes(moved)}/s" if available(moved) else NONE


def _lra_row(item: WorkloadStatus, status: AgentStatus, cache: bool) -> tuple[Cell, ...]:
    decision, sample = item.decision, item.sample
    if sample is None or not item.present:
        return (*_absent(item, status), *[NONE] * (10 if cache else 8))
    told = item.full_sample if item.full_sample is not None else sample
    perf = performance(told, item.spec.objective.latency_percentile)
    health = _health(item)
    targets = (decision.target_work, decision.target_delay) if decision is not None else (NONE, NONE)
    work, delay = work_unit(perf.work_source), delay_unit(perf.delay_source)
    last = Styled(str(decision.action), "dim" if decision.action is Action.HOLD else "") if decision else NONE
    return (
        _name(item, status),
        health,
        number(perf.work, work),
        _target(targets[0], work),
        number(perf.delay, delay),
        _target(targets[1], delay),
        number(sample.cpu_usage_cores),
        _bytes(sample.memory_current_bytes),
        *_cache_cells(sample, cache),
        last,
        str(item.protection) if item.protection is not None else "none",
    )


def _batch_row(item: WorkloadStatus, status: AgentStatus, cache: bool) -> tuple[Cell, ...]:
    sample = item.sample
    if sample is None or not item.present:
        return (*_absent(item, status), *[NONE] * (6 if cache else 4), settings_text(item.in_force))
    parts = [r for r in (sample.read_bytes_per_s, sample.write_bytes_per_s) if available(r)]
    return (
        _name(item, status),
        _batch_state(item),
        number(sample.cpu_usage_cores),
        _bytes(sample.memory_current_bytes),
        *_cache_cells(sample, cache),
        f"{format_bytes(sum(parts))}/s" if parts else NONE,
        number(sample.cpu_some_pct, "%"),
        settings_text(item.in_force),
    )


def _health(item: WorkloadStatus) -> Cell:
    """Health, or what it does not say: an LRA that nobody asks is not healthy."""
    if item.condition:
        return Styled(item.condition, _CONDITION_STYLE.get(item.condition, "yellow"))
    return verdict_cell(item.decision.verdict) if item.decision is not None else NONE


def _batch_state(item: WorkloadStatus) -> Cell:
    """What batch does; for how long, if it is starved."""
    if item.condition == BatchCondition.STARVED and item.starved_s >= 1.0:
        return Styled(f"{item.condition} {duration(item.starved_s)}", "yellow")
    return Styled(item.condition, _CONDITION_STYLE.get(item.condition, ""))


def _absent(item: WorkloadStatus, status: AgentStatus) -> tuple[Cell, Cell]:
    return _name(item, status), Styled("waiting for its cgroup", "yellow")


def _name(item: WorkloadStatus, status: AgentStatus) -> str:
    if item.pause is not None:
        return item.spec.name if not item.pause.workload else f"{item.spec.name} [paused]"
    return item.spec.name if item.mode is status.mode else f"{item.spec.name} [{item.mode}]"


def _why(item: WorkloadStatus, now_s: float) -> list[Cell]:
    if not item.present:
        return []  # the table says so, and the status' problems name the cgroup
    if item.problem:
        return [Styled(f"{item.spec.name}: {item.problem}", "yellow")]
    if item.decision is None:
        return []
    verdict = item.decision.verdict
    culprit = f" (because of {group_name(verdict.culprit)})" if verdict.culprit else ""
    lines: list[Cell] = [f"{item.spec.name}: {item.decision.reason}{culprit}"]
    lines += [
        Styled(f"{' ' * len(item.spec.name)}  {seen.text}", "dim")
        for seen in verdict.evidence
        if seen.signal == AWAITED
    ]
    if item.spec.sli is not None and item.sli_resolution:
        source = f"{item.spec.sli.source}: resolution {item.sli_resolution}"
        lines.append(Styled(f"{' ' * len(item.spec.name)}  {source}", "dim"))
    if item.mode is Mode.OBSERVE and (would := item.would) is not None:
        ago = duration(now_s - would.at_s)
        said = f"observing: {ago} ago it would have done {would.action}: {would.chosen} (perphctl report)"
        lines.append(Styled(f"{' ' * len(item.spec.name)}  {said}", "cyan"))
    if item.outcome is not None:
        lines.append(
            Styled(f"{' ' * len(item.spec.name)}  last outcome: {_came(item.outcome, now_s)}", "dim")
        )
    return lines


def _tried(item: WorkloadStatus, now_s: float) -> list[Cell]:
    """Whether a batch job has its floor, and what was last tried with it."""
    if not item.present:
        return []
    lines: list[Cell] = []
    floor, got = item.spec.guaranteed_cores, item.recent_cores
    if item.condition != BatchCondition.IDLE and available(got) and got < _FLOOR_MET * floor:
        lines.append(
            Styled(
                f"{item.spec.name}: got {got:.2f} cores over the last 10 s, min_cores is {floor:g}", "yellow"
            )
        )
    if item.outcome is not None:
        lines.append(Styled(f"{item.spec.name}: {_came(item.outcome, now_s)}", "dim"))
    return lines


def _came(outcome: Outcome, now_s: float) -> str:
    return f"{outcome.text} ({duration(now_s - outcome.at_s)} ago)"


_WANTED = frozenset({"cpus", "cpu_weight", "memory_low_bytes", "memory_high_bytes"})
"""What every policy would set on any host: its absence is news. That a host has no resctrl is doctor's to say."""


_LIMITED_SHOWN = 10


def _not_enforceable(workloads: Iterable[WorkloadStatus]) -> list[str]:
    notes: dict[str, list[str]] = {}
    for item in workloads:
        if item.mode is not Mode.ENFORCE or not item.present:
            continue
        for missing in item.not_enforceable:
            if missing.knob not in _WANTED:
                continue
            notes.setdefault(f"cannot be set here: {missing.reason}", []).append(
                f"{missing.workload} {missing.knob}"
            )
    return [f"{', '.join(what)} {why}" for why, what in notes.items()]


def _limited(workloads: Iterable[WorkloadStatus]) -> list[str]:
    """What was wanted and is not in force in full; what is told as not enforceable already is not told again."""
    notes: dict[str, list[str]] = {}
    for item in workloads:
        told = {(left.knob, left.reason) for left in item.not_enforceable if left.knob in _WANTED}
        for left in item.limited:
            if (left.knob, left.reason) not in told:
                notes.setdefault(left.reason, []).append(f"{left.workload} {left.knob}")
    lines = [f"{', '.join(what)}: {why}" for why, what in notes.items()]
    if len(lines) > _LIMITED_SHOWN:
        lines[_LIMITED_SHOWN:] = [f"and {len(lines) - _LIMITED_SHOWN} more (perphctl --json status)"]
    return lines


def _target(reading: Reading | str, unit: str) -> Cell:
    if isinstance(reading, str):
        return reading
    if isinstance(reading, Unavailable):
        return Styled("learning", "dim")
    return number(reading, unit)


def _bytes(reading: Reading) -> str:
    return format_bytes(reading) if available(reading) else NONE
