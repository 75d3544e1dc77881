"""Converts a stored moment to an agent status, so that the same code shows the past and the present. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from posixpath import basename, dirname
from typing import Any, Final

from perphd.domain.allocation import UNTOUCHED, Allocation, CpuInstrument, Settings
from perphd.domain.condition import batch_condition, lra_condition
from perphd.domain.decision import Decision
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.sample import Quality
from perphd.domain.status import AgentStatus, SelfCost, WorkloadStatus
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.cgroup.knobs import FILES, decode
from perphd.monitor.past import PastChange, PastMoment, PastSubject

_UNKNOWN_COST: Final = SelfCost(
    NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, 0
)
_SHOWN: Final = ("cpus", "cpu_weight", "cpu_max_cores", "memory_low_bytes", "memory_high_bytes")
"""Settings that are reconstructed from stored writes."""


def subjects_of(specs: Iterable[WorkloadSpec]) -> tuple[PastSubject, ...]:
    """The workloads whose past is requested."""
    return tuple(PastSubject(spec.name, spec.kind, spec.objective.latency_percentile) for spec in specs)


def past_status(now: AgentStatus, moment: PastMoment) -> AgentStatus:
    """The stored status at a moment, for the workloads that are declared now.

    Settings in force are those of the last writes before the moment; none are shown if no LRA was protected then.
    """
    decided = moment.decisions.values()
    modes = {decision.mode for decision in decided if decision.mode is not None}
    is_protecting = any(_in_force(decision) is not None for decision in decided)
    written = _settings(moment.written) if is_protecting else {}
    workloads = tuple(_workload(item, moment, written) for item in now.workloads)
    return replace(
        now,
        mode=next(iter(modes)) if len(modes) == 1 else now.mode,
        uptime_s=0.0,
        attentive="",
        pace_s=now.period_s,
        workloads=workloads,
        journal_entries=0,
        cost=_UNKNOWN_COST,
        problems=(),
        notes=(),
        pauses=(),
        host=moment.host,
        forecast=None,
        trial=None,
        changes=moment.changes,
        window="",
    )


def _workload(item: WorkloadStatus, moment: PastMoment, written: Mapping[str, Settings]) -> WorkloadStatus:
    spec = item.spec
    sample, decision = moment.samples.get(spec.name), moment.decisions.get(spec.name)
    present = sample is not None and not sample.has(Quality.GONE)
    in_force = written.get(spec.name, UNTOUCHED)
    if spec.kind is Kind.BATCH:
        condition = str(batch_condition(sample, in_force))
    else:
        condition = lra_condition(sample, decision, spec.objective.latency_percentile) or ""
    return WorkloadStatus(
        spec=spec,
        present=present,
        mode=item.mode if decision is None or decision.mode is None else decision.mode,
        sample=sample,
        decision=decision,
        outcome=None,
        protection=None if decision is None else _in_force(decision),
        in_force=in_force,
        condition=condition,
        problem="" if present else "not running then",
    )


def _in_force(decision: Decision) -> Allocation | None:
    """The allocation in force after this decision; None if nothing was protected."""
    allocation = decision.chosen if decision.mode is Mode.ENFORCE else decision.current
    shares_all = (
        allocation.cpu.instrument is CpuInstrument.NONE
        and not (allocation.memory_bytes or allocation.llc_ways or allocation.own_ways)
        and allocation.mbw_pct >= 100
    )
    return None if shares_all else allocation


def _settings(written: Sequence[PastChange]) -> dict[str, Settings]:
    files: dict[tuple[str, str], dict[str, str]] = {}
    for item in written:
        files.setdefault((item.workload, item.knob), {})[basename(item.path)] = item.text
    found: dict[str, dict[str, Any]] = {}
    for (workload, knob), texts in files.items():
        if knob in _SHOWN:
            found.setdefault(workload, {})[knob] = decode(knob, _version(knob, texts), texts)
    for workload, masks in _masks(written).items():
        found.setdefault(workload, {})["llc_masks"] = masks
    return {workload: Settings(**values) for workload, values in found.items()}


def _version(knob: str, texts: Mapping[str, str]) -> int:
    return 1 if (knob, 1) in FILES and FILES[knob, 1][0] in texts else 2


def _masks(written: Sequence[PastChange]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Cache masks by workload: those of the resctrl group to which the workload's tasks were last moved.

    A group that was removed since then has no mask.
    """
    schemata: dict[str, str] = {}
    home: dict[str, str] = {}
    for item in written:
        if item.knob != "llc_masks":
            continue
        directory, file = dirname(item.path), basename(item.path)
        if file == "schemata":
            schemata[directory] = item.text
        elif file == "tasks":
            home[item.workload] = directory
        elif not item.text:  # an empty text records that the group was removed
            schemata.pop(item.path, None)
    return {
        workload: masks
        for workload, group in home.items()
        if group in schemata and (masks := _l3_masks(schemata[group]))
    }


def _l3_masks(text: str) -> tuple[tuple[int, int], ...]:
    for line in text.split():
        name, _, domains = line.partition(":")
        if name in ("L3", "L3DATA"):
            pairs = (part.partition("=") for part in domains.split(";"))
            try:
                return tuple((int(domain), int(mask, 16)) for domain, _, mask in pairs)
            except ValueError:
                return ()
    return ()
