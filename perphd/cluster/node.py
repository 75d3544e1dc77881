"""Makes the node document from one snapshot and the newest forecasts. Pure.

    reserved    declared memory reservations and reserved CPUs of protected workloads: LRAs and gold or silver batch.
                A protected workload without a reservation counts with its predicted use.
    predicted   the sum of the protected workloads' 99 % bounds of the next minute, as if all reached them at once
    copper      offered: ``qos.overcommit.slack`` of both; memory stays within 80 % of the host with the use by others.
                allocatable: the offer less the use by running copper and the amounts held in the ledger
    sensitivity 1 - the predicted score with one unit less / the predicted score of the allocation in force

If the batch queue publishes an offer (``qos.offers``), that offer is used, because it learns from past windows. Batch
outside the queue then counts twice, as predicted use and as running copper, which errs on the safe side.

Without a forecast and without a queue, only resources that are neither reserved nor used are offered.

Copper is never offered more CPUs than perphd lets it run on now. While a protected LRA is below its target by a cause
to which copper may contribute, copper is offered only the CPUs that it uses: running work stays, and no work is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from perphd.admission.context import cores_per_cpu, lras, model_context, total_cores
from perphd.admission.detector.origin import nothing_to_give
from perphd.admission.inference.inferer import VISITED, untouched
from perphd.cluster.document import (
    NODE_TTL_S,
    CacheHeadroom,
    CopperRoom,
    FreeInterval,
    HeldAmount,
    NodeAmounts,
    NodeAntagonist,
    NodeDocument,
    NodeLra,
    ResourceForecast,
    UnitCost,
)
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Cause, Decision, Health
from perphd.domain.forecast import Forecasts, SeriesForecasts, WorkloadForecasts
from perphd.domain.policy import ModelContext, ResPerfModel, Snapshot, WorkloadView
from perphd.domain.queue import QueueSummary
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, Mode, Objective, WorkloadSpec
from perphd.qos.bands import MEMORY_LIMIT_RATIO
from perphd.qos.ledger import Amounts, HostLedger
from perphd.qos.overcommit import Overcommit, slack

P99: Final = NormalDist().inv_cdf(0.99)
NEXT_S: Final = 60.0
HORIZON_S: Final = 3600.0
SERIES: Final = {"cpu": "cpu_usage_cores", "memory": "memory_working_set_bytes"}
WORKLOADS: Final = "workloads of this node"
"""Name under which the ledger holds the configured workloads' reservations."""
_NO_SAMPLE: Final = Unavailable("the workload is not running")
_NO_MODEL: Final = Unavailable("the model has not learned this LRA yet")
NO_FORECAST: Final = Unavailable("no forecast: [forecast] is off, or none was published yet")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Inputs of a document besides the snapshot.

    ``decisions``: the last decision about each LRA. ``queue``: summary of the batch queue, with its published offer;
    None: there is no queue. ``copper_starved_s``: see ``CopperRoom.starved_s``.
    """

    mode: Mode
    made_unix_s: float
    forecasts: Forecasts | Unavailable
    decisions: Mapping[str, Decision]
    queue: QueueSummary | None = None
    problems: tuple[str, ...] = ()
    copper_starved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeUse:
    """CPU and memory use of a node's workloads, protected and copper separately. Memory in bytes.

    ``other_cpus``, ``other_bytes``: use by undeclared work. ``copper_cpus``: bound of the CPUs offered to copper;
    ``bound_by``: the reason, empty without a bound.
    """

    capacity: Amounts
    reserved: Amounts
    predicted: Amounts
    protected_used: Amounts
    copper_used: Amounts
    other_cpus: float
    forecasts_known: bool
    copper_cpus: float = math.inf
    bound_by: str = ""
    other_bytes: int = 0


def protected(view: WorkloadView) -> bool:
    """True for workloads for which copper must leave room: LRAs that are not copper, and gold or silver batch."""
    return is_protected(view.spec)


def is_protected(spec: WorkloadSpec) -> bool:
    """True for workloads for which copper must leave room, by their declaration alone; see ``protected``."""
    return spec.band != "copper" if spec.kind is Kind.LRA else spec.band in ("gold", "silver")


def present(view: WorkloadView) -> Sample | None:
    """The workload's latest sample; None if there is none, or if its cgroup is gone."""
    sample = view.sample
    return None if sample is None or sample.has(Quality.GONE) else sample


def _memory(sample: Sample) -> float:
    return value_or(sample.memory_working_set_bytes, value_or(sample.memory_current_bytes, 0.0))


def _used(views: Sequence[WorkloadView]) -> Amounts:
    samples = [sample for view in views if (sample := present(view)) is not None]
    cpus = math.fsum(value_or(sample.cpu_usage_cores, 0.0) for sample in samples)
    return Amounts(cpus, int(math.fsum(map(_memory, samples))))


def _series(forecast: WorkloadForecasts | None, resource: str) -> SeriesForecasts | None:
    if forecast is None:
        return None
    return next((each for each in forecast.series if each.series == SERIES[resource]), None)


def by_workload(forecasts: Forecasts | Unavailable) -> dict[str, WorkloadForecasts]:
    """The workloads' forecasts by name."""
    return {} if isinstance(forecasts, Unavailable) else {each.workload: each for each in forecasts.workloads}


def node_use(
    snapshot: Snapshot, forecasts: Forecasts | Unavailable, decisions: Mapping[str, Decision] | None = None
) -> NodeUse:
    """The node's reserved, predicted and actual use. ``decisions``: the last decision about each LRA."""
    topology = snapshot.host.topology
    known = by_workload(forecasts)
    shielded = [view for view in snapshot.workloads if protected(view)]
    reserved, predicted = [0.0, 0.0], [0.0, 0.0]
    complete = True
    for view in shielded:
        forecast, sample = known.get(view.spec.name), present(view)
        now = (0.0, 0.0) if sample is None else (value_or(sample.cpu_usage_cores, 0.0), _memory(sample))
        stated = (
            math.nan if forecast is None else value_or(forecast.reserved_cores, math.nan),
            float(view.spec.reserved_memory_bytes)
            or (math.nan if forecast is None else value_or(forecast.reserved_bytes, math.nan)),
        )
        for place, resource in enumerate(SERIES):
            series = _series(forecast, resource)
            bound = math.nan if series is None else value_or(series.p99, math.nan)
            if sample is None:
                bound = 0.0
            unknown = math.isnan(bound)
            complete = complete and not unknown
            expected = max(now[place], 0.0 if unknown else bound)
            held = expected if math.isnan(stated[place]) else stated[place]
            reserved[place] += held
            predicted[place] += max(expected, held) if unknown else expected
    account = snapshot.host.account
    other = account.cpu.undeclared + account.cpu.kernel + account.cpu.steal if account is not None else 0.0
    copper = [view for view in snapshot.workloads if not protected(view)]
    copper_used = _used(copper)
    bound, bound_by = _bound(snapshot, shielded, decisions or {}, copper_used)
    protected_used = _used(shielded)
    in_use = _memory_in_use(snapshot)
    known_bytes = protected_used.memory_bytes + copper_used.memory_bytes
    return NodeUse(
        Amounts(float(len(topology.usable)), topology.memory_bytes),
        Amounts(reserved[0], int(reserved[1])),
        Amounts(predicted[0], int(predicted[1])),
        protected_used,
        copper_used,
        other,
        complete,
        bound,
        bound_by,
        0 if in_use is None else max(0, in_use - known_bytes),
    )


def _memory_in_use(snapshot: Snapshot) -> int | None:
    """Memory of the host that is in use, by any program; None: not measured."""
    account = snapshot.host.account
    if account is None or not available(account.memory_total_bytes):
        return None
    if not available(account.memory_available_bytes):
        return None
    return int(account.memory_total_bytes - account.memory_available_bytes)


def _bound(
    snapshot: Snapshot, shielded: Sequence[WorkloadView], decisions: Mapping[str, Decision], used: Amounts
) -> tuple[float, str]:
    """Upper bound of the CPUs that may be offered to copper, and its reason; infinite without a bound."""
    degraded = [
        view.spec.name
        for view in shielded
        if present(view) is not None
        and (decision := decisions.get(view.spec.name)) is not None
        and decision.verdict.health is Health.DEGRADED
        and not nothing_to_give(decision.verdict.cause, snapshot.host.account)
    ]
    if degraded:
        return (
            used.cpus,
            f"{', '.join(sorted(degraded))} below target: copper is offered only the CPUs that it uses",
        )
    grants = [view.protection.cpu for view in shielded if view.protection is not None]
    cores = min((each.batch_cores for each in grants), default=total_cores(snapshot))
    if cores >= total_cores(snapshot):
        return math.inf, ""
    cpus = cores / cores_per_cpu(snapshot)
    return cpus, f"copper is confined to {cpus:g} CPUs"


@dataclass(frozen=True, slots=True)
class OfferToCopper:
    """Capacity for all of copper, the margin held back, and the source of the offer."""

    offered: Amounts
    margin: Amounts
    source: str


def copper_offer(use: NodeUse, queue: QueueSummary | None = None) -> OfferToCopper:
    """The batch queue's offer if there is one, reduced by events; else an offer from forecasts.

    Capacity that undeclared work uses is never offered.
    """
    published = queue.offer if queue is not None else None
    if queue is not None and published is not None:
        share = queue.event.share if queue.event is not None else 1.0
        both = [(each.copper, each.margin) for each in (published.cpus, published.memory)]
        values = [value for pair in both for value in pair if available(value)]
        if len(values) == 4:
            cpus, cpu_margin, memory, memory_margin = values
            offered = Amounts(cpus * share, int(memory * share))
            return _bounded(OfferToCopper(offered, Amounts(cpu_margin, int(memory_margin)), "queue"), use)
    room, held, q, unlearned = use.capacity, use.reserved, use.predicted, Overcommit()
    spare = slack(unlearned, room.cpus, held.cpus + use.other_cpus, q.cpus + use.other_cpus)
    limit = MEMORY_LIMIT_RATIO * room.memory_bytes
    undeclared = use.other_bytes
    bytes_ = slack(
        unlearned, room.memory_bytes, held.memory_bytes + undeclared, q.memory_bytes + undeclared, limit
    )
    offered = Amounts(max(0.0, min(spare.copper, room.cpus - q.cpus - use.other_cpus)), int(bytes_.copper))
    return _bounded(OfferToCopper(offered, Amounts(spare.margin, int(bytes_.margin)), "forecast"), use)


def _bounded(offer: OfferToCopper, use: NodeUse) -> OfferToCopper:
    others = use.protected_used.memory_bytes + use.other_bytes
    most_bytes = max(0, int(MEMORY_LIMIT_RATIO * use.capacity.memory_bytes) - others)
    cpus = min(offer.offered.cpus, use.copper_cpus)
    return replace(offer, offered=Amounts(cpus, min(offer.offered.memory_bytes, most_bytes)))


def node_document(
    snapshot: Snapshot, facts: NodeFacts, ledger: HostLedger, now_s: float, use: NodeUse | None = None
) -> NodeDocument:
    """The node's document.

    ``ledger``: with the offer in force and all holdings. ``use``: the snapshot's use, if the caller knows it.
    """
    use = use if use is not None else node_use(snapshot, facts.forecasts, facts.decisions)
    members = tuple(_lra(snapshot, view, facts.decisions.get(view.spec.name)) for view in lras(snapshot))
    confidences = [each.support / (each.support + VISITED) for each in members]
    offer = copper_offer(use, facts.queue)
    forecast = tuple(forecast_of(each, facts.forecasts) for each in SERIES)
    unknown = "a protected workload has no forecast, so reserved capacity is not offered"
    reason = "; ".join(filter(None, (use.bound_by, "" if use.forecasts_known else unknown)))
    used = use.protected_used + use.copper_used
    in_use = _memory_in_use(snapshot)
    whole = Amounts(used.cpus + use.other_cpus, used.memory_bytes if in_use is None else in_use)
    return NodeDocument(
        ledger.generation,
        facts.made_unix_s,
        NODE_TTL_S,
        facts.mode,
        min(confidences, default=1.0),
        amounts(use.capacity),
        amounts(ledger.reserved),
        amounts(whole),
        forecast,
        CopperRoom(
            amounts(offer.offered),
            amounts(use.copper_used),
            amounts(ledger.copper_allocatable),
            amounts(offer.margin),
            offer.source,
            reason,
            facts.copper_starved_s,
        ),
        members,
        _antagonists(facts.decisions),
        _available(use, forecast),
        _cache(snapshot, members),
        tuple(
            HeldAmount(
                each.holder,
                each.band.value,
                amounts(each.amounts),
                None if each.expires_s is None else max(0.0, each.expires_s - now_s),
            )
            for each in ledger.grants
            if each.holder != WORKLOADS
        ),
        facts.problems,
    )


def amounts(given: Amounts) -> NodeAmounts:
    """The amounts in published form."""
    return NodeAmounts(given.cpus, float(given.memory_bytes))


def forecast_of(resource: str, forecasts: Forecasts | Unavailable) -> ResourceForecast:
    """Forecast use of ``cpu`` or ``memory`` by all workloads together."""
    if isinstance(forecasts, Unavailable):
        return ResourceForecast(resource, forecasts, forecasts, forecasts, forecasts)
    wanted = SERIES[resource]
    series = [one for each in forecasts.workloads for one in each.series if one.series == wanted]
    mean, p99 = _sum([one.mean for one in series]), _sum([one.p99 for one in series])
    sd: Reading = NO_FORECAST
    if available(mean) and available(p99):
        sd = max(0.0, p99 - mean) / P99
    host = next((each for each in forecasts.hosts if each.resource == resource), None)
    peak: Reading = NO_FORECAST if host is None else host.peak
    return ResourceForecast(resource, mean, sd, p99, peak, "" if host is None else host.picked)


def _sum(values: Sequence[Reading]) -> Reading:
    if not values:
        return NO_FORECAST
    total = 0.0
    for value in values:
        if isinstance(value, Unavailable):
            return value
        total += value
    return total


def _antagonists(decisions: Mapping[str, Decision]) -> tuple[NodeAntagonist, ...]:
    return tuple(
        NodeAntagonist(each.verdict.culprit, name, each.verdict.cause)
        for name, each in sorted(decisions.items())
        if each.verdict.culprit is not None
    )


def _available(use: NodeUse, forecast: Sequence[ResourceForecast]) -> tuple[FreeInterval, ...]:
    """Free capacity in the next minute (by bounds) and the rest of the hour (by predicted peak); may be negative."""
    room = (use.capacity.cpus - use.other_cpus, float(use.capacity.memory_bytes - use.other_bytes))

    def free(values: Sequence[Reading]) -> NodeAmounts:
        left = [
            value if isinstance(value, Unavailable) else all_ - value
            for all_, value in zip(room, values, strict=True)
        ]
        return NodeAmounts(*left)

    return (
        FreeInterval(0.0, NEXT_S, free([each.p99 for each in forecast])),
        FreeInterval(NEXT_S, HORIZON_S, free([each.peak for each in forecast])),
    )


def _cache(snapshot: Snapshot, members: Sequence[NodeLra]) -> CacheHeadroom:
    host = snapshot.host
    ways: Reading = float(host.llc_ways) if host.llc_ways else Unavailable("no cache allocation on this host")
    grants = [each.protected for each in members if each.protected is not None]
    free = ways
    if available(ways):
        shared = max((each.llc_ways for each in grants), default=0)
        free = max(0.0, ways - max(shared, sum(each.own_ways for each in grants)))
    traffic = [sample.mbw_bytes_per_s for view in snapshot.workloads if (sample := present(view)) is not None]
    missing = next((each for each in traffic if isinstance(each, Unavailable)), None)
    used: Reading = missing or math.fsum(each for each in traffic if available(each))
    throttle: Reading = Unavailable("no bandwidth allocation on this host")
    if host.mba_levels_pct:
        throttle = float(min((each.mbw_pct for each in grants), default=100))
    return CacheHeadroom(ways, free, used, throttle)


def _lra(snapshot: Snapshot, view: WorkloadView, decision: Decision | None) -> NodeLra:
    verdict = decision.verdict if decision is not None else None
    score: Reading = Unavailable("no decision yet")
    if decision is not None:
        now = next((each for each in decision.candidates if each.allocation == decision.current), None)
        score = Unavailable("the last decision did not score the allocation in force")
        if now is not None and not math.isnan(now.score):
            score = now.score
    costs, support = _sensitivity(snapshot, view)
    return NodeLra(
        view.spec.name,
        verdict.health if verdict is not None else Health.UNKNOWN,
        verdict.cause if verdict is not None else Cause.UNKNOWN,
        score,
        view.protection,
        costs,
        support,
    )


def protection_of(snapshot: Snapshot, view: WorkloadView) -> Allocation:
    """The LRA's protection, or that of a host without changes."""
    return view.protection if view.protection is not None else untouched(total_cores(snapshot))


def predicted_score(
    model: ResPerfModel, objective: Objective, allocation: Allocation, context: ModelContext
) -> tuple[float, float]:
    """Predicted score (1 meets the target), and its support.

    The score is the lower of work over (1 - tolerance) and (1 + tolerance) over delay, both relative to undisturbed
    performance.
    """
    work = model.predict_work([allocation], context)[0]
    delay = model.predict_delay([allocation], context)[0]
    kept = work.value / max(1e-9, 1.0 - objective.tolerance_pct / 100.0)
    soon = (1.0 + objective.delay_tolerance_pct / 100.0) / max(delay.value, 1e-9)
    return min(kept, soon), min(work.support, delay.support)


def _sensitivity(snapshot: Snapshot, view: WorkloadView) -> tuple[tuple[UnitCost, ...], float]:
    """Cost of one unit less of each resource.

    For CPU, batch uses one core more; else protection shrinks by one unit.
    """
    model = view.model
    if present(view) is None or model is None:
        missing = _NO_SAMPLE if present(view) is None else _NO_MODEL
        return tuple(UnitCost(name, unit, missing) for name, unit in _UNITS), 0.0
    context = model_context(snapshot, view, model)
    now = protection_of(snapshot, view)
    before, support = predicted_score(model, view.spec.objective, now, context)

    def loss(allocation: Allocation, around: ModelContext) -> Reading:
        after, _ = predicted_score(model, view.spec.objective, allocation, around)
        return (
            max(0.0, 1.0 - after / before)
            if before > 0
            else Unavailable("the LRA makes no progress now, so a loss cannot be stated")
        )

    more = replace(context, batch_demand_cores=min(context.batch_demand_cores + 1.0, context.total_cores))
    grant = now.cpu
    if grant.batch_cores < grant.total_cores:
        own = None if grant.own_cores is None else max(1, grant.own_cores - 1)
        grant = replace(grant, batch_cores=grant.batch_cores + 1, own_cores=own)
        if grant.batch_cores == grant.total_cores:
            grant = replace(grant, exclusive=False, own_cores=None)
    found = {"cpu": loss(replace(now, cpu=grant), more)}
    steps = [level for level in snapshot.host.mba_levels_pct if level > now.mbw_pct]
    found["llc"] = (
        loss(replace(now, llc_ways=now.llc_ways - 1), context)
        if now.llc_ways
        else Unavailable("the LRA has no protected cache ways")
    )
    found["mbw"] = (
        loss(replace(now, mbw_pct=steps[0]), context)
        if steps
        else Unavailable("batch's memory bandwidth is not limited")
    )
    found["memory"] = Unavailable("the model does not predict memory")
    return tuple(UnitCost(name, unit, found[name]) for name, unit in _UNITS), support


_UNITS: Final = (
    ("cpu", "one core that batch uses instead"),
    ("memory", "1 GiB"),
    ("llc", "one way of the last-level cache"),
    ("mbw", "one step of the neighbours' throttle"),
)
