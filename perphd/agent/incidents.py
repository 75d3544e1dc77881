"""What is wrong now, from the agent's status: the conditions that ``[[notify]]`` tells of. Pure."""

from __future__ import annotations

from perphd.agent.tally import Tally
from perphd.domain.decision import Cause, Decision, Health, target_reachable
from perphd.domain.incident import Condition, IncidentKind
from perphd.domain.sample import Quality
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.workload import Kind


def conditions(status: AgentStatus, tally: Tally) -> tuple[Condition, ...]:
    """Everything that is wrong, in a fixed order."""
    found: list[Condition] = []
    for item in status.workloads:
        if item.spec.kind is Kind.LRA and item.present:
            found += _of_lra(item)
    for pause in status.pauses:
        why = f": {pause.reason}" if pause.reason else ""
        text = f"{pause.workload or 'all workloads'}: paused by {pause.by}{why}"
        found.append(Condition(IncidentKind.PAUSE, pause.workload, text))
    for workload, path, text in tally.conflicts:
        found.append(Condition(IncidentKind.CONFLICT, workload, text, path))
    return tuple(found)


def _of_lra(item: WorkloadStatus) -> list[Condition]:
    name, found = item.spec.name, []
    sample = item.full_sample or item.sample
    if item.spec.sli is not None and sample is not None and sample.has(Quality.SLI_MISSING):
        text = f"{name}: the indicator ({item.spec.sli.source}) does not answer"
        found.append(Condition(IncidentKind.SLI_LOST, name, text))
    decision = item.decision
    if decision is not None and decision.verdict.health is Health.DEGRADED:
        found.append(Condition(IncidentKind.DEGRADED, name, _degraded(name, decision), decision=decision))
        if target_reachable(decision) is False:
            text = f"{name}: no setting is predicted to meet its target"
            found.append(Condition(IncidentKind.UNREACHABLE, name, text, decision=decision))
    return found


def _degraded(name: str, decision: Decision) -> str:
    verdict = decision.verdict
    short = "" if verdict.cause in (Cause.NONE, Cause.UNKNOWN) else f", short of {verdict.cause}"
    culprit = f" because of {verdict.culprit}" if verdict.culprit else ""
    return f"{name}: below its target{short}{culprit}"
