"""The page's data of one moment: the view of ``perphctl status`` and ``top`` as JSON. Pure."""

from __future__ import annotations

from typing import Any, Final

from perphd.commands.dashboard.shown_parts import cell
from perphd.commands.render_host import PARTS
from perphd.commands.render_status import BATCH_HEADS, LRA_HEADS, performance_of
from perphd.commands.view import Severity, View, view_of
from perphd.control.render import delay_unit
from perphd.domain.control import Pause
from perphd.domain.decision import Action
from perphd.domain.event import EventKind
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import Reading, available
from perphd.domain.signals import work_unit
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.topology import Topology

TONES: Final = {
    Severity.GOOD: "good",
    Severity.QUIET: "dim",
    Severity.WATCH: "warn",
    Severity.BAD: "bad",
}
_SHOWN_EVENTS: Final = frozenset(set(EventKind) - {EventKind.TICK})


def picture(status: AgentStatus, topology: Topology, now_s: float, offset_s: float) -> dict[str, Any]:
    """All data of the page at one moment.

    ``now_s``: the daemon's monotonic clock; ``offset_s``: its offset to seconds since the epoch.
    """
    view = view_of(status, topology, now_s)
    items = {item.spec.name: item for item in status.workloads}
    return {
        "at_s": now_s + offset_s,
        "tick": status.tick,
        "mode": status.mode.value,
        "paused": any(not pause.workload for pause in status.pauses),
        "pauses": [_pause(pause) for pause in status.pauses],
        "headline": cell(view.headline),
        "host": {"lines": list(view.host_lines), "cpu": _cpu(view.host)},
        **_maps(view),
        "lra_heads": list(LRA_HEADS),
        "lras": [
            {
                "name": each.name,
                "cells": [cell(item) for item in each.cells],
                "tone": TONES[each.severity],
                "score": each.score,
                "mode": each.mode.value,
                "paused": each.paused,
                "why": [cell(line) for line in each.why],
                "live": live(items[each.name]),
            }
            for each in view.lras
        ],
        "batch_heads": list(BATCH_HEADS),
        "batch": [
            {
                "name": each.name,
                "cells": [cell(item) for item in each.cells],
                "tone": TONES[each.severity],
                "given_cores": each.given_cores,
                "wanted_cores": each.wanted_cores,
                "mode": each.mode.value,
                "paused": each.paused,
            }
            for each in view.batch
        ],
        "changes": [
            {"at_s": each.at_s + offset_s, "workload": each.workload, "text": each.text}
            for each in view.changes
        ],
        "needs": [cell(line) for line in view.needs],
        "notes": list(status.notes),
    }


def live(item: WorkloadStatus) -> dict[str, Any] | None:
    """An LRA's newest numbers for its plots; null where missing."""
    perf = performance_of(item)
    if perf is None or not item.present:
        return None
    decision = item.decision
    return {
        "work": _number(perf.work),
        "work_source": perf.work_source,
        "work_unit": work_unit(perf.work_source),
        "delay": _number(perf.delay),
        "delay_source": perf.delay_source,
        "delay_unit": delay_unit(perf.delay_source),
        "target_work": None if decision is None else _number(decision.target_work),
        "target_delay": None if decision is None else _number(decision.target_delay),
        "cpu": None if item.sample is None else _number(item.sample.cpu_usage_cores),
    }


def announced(event: dict[str, Any], offset_s: float) -> dict[str, Any] | None:
    """An event of the daemon's stream as a line of the page; None if it is not shown."""
    kind = event.get("kind", "")
    if kind not in _SHOWN_EVENTS:
        return None
    detail = event.get("detail")
    action = detail.get("action", "") if kind == EventKind.DECISION and isinstance(detail, dict) else ""
    return {
        "at_s": event["at_s"] + offset_s,
        "kind": kind,
        "workload": event["workload"],
        "text": event["text"],
        "by": event["by"],
        "action": "" if action == Action.HOLD else action,
    }


def _maps(view: View) -> dict[str, Any]:
    return {
        "owners": [
            {"letter": each.letter, "name": each.name, "share": each.share.value} for each in view.owners
        ],
        "cores": [
            {"socket": each.socket, "core": each.core, "cpus": list(each.cpus), "owners": list(each.owners)}
            for each in view.cores
        ],
        "ways": [
            {"domain": each.domain, "owners": list(each.owners), "shareable": list(each.shareable)}
            for each in view.ways
        ],
    }


def _cpu(host: HostAccount | None) -> dict[str, float] | None:
    if host is None:
        return None
    return {"capacity": host.cpu.capacity} | {name: getattr(host.cpu, name) for name in PARTS}


def _pause(pause: Pause) -> dict[str, Any]:
    return {"workload": pause.workload, "reason": pause.reason}


def _number(reading: Reading) -> float | None:
    return reading if available(reading) else None
