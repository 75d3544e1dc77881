"""Admission check: may this work start here, and how would it affect the LRAs? Pure; changes nothing.

Uses the same lattice and model as a rescue, under the demand that batch would then have. An LRA of unknown undisturbed
performance counts against admission.
"""

from __future__ import annotations

from dataclasses import replace

from perphd.admission.context import batch_demand_cores, batches, lras, model_context, total_cores
from perphd.admission.detector.judge import DetectorState, judge, target_of
from perphd.admission.inference import inferer
from perphd.admission.inference.inferer import Assessed
from perphd.admission.review.lra_context import LraContext
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Health
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.signals import performance
from perphd.domain.whatif import Arrival, Effect, WhatIf

CORRECTABLE_CHANCE = 0.6
"""Minimum chance of meeting an LRA's target for admitting work, if perphd can restrict batch later."""
STARVED_SHARE = 0.1
"""Share of its demand that work must get. With less, it should start later."""
LASTING_CHANCE = 0.84
"""Minimum chance of meeting an LRA's target for admitting work if batch is only observed.

It means that the lower bound, one standard deviation below the prediction, must suffice.
"""


def whatif(snapshot: Snapshot, arrival: Arrival, settings: PolicySettings) -> WhatIf:
    """Predict every LRA's performance if ``arrival`` started now, and decide whether it should."""
    reasons: list[str] = []
    found = [_effect(snapshot, view, arrival, settings) for view in lras(snapshot)]
    effects = tuple(effect for effect, _ in found)
    reasons += [effect.text for effect in effects if not effect.bearable]
    reasons += _memory(snapshot, arrival, settings)
    shares = [best.batch_cores for _, best in found if best is not None]
    batch: Reading = min(shares) if shares else Unavailable("no LRA here has a prediction yet")
    wanted = min(batch_demand_cores(snapshot) + arrival.cpu_cores, float(total_cores(snapshot)))
    if available(batch) and batch < STARVED_SHARE * wanted:
        reasons.append(f"all batch together would get about {batch:.1f} of the {wanted:.1f} cores it wants")
    accepted = not reasons
    if accepted:
        reasons.append(
            "every running LRA is expected to keep its target"
            if any(effect.health is not Health.UNKNOWN for effect in effects)
            else "no LRA is running here that could be harmed"
        )
    return WhatIf(accepted, tuple(reasons), effects, batch)


def _effect(
    snapshot: Snapshot, view: WorkloadView, arrival: Arrival, settings: PolicySettings
) -> tuple[Effect, Assessed | None]:
    name = view.spec.name
    if view.sample is None or view.model is None:
        text = f"{name} is not running: its needs are unknown"
        nobody = Effect(name, Health.UNKNOWN, None, None, None, Unavailable(text), bearable=True, text=text)
        return nobody, None
    perf = performance(view.sample, view.spec.objective.latency_percentile)
    target = target_of(view.spec.objective, view.model, perf, settings)
    judged = judge(DetectorState(), view.sample, perf, target, view.model, settings)
    if target.work_band is None and target.delay_band is None:
        text = f"{name}: its undisturbed performance is not known yet"
        unknown = Effect(name, Health.UNKNOWN, None, None, None, Unavailable(text), bearable=False, text=text)
        return unknown, None
    lra = LraContext(settings, snapshot, view)
    current = lra.current
    context = model_context(snapshot, view, view.model)
    demand = min(context.batch_demand_cores + arrival.cpu_cores, context.total_cores)
    context = replace(context, batch_demand_cores=demand)
    z = settings.confidence_z
    # Only enforced batch can be restricted, and not below its floor.
    gives = view.enforced and any(v.enforced for v in batches(snapshot))
    # The new work is expected to join a settable batch group.
    allocations = inferer.lattice(current, lra.floor_cores(), lra.knobs()) if gives else (current,)
    assessed = inferer.assess(allocations, view.model, context, target, z)
    as_is = next(a for a in assessed if a.allocation == current)
    wanted = CORRECTABLE_CHANCE if gives else LASTING_CHANCE
    sure = [a for a in assessed if inferer.chance(a.prediction, 1.0, z) >= wanted]
    best = max(sure, key=lambda a: a.batch_cores) if sure else max(assessed, key=lambda a: a.prediction.lower)
    chance = inferer.chance(best.prediction, 1.0, z)
    short = available(judged.score) and judged.score < 1.0 - settings.min_effect_pct / 100.0
    bearable = bool(sure) and not short
    if short:
        text = f"{name} is already below its target"
    elif sure:
        text = f"{name} keeps its target (chance {chance:.0%}) with {best.allocation}"
    else:
        how = "even with the best protection" if gives else "and batch could not be restricted"
        text = f"{name} would keep its target only with a chance of {chance:.0%}, {how}"
    health = Health.DEGRADED if short else Health.HEALTHY
    effect = Effect(
        name, health, as_is.prediction, best.prediction, best.allocation, chance, bearable=bearable, text=text
    )
    return effect, best


def _memory(snapshot: Snapshot, arrival: Arrival, settings: PolicySettings) -> list[str]:
    """Reason why memory does not suffice; empty if it does, or if the work requests none."""
    total = snapshot.host.topology.memory_bytes
    if not arrival.memory_bytes or total <= 0:
        return []
    held = 0.0
    for view in snapshot.workloads:
        if view.sample is not None:
            used = value_or(
                view.sample.memory_working_set_bytes, value_or(view.sample.memory_current_bytes, 0.0)
            )
            protected = view.protection.memory_bytes if view.protection is not None else 0
            held += max(used, float(protected))
    free = total * (1.0 - settings.memory_reserve_pct / 100.0) - held
    if arrival.memory_bytes <= free:
        return []
    asked, left = arrival.memory_bytes / (1 << 30), max(free, 0.0) / (1 << 30)
    return [f"it requests {asked:.1f} GiB of memory, but only {left:.1f} GiB are available"]
