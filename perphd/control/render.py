"""Renders the daemon's answers as text and tables for perphctl. Pure functions of domain values."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perphd.control.numbers import NONE, duration, number
from perphd.control.table import Cell, Part, Styled, table, text
from perphd.control.verdict import verdict
from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Settings
from perphd.domain.capability import Area
from perphd.domain.decision import Health
from perphd.domain.host_account import NO_GROUP
from perphd.domain.reading import available
from perphd.domain.suggestion import workload_name
from perphd.domain.units import format_bytes
from perphd.domain.workload import Mode

if TYPE_CHECKING:
    from perphd.domain.capability import Capability
    from perphd.domain.control import Pause
    from perphd.domain.status import AgentStatus, SelfCost, TrialStatus, WorkloadStatus
    from perphd.domain.suggestion import Suggestion
    from perphd.domain.topology import Topology
    from perphd.isolation.restore_report import RestoreReport  # its package loads asyncio

HEALTH_STYLE = {
    Health.HEALTHY: "green",
    Health.SUSPECT: "yellow",
    Health.DEGRADED: "bold red",
    Health.OVERPROVISIONED: "cyan",
    Health.UNKNOWN: "dim",
}
MUCH_SHARE = 0.05
"""Share of the host's CPUs from which ``perphctl doctor`` names undeclared work that slowed nobody."""
_AREAS = {Area.MEASURE: "Measuring", Area.ENFORCE: "Enforcing", Area.SERVICE: "Running as a service"}


def doctor_parts(
    capabilities: Iterable[Capability],
    topology: Topology,
    seen_by: str,
    limits: Iterable[str] = (),
    by_themselves: Iterable[str] = (),
    bands: Iterable[str] = (),
    undeclared: Iterable[str] = (),
) -> list[Part]:
    """The output of ``perphctl doctor``: the verdict, then present and missing capabilities.

    A missing capability is listed with its effect and its remedy. ``limits``: settings and measurements that declared
    workloads cannot have. ``by_themselves``: workloads that declared themselves, with the places. ``bands``: the
    mechanisms of each declared band here.
    ``undeclared``: work that uses much CPU and that nobody declared.
    """
    items = list(capabilities)
    parts: list[Part] = [
        text(Styled(verdict(items), "bold"), topology_line(topology), Styled(f"as seen by {seen_by}", "dim"))
    ]
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
    if lines := list(undeclared):
        parts.append(text(Styled("Undeclared work:", "yellow"), *(f"  {line}" for line in lines)))
    if lines := list(limits):
        parts.append(text("Limitations of the declared workloads:", *(f"  {line}" for line in lines)))
    if lines := list(bands):
        parts.append(text("Bands:", *(f"  {line}" for line in lines)))
    if lines := list(by_themselves):
        parts.append(text("Workloads that declared themselves:", *(f"  {line}" for line in lines)))
    return parts


def declared_lines(workloads: Iterable[WorkloadStatus]) -> tuple[str, ...]:
    """Workloads that declared themselves, with the places of their declarations."""
    return tuple(
        f"{item.spec.name} ({item.spec.kind}): declared by {item.spec.declared_by}"
        for item in workloads
        if item.spec.declared_by
    )


def undeclared_lines(found: Iterable[Suggestion], capacity: int, names: Mapping[str, str]) -> tuple[str, ...]:
    """Undeclared groups that use much CPU or slowed LRAs, with the commands that declare them.

    ``capacity``: the host's CPUs that workloads may use. ``names``: names of containers, by group.
    """
    lines = []
    for item in found:
        if item.cpu_cores < MUCH_SHARE * capacity and not item.gains:
            continue
        used = f"used {item.cpu_cores:.2g} of {capacity} CPUs in the last {duration(item.seen_s)}"
        slowed = f" and slowed {', '.join(gain.lra for gain in item.gains)}" if item.gains else ""
        if item.group == NO_GROUP:
            lines.append(
                f"Processes in no control group {used}{slowed}. To declare them, start them with systemd-run."
            )
            continue
        name, group = workload_name(item.group), shlex.quote(item.group)
        known = f"{names[item.group]} ({item.group})" if names.get(item.group) else item.group
        lines.append(f"{known} {used}{slowed}. If it may give way: perphctl batch add {name} {group}")
        lines.append(f"  If it must be protected: perphctl lra add {name} {group}")
    return tuple(lines)


def limitations(status: AgentStatus) -> tuple[str, ...]:
    """Settings and measurements that declared workloads lack on this host, with the reasons."""
    return (*status.notes, *not_enforceable_notes(status.workloads))


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
    """Settings in force in words; ``as found`` if perphd has set nothing."""
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


def delay_unit(source: str) -> str:
    """Unit of a delay signal (see domain.signals)."""
    return "ms" if "_ms" in source else "x"


def pause_text(pause: Pause) -> str:
    """A pause in one sentence: its scope, end, author and reason."""
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


def self_cost(cost: SelfCost, journal: int) -> list[str]:
    """The daemon's own resource use, in one or two lines."""
    memory = format_bytes(cost.rss_bytes) if available(cost.rss_bytes) else NONE
    words = [f"tick {number(cost.tick_ms_p50)} ms (p99 {number(cost.tick_ms_p99)} ms)"]
    if available(cost.decide_to_written_ms_p99):
        words.append(f"decision to last write p99 {number(cost.decide_to_written_ms_p99)} ms")
    if cost.missed_ticks:
        words.append(f"{cost.missed_ticks} ticks missed")
    kept = f"{journal} original value{'' if journal == 1 else 's'} kept" if journal else "nothing changed"
    used = f"itself: {number(cost.cpu_pct)} % of a CPU, {memory}, {number(cost.open_fds)} descriptors; {kept}"
    return [used, "; ".join(words)]


_WANTED = frozenset({"cpus", "cpu_weight", "memory_low_bytes", "memory_high_bytes"})
"""Knobs that every policy would set on any host; a missing one is worth a note. Doctor reports missing resctrl."""


_LIMITED_SHOWN = 10


def not_enforceable_notes(workloads: Iterable[WorkloadStatus]) -> list[str]:
    """Knobs that every policy would set and that this host lacks, with the reasons."""
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


def limited_notes(workloads: Iterable[WorkloadStatus]) -> list[str]:
    """Settings that are only partly in force, except those already listed as not enforceable."""
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


def event_line(name: str, data: Mapping[str, Any], offset_s: float) -> str:
    """A line of ``perphctl events``: one event. ``offset_s``: the wall clock minus the event's clock."""
    moment = datetime.datetime.fromtimestamp(data["at_s"] + offset_s)
    who = f"{data['workload']}: " if data["workload"] else ""
    by = f"; by {data['by']}" if data.get("by") else ""
    return f"{moment:%H:%M:%S}  {name:<9} {who}{data['text']}{by}"


def restore_parts(
    report: RestoreReport, nothing: str = "Nothing had to be restored.", guess: str = ""
) -> list[Part]:
    """The output of ``perphctl restore``: a summary, then every file that was not simply restored.

    ``nothing``: the summary of an empty report. ``guess``: why the report may concern the wrong directory.
    """
    counts = (
        (len(report.restored), "put back"),
        (len(report.already), "as they were already"),
        (len(report.gone), "gone with their cgroup"),
        (len(report.foreign), "left alone: another program has changed them since (--force overwrites them)"),
        (len(report.failed), "FAILED"),
    )
    said = ", ".join(f"{number} {what}" for number, what in counts if number)
    parts: list[Part] = [text(guess)] if guess else []
    parts.append(text(f"Files: {said}." if said else "No file was put back." if guess else nothing))
    rows = [
        (Styled(what, style), item.path, item.original, item.now or item.found, item.note)
        for what, style, items in (
            ("failed", "bold red", report.failed),
            ("left alone", "yellow", report.foreign),
            ("put back", "green", report.restored),
        )
        for item in items
    ]
    if rows:
        parts.append(table("", ("RESULT", "FILE", "ORIGINAL", "NOW", "NOTE"), rows))
    if report.notes:
        parts.append(text(*report.notes))
    return parts
