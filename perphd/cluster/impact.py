"""Predicts the cost of a pod to each LRA and to this node. Pure; changes nothing.

    score       predicted performance over the tolerated one, under the settings in force; 1 meets the target
    loss        1 - score with the pod / score without it, of each LRA
    marginal    U' V' - U V - 0.7 sum of losses          U, V: predicted CPU and memory use over capacity
    absolute    U' V' - 0.7 sum of (1 - score with the pod, where that is below 1)
    P(over)     P(N(mean, sd) + request > capacity)      mean and sd: sums over the workloads' forecasts

The scores are Optum's (Eq. 6 and 11) with the model's predicted loss in place of CPU pressure, and without batch's
completion times, which no model predicts here. All deviations are added up, as if all workloads peaked together, so
P(over) errs on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from perphd.admission.context import cores_per_cpu, lras, model_context
from perphd.admission.inference.inferer import VISITED
from perphd.admission.settings import PolicySettings
from perphd.admission.whatif import whatif
from perphd.cluster.document import PodImpact, PodLoss, ResourceForecast, ScoreTerm
from perphd.cluster.node import (
    NodeFacts,
    NodeUse,
    forecast_of,
    node_use,
    predicted_score,
    present,
    protection_of,
)
from perphd.cluster.scheduling.optum import SERVICE_WEIGHT
from perphd.domain.allocation import Allocation
from perphd.domain.policy import ModelContext, ResPerfModel, Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.whatif import Arrival
from perphd.domain.workload import Objective
from perphd.qos.bands import QosBand
from perphd.qos.ledger import Amounts, HostLedger

NEGLIGIBLE_LOSS: Final = 0.01
"""Loss of an LRA below which a pod is acceptable in any state of the LRA."""
_UNKNOWN_LOSS: Final = Unavailable("the LRA's undisturbed performance is not known")


@dataclass(frozen=True, slots=True)
class PodQuestion:
    """A hypothetical pod: its requests, in logical CPUs and bytes, and its band.

    ``search``: also find the best protection of every LRA, which takes at least a millisecond for each.
    """

    amounts: Amounts
    band: QosBand = QosBand.COPPER
    search: bool = False


class PresentScores:
    """Scores of LRAs without the pod, shared by all questions about one tick."""

    def __init__(self) -> None:
        self._tick = -1
        self._known: dict[tuple[str, Allocation, Objective], tuple[ModelContext, float, float]] = {}

    def of(
        self, snapshot: Snapshot, view: WorkloadView, model: ResPerfModel
    ) -> tuple[ModelContext, float, float]:
        """The LRA's context, its score, and the score's support."""
        if snapshot.tick != self._tick:
            self._tick = snapshot.tick
            self._known.clear()
        now = protection_of(snapshot, view)
        key = view.spec.name, now, view.spec.objective
        found = self._known.get(key)
        if found is None:
            context = model_context(snapshot, view, model)
            found = self._known[key] = context, *predicted_score(model, view.spec.objective, now, context)
        return found


def pod_impact(
    snapshot: Snapshot,
    question: PodQuestion,
    facts: NodeFacts,
    ledger: HostLedger,
    settings: PolicySettings,
    use: NodeUse | None = None,
    scores: PresentScores | None = None,
) -> PodImpact:
    """The effect on every LRA and the node if the pod started now.

    ``use``: the snapshot's use, if the caller knows it. ``scores``: kept from one question to the next.
    """
    scores = scores if scores is not None else PresentScores()
    pod = question.amounts
    cores = pod.cpus * cores_per_cpu(snapshot)
    answer = whatif(snapshot, Arrival(cores, pod.memory_bytes), settings) if question.search else None
    effects = {} if answer is None else {effect.lra: effect for effect in answer.effects}
    reasons = list(answer.reasons) if answer is not None and not answer.accepted else []
    losses, suffered, confidence = [], 0.0, 1.0
    for view in lras(snapshot):
        name = view.spec.name
        loss, before, support = _loss(snapshot, view, cores, scores)
        losses.append(PodLoss(name, loss, effects.get(name)))
        if present(view) is None:
            continue
        confidence = min(confidence, support / (support + VISITED))
        if isinstance(loss, Unavailable) or isinstance(before, Unavailable):
            if answer is None:
                reasons.append(f"{name}: its undisturbed performance is not known yet")
            continue
        after = before * (1.0 - loss)
        suffered += max(0.0, 1.0 - after)
        if answer is None and after < 1.0 and loss > NEGLIGIBLE_LOSS:
            reasons.append(f"{name} would reach {after:.0%} of its target with its present protection")
    reasons += _room(question, ledger)
    use = use if use is not None else node_use(snapshot, facts.forecasts, facts.decisions)
    running = [
        each.loss_ratio
        for each, view in zip(losses, lras(snapshot), strict=True)
        if present(view) is not None
    ]
    terms, marginal, absolute = _scores(use, pod, running, suffered)
    return PodImpact(
        ledger.generation,
        not reasons,
        tuple(reasons),
        tuple(losses),
        marginal,
        absolute,
        terms,
        _over(forecast_of("cpu", facts.forecasts), pod.cpus + use.other_cpus, use.capacity.cpus),
        _over(
            forecast_of("memory", facts.forecasts),
            float(pod.memory_bytes + use.other_bytes),
            float(use.capacity.memory_bytes),
        ),
        confidence,
    )


def _room(question: PodQuestion, ledger: HostLedger) -> list[str]:
    """The reason why the ledger has no room for the pod; empty if it has."""
    copper = question.band is QosBand.COPPER
    left = (
        ledger.copper_allocatable
        if copper
        else (ledger.capacity.amounts - ledger.reserved).at_least_nothing()
    )
    if question.amounts.fits(left):
        return []
    words = "copper may still take" if copper else "the unreserved capacity is"
    return [f"it requests {question.amounts}, and {words} {left}"]


def _loss(
    snapshot: Snapshot, view: WorkloadView, cores: float, scores: PresentScores
) -> tuple[Reading, Reading, float]:
    """The share of the score that the pod costs, the score without the pod, and the support of both."""
    model = view.model
    if present(view) is None or model is None:
        return _UNKNOWN_LOSS, _UNKNOWN_LOSS, 0.0
    context, before, support = scores.of(snapshot, view, model)
    now = protection_of(snapshot, view)
    demand = min(context.batch_demand_cores + cores, context.total_cores)
    after, support_after = predicted_score(
        model, view.spec.objective, now, replace(context, batch_demand_cores=demand)
    )
    if before <= 0:
        return _UNKNOWN_LOSS, _UNKNOWN_LOSS, 0.0
    return max(0.0, 1.0 - after / before), before, min(support, support_after)


def _scores(
    use: NodeUse, pod: Amounts, losses: list[Reading], suffered: float
) -> tuple[tuple[ScoreTerm, ...], Reading, Reading]:
    unknown = next((loss for loss in losses if isinstance(loss, Unavailable)), None)
    before = Amounts(
        use.predicted.cpus + use.copper_used.cpus + use.other_cpus,
        use.predicted.memory_bytes + use.copper_used.memory_bytes + use.other_bytes,
    )
    after, room = before + pod, use.capacity
    u, v = before.cpus / room.cpus, before.memory_bytes / max(1, room.memory_bytes)
    u_new, v_new = after.cpus / room.cpus, after.memory_bytes / max(1, room.memory_bytes)
    gained = u_new * v_new - u * v
    if unknown is not None:
        return (ScoreTerm("utilisation", gained),), unknown, unknown
    lost = sum(loss for loss in losses if available(loss))
    terms = (ScoreTerm("utilisation", gained), ScoreTerm("losses of LRAs", -SERVICE_WEIGHT * lost))
    return terms, sum(term.value for term in terms), u_new * v_new - SERVICE_WEIGHT * suffered


def _over(forecast: ResourceForecast, more: float, capacity: float) -> Reading:
    if isinstance(forecast.mean, Unavailable):
        return forecast.mean
    if isinstance(forecast.sd, Unavailable):
        return forecast.sd
    wanted = forecast.mean + more
    if forecast.sd <= 0:
        return float(wanted > capacity)
    return 1.0 - NormalDist(wanted, forecast.sd).cdf(capacity)
