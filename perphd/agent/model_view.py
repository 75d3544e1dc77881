"""Prepares a model for display: its reference, and its predictions over the CPU lattice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perphd.admission.context import cores_per_cpu, model_context, total_cores
from perphd.admission.inference.inferer import Knobs, lattice, untouched
from perphd.domain.allocation import Allocation
from perphd.domain.belief import (
    AllocationBelief,
    ModelSummary,
    ModelView,
    ReferenceBelief,
    SkippedSamples,
)
from perphd.domain.policy import Band, ModelContext, Snapshot
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.predictor.model import WITNESSES, LraModel

_ALL_KNOBS = Knobs(batch_cpus=True, batch_weight=True, lra_cpus=True)


def model_view(
    model: LraModel, summary: ModelSummary, snapshot: Snapshot, lra: str, confidence_z: float
) -> ModelView:
    """The model's predictions for every CPU grant if batch wants all cores, other conditions unchanged.

    Args:
        model: the model of the LRA ``lra``.
        summary: the model's summary.
        snapshot: the present state of the host.
        lra: the LRA's name.
        confidence_z: half width of the shown bounds, in standard deviations.
    """
    view = next(view for view in snapshot.workloads if view.spec.name == lra)
    context = model_context(snapshot, view, model)
    usual = model.reference("cpu_usage_cores", NOT_MEASURED)
    demand = context.lra_demand_cores
    if usual is not None and view.sample is None:
        demand = min(usual.value * cores_per_cpu(snapshot), context.total_cores)
    context = replace(context, lra_demand_cores=demand, batch_demand_cores=context.total_cores)
    current = view.protection if view.protection is not None else untouched(total_cores(snapshot))
    return ModelView(
        summary=summary,
        reference=tuple(
            _reference(signal, load, band, confidence_z) for signal, load, band in model.references()
        ),
        context=context,
        confidence_z=confidence_z,
        current=current,
        lattice=_lattice(model, context, lattice(current, 1, _ALL_KNOBS)),
        skipped=tuple(SkippedSamples(reason, count) for reason, count in sorted(model.skipped.items())),
    )


def _lattice(
    model: LraModel, context: ModelContext, allocations: Sequence[Allocation]
) -> tuple[AllocationBelief, ...]:
    work = model.predict_work(allocations, context)
    delay = model.predict_delay(allocations, context)
    batch = model.batch_cores(allocations, context)
    return tuple(AllocationBelief(*item) for item in zip(allocations, work, delay, batch, strict=True))


def _reference(signal: str, load: Reading, band: Band, z: float) -> ReferenceBelief:
    shift = 1.0 if signal in WITNESSES else 0.0  # learned with 1 added, so that 0 has a logarithm
    value, low, high = (max(v - shift, 0.0) for v in (band.value, band.at(-z), band.at(z)))
    return ReferenceBelief(signal, load, value, low, high, band.support, band.provisional)
