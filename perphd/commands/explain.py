"""Explains decisions in plain sentences: the observation, the conclusion, the action; numbers on request."""

from __future__ import annotations

import datetime
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perphd.commands.render_host import group_name, host_lines
from perphd.control.numbers import NONE, duration, number
from perphd.control.render import HEALTH_STYLE, delay_unit, settings_text
from perphd.control.table import Cell, Part, Styled, folded, table, text
from perphd.domain.decision import (
    PROVISIONAL_TARGET,
    TO_BEST,
    Action,
    Cause,
    Consequences,
    Decision,
    Evidence,
    Health,
    Prediction,
)
from perphd.domain.errors import ParseError
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.status import WorkloadStatus
from perphd.domain.units import SECONDS_PER_UNIT, format_bytes
from perphd.domain.wire import decode
from perphd.domain.workload import Mode

REMEMBERED: Final = 320
"""Maximum number of decisions that the daemon keeps for each LRA."""
_AGO = re.compile(r"-?([0-9]{1,7}(?:\.[0-9]{1,3})?)(s|m|min|h|d)?(?: ago)?")
_TIME_ALLOWED = (
    "a time of day (14:03 or 14:03:22), a date and time (2025-11-21T14:03), or a time ago (90s, 5m, 2h)"
)
_ACTIONS = {
    Action.HOLD: "left everything as it is",
    Action.GROW: "protected it more",
    Action.SHRINK: "gave one step back to batch",
    Action.EXPLORE: "tried a step that the model cannot judge yet",
    Action.ROLLBACK: "rolled back its last change",
    Action.RELEASE: "restored everything",
}
_OBSERVED = {
    Action.HOLD: "would leave everything as it is",
    Action.GROW: "would protect it more",
    Action.SHRINK: "would give one step back to batch",
    Action.EXPLORE: "would try a step that the model cannot judge yet",
    Action.ROLLBACK: "would roll back its last change",
    Action.RELEASE: "would restore everything",
}


_CAUSES = {
    Cause.CPU: "short of cpu",
    Cause.SMT: "slowed by busy hyperthreads beside it",
    Cause.MEMORY: "short of memory",
    Cause.LLC: "short of cache (LLC)",
    Cause.MBW: "short of memory bandwidth",
    Cause.IO: "held up by busy disks",
    Cause.STORAGE: "held up by slow storage",
    Cause.NETWORK: "held up by a full network link",
    Cause.THROTTLED: "held back by its own CPU limit",
    Cause.NEIGHBOUR: "slowed by work that nobody declared",
    Cause.HYPERVISOR: "slowed by the hypervisor, which takes CPU time",
    Cause.SELF: "at the limit of its own load",
    Cause.REMOTE: "slowed by a cause outside this host's resources",
}


_SIGNALS = {
    "cpu_some_pct": "waiting for a CPU (PSI)",
    "memory_some_pct": "waiting for memory (PSI)",
    "io_some_pct": "waiting for disks (PSI)",
    "cpi": "cycles per instruction",
    "slowdown": "time per unit of work",
    "fall of mips": "instructions per second",
    "llc_occupancy_bytes": "last-level cache held",
    "mbw_bytes_per_s": "memory bandwidth",
    "network_pct": "network link",
    "cpu_throttled_pct": "held back by its own CPU limit",
}
_PERFORMANCE = re.compile(r"(work|delay) \((\w+)\)")
_WORK_SOURCES = {"sli": "", "mips": " (MIPS)", "cpu": " (CPU time)"}
_LATENCY = re.compile(r"latency_(p\d+)_ms")


def parse_at(content: str, now: datetime.datetime) -> float:
    """Parse a moment, in seconds since the epoch. A time of day later than now means yesterday.

    ``now``: without a time zone, it is local time. A fixed offset instead would be wrong for times before the clocks
    were changed.

    Raises:
        ParseError: the form is unknown.
    """
    if found := _AGO.fullmatch(content.strip()):
        return now.timestamp() - float(found[1]) * SECONDS_PER_UNIT[found[2]]
    try:
        moment = datetime.time.fromisoformat(content)
    except ValueError:
        pass
    else:
        here = now if moment.tzinfo is None else now.astimezone(moment.tzinfo)
        today = here.replace(
            hour=moment.hour, minute=moment.minute, second=moment.second, microsecond=moment.microsecond
        )
        return (today if today <= here else today - datetime.timedelta(days=1)).timestamp()
    try:
        return datetime.datetime.fromisoformat(content).timestamp()
    except ValueError as exc:
        raise ParseError("a time", content, _TIME_ALLOWED) from exc


def answer_parts(
    data: Mapping[str, Any],
    workload: str,
    *,
    limit: int | None = None,
    at_s: float | None = None,
    verbose: bool = False,
) -> list[Part]:
    """The daemon's answer to explain. ``at_s``: the requested moment, in seconds since the epoch; None: now.

    ``limit``: list this many decisions; None: the last change and the latest decision.
    """
    decisions = decode(tuple[Decision, ...], data["decisions"], "decisions")
    after = decode(tuple[Consequences, ...], data.get("aftermath", []), "aftermath")
    offset_s = data["clock"]["unix_s"] - data["clock"]["monotonic_s"]
    status = decode(WorkloadStatus, data["workload"], "workload")
    origin = [text(f"Declared by {status.spec.declared_by}.")] if status.spec.declared_by else []
    if data["kind"] == "batch":
        return [*origin, *batch_parts(status, decisions[: limit or 1], offset_s)]
    listed = explain_parts if limit is not None else summary_parts
    # With the day, because a time of day later than now means yesterday.
    before = "yet" if at_s is None else time.strftime("from before %Y-%m-%d %H:%M:%S", time.localtime(at_s))
    nothing = text(f"No decision about {workload} is remembered {before}.")
    is_now = at_s is None
    now = [text(f"Its last sample reports: {status.condition}.")] if status.condition and is_now else []
    host = data.get("host") if is_now else None
    around = [] if host is None else [text(*host_lines(decode(HostAccount, host, "host")))]
    return [*origin, *now, *around, *(listed(decisions, offset_s, verbose=verbose, after=after) or [nothing])]


def explain_parts(
    decisions: Sequence[Decision],
    offset_s: float,
    *,
    verbose: bool = False,
    after: Sequence[Consequences] = (),
) -> list[Part]:
    """Sentences about each decision, in the given order, worded for its mode.

    ``offset_s``: seconds since the epoch minus the agent's monotonic clock, to show times of day. ``after``:
    the effects of each decision.
    """
    known = {item.decided_at_s: item for item in after}
    parts: list[Part] = []
    for decision in decisions:
        followed = known.get(decision.at_s, Consequences(decision.at_s))
        parts.append(_sentences(decision, offset_s, followed, verbose))
        if verbose:
            parts += _numbers(decision)
    return parts


def summary_parts(
    decisions: Sequence[Decision],
    offset_s: float,
    *,
    verbose: bool = False,
    after: Sequence[Consequences] = (),
) -> list[Part]:
    """The last decision other than a hold, then a summary of later ones. ``decisions``: newest first."""
    place = next((i for i, decision in enumerate(decisions) if decision.action is not Action.HOLD), None)
    if place is None:
        return explain_parts(decisions[:1], offset_s, verbose=verbose, after=after)
    parts = explain_parts([decisions[place]], offset_s, verbose=verbose, after=after)
    if place:
        times = "once" if place == 1 else f"{place} times"
        parts.append(
            text(
                Styled(
                    f"Since then no setting changed; the reason or the health changed {times}. "
                    "The latest decision:",
                    "dim",
                )
            )
        )
        parts += explain_parts(decisions[:1], offset_s, verbose=verbose, after=after)
    return parts


def batch_parts(item: WorkloadStatus, decisions: Sequence[Decision], offset_s: float) -> list[Part]:
    """The reason why a batch workload has its settings.

    ``decisions``: those that changed its settings, newest first.
    """
    lines: list[Cell] = [Styled(f"{item.spec.name}: {settings_text(item.in_force)}", "bold")]
    if item.condition:
        lines.append(f"  It is {item.condition}{_for_how_long(item)}.")
    if available(item.recent_cores):
        floor = f"; min_cores is {item.spec.min_cores:g}" if item.spec.min_cores else ""
        lines.append(f"  It got {item.recent_cores:.2f} cores over the last 10 s{floor}.")
    if item.outcome is not None:
        lines.append(f"  Lately: {item.outcome.text}.")
    parts: list[Part] = [text(*lines)]
    if not decisions:
        parts.append(text("perphd remembers no decision that changed it."))
        return parts
    return [*parts, *explain_parts(decisions, offset_s)]


def _for_how_long(item: WorkloadStatus) -> str:
    return f", for {duration(item.starved_s)}" if item.starved_s >= 1.0 else ""


def _sentences(decision: Decision, offset_s: float, after: Consequences, verbose: bool) -> Part:
    verdict = decision.verdict
    moment = datetime.datetime.fromtimestamp(decision.at_s + offset_s).astimezone()
    lines: list[Cell] = [
        Styled(f"{moment:%Y-%m-%d %H:%M:%S}  {decision.workload}", "bold"),
        Styled(f"  It was {_health(decision)}.", HEALTH_STYLE[verdict.health]),
    ]
    lines += [f"    {_evidence(item)}" for item in verdict.evidence]
    if decision.target_provisional:
        lines += folded(f"  {PROVISIONAL_TARGET[0].upper()}{PROVISIONAL_TARGET[1:]}.")
    lines.append(f"  perphd {_action(decision)}.")
    if decision.chosen != decision.current:
        lines.append(f"    from {decision.current}")
        lines.append(f"    to   {decision.chosen}")
    elif decision.action is not Action.HOLD:
        lines.append(f"    stays at {decision.chosen}")
    if decision.action is not Action.HOLD:
        lines += _what_followed(after, verbose)
    return text(*lines)


def _action(decision: Decision) -> str:
    """The action and its reason."""
    is_observed = decision.mode is Mode.OBSERVE
    if decision.to_best:
        verb = "would return" if is_observed else "returned"
        return f"{verb} to the best setting: {decision.reason.removeprefix(f'{TO_BEST}: ')}"
    return f"{(_OBSERVED if is_observed else _ACTIONS)[decision.action]}: {decision.reason}"


def _what_followed(after: Consequences, verbose: bool) -> list[Cell]:
    lines: list[Cell] = []
    if after.written:
        files = "one file" if len(after.written) == 1 else f"{len(after.written)} files"
        lines.append(f"  {files} {after.result}." if not verbose else f"  {files} {after.result}:")
        lines += [f"    {write}" for write in after.written] if verbose else []
    if after.outcome is not None:
        lines.append(
            f"  Afterwards: {after.outcome.text}; the change was {'kept' if after.outcome.kept else 'undone'}."
        )
    return lines


def _health(decision: Decision) -> str:
    verdict = decision.verdict
    since = decision.at_s - verdict.since_s
    words = str(verdict.health)
    if verdict.health is Health.UNKNOWN:
        words = "of unknown health"
    if verdict.cause not in (Cause.NONE, Cause.UNKNOWN):
        words += f", {_CAUSES[verdict.cause]}"
    if verdict.culprit:
        words += f" because of {group_name(verdict.culprit)}"
    return f"{words} (for {duration(since)})" if since >= 1 else words


def _evidence(item: Evidence) -> str:
    """One measurement in words, with its unit and the value it is compared with."""
    name, unit, beside = _SIGNALS.get(item.signal, item.signal), item.unit, "expected"
    if name is not item.signal:
        beside = "usually"
    elif (found := _PERFORMANCE.fullmatch(item.signal)) and found[1] == "work":
        name, beside = f"work{_WORK_SOURCES.get(found[2], f' ({found[2]})')}", "target"
    elif found:
        latency = _LATENCY.fullmatch(found[2])
        name = f"{latency[1]} latency" if latency else f"delay ({found[2]})"
        unit, beside = delay_unit(found[2]), "at most"
    if isinstance(item.observed, Unavailable):
        return item.text or f"{name}: {item.observed.reason}"
    seen = f"{name}: {_amount(item.observed, unit)}"
    # "Usually 0" says nothing, and a comparison with the usual value in words needs no second number.
    if available(item.expected) and not (beside == "usually" and (not item.expected or "usual" in item.text)):
        seen += f", {beside} {_amount(item.expected, unit)}"
    return f"{seen} ({item.text})" if item.text else seen


def _amount(value: Reading, unit: str) -> str:
    if unit in ("B", "B/s") and available(value):
        return f"{format_bytes(value)}{unit.removeprefix('B')}"
    return number(value, unit)


def _numbers(decision: Decision) -> list[Part]:
    lines: list[Cell] = [
        f"  policy {decision.policy}",
        f"  target: work {_or_reason(decision.target_work)}, delay {_or_reason(decision.target_delay)}",
    ]
    parts: list[Part] = [text(*lines)]
    if decision.candidates:
        rows = [
            (
                Styled(str(item.allocation), "bold" if item.allocation == decision.chosen else ""),
                _score(item.prediction),
                number(item.prediction.support) if item.prediction is not None else NONE,
                f"{item.score:.2f}" if math.isfinite(item.score) else NONE,
                number(item.batch_cores_lost),
                item.verdict,
            )
            for item in decision.candidates
        ]
        columns = (
            "  CONSIDERED",
            "MODEL [LOWER, UPPER]",
            "SAMPLES",
            "USED",
            "COSTS BATCH (CORES)",
            "VERDICT",
        )
        parts.append(table("", columns, [(f"  {row[0]}", *row[1:]) for row in rows], right=(2, 3, 4)))
        rules = {item.estimate.basis for item in decision.candidates if item.estimate is not None}
        parts += [
            text(f"  USED is an estimate where it differs from MODEL: {rule}") for rule in sorted(rules)
        ]
    return parts


def _score(prediction: Prediction | None) -> str:
    """The model's own prediction; a dash if no model was asked."""
    if prediction is None or not math.isfinite(prediction.score):
        return NONE
    return f"{prediction.score:.2f} [{prediction.lower:.2f}, {prediction.upper:.2f}]"


def _or_reason(reading: float | Unavailable) -> str:
    return f"unknown ({reading.reason})" if isinstance(reading, Unavailable) else number(reading)
