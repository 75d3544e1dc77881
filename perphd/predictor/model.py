"""The Res-Perf model of one LRA: reference x physics x learned correction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perphd.domain.allocation import Allocation, CpuInstrument
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import contended_ratio, performance
from perphd.predictor.physics import CpuGrants, Floats, expect
from perphd.predictor.reference import Reference
from perphd.predictor.residual import Residual

WITNESSES = ("cpu_some_pct", "memory_some_pct", "io_some_pct")
"""Readings whose undisturbed level is learned beside work and delay, to tell contention from low load."""

_SCALES = np.array([0.25, 0.6, 0.5, 0.35, 0.6])
_UNFIT = (Quality.FIRST, Quality.LATE, Quality.GONE, Quality.RESTARTED, Quality.SETTLING, Quality.SLI_MISSING)
_ELASTIC_DELAY = 1.25
_ELASTIC_GAIN = 0.1
_LEAST_CORES = 0.02
_LEAST_RATIO, _MOST_RATIO = 0.02, 50.0
BOOTSTRAP_SUPPORT = 10.0
"""Until a reference has this much support, strongly protected samples may stand in for undisturbed ones."""
PROTECTED_RATIO = 0.9
"""Prior work ratio from which a sample counts as strongly protected."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample with its circumstances. ``undisturbed``: batch did not compete; ``batch_cores``: what batch got."""

    sample: Sample
    allocation: Allocation
    context: ModelContext
    undisturbed: bool
    batch_cores: Reading = NOT_MEASURED
    latency_percentile: str = "p95"


class LraModel:
    """Learns from observations; answers as ``domain.policy.ResPerfModel``. Deterministic; no clock.

    ``skipped`` counts what was not learned from, by reason.
    """

    def __init__(self) -> None:
        self._reference = Reference()
        self._work = Residual(_SCALES, prior_sd=0.2, noise_sd=0.06)
        self._delay = Residual(_SCALES, prior_sd=0.35, noise_sd=0.15)
        self._batch = Residual(_SCALES, prior_sd=0.3, noise_sd=0.15)
        self._elasticity: float | None = None
        self._now_s = 0.0
        self.skipped: Counter[str] = Counter()

    # -- learning -----------------------------------------------------------------------------------

    def observe(self, seen: Observation) -> None:
        """Learn from one sample if it is fit; otherwise count why not. Never raises for odd readings."""
        sample = seen.sample
        self._now_s = sample.at_s
        unfit = next((flag for flag in _UNFIT if sample.has(flag)), None)
        if unfit is not None:
            self.skipped[unfit.value] += 1
            return
        perf = performance(sample, seen.latency_percentile)
        if not available(perf.work) or perf.work <= 0:
            self.skipped["no work"] += 1
            return
        if seen.undisturbed:
            self._learn_reference(seen, perf.work, perf.delay, perf.load, 1.0)
            return
        self._learn_ratio(seen, perf.work, perf.delay, perf.load)

    def _learn_reference(
        self, seen: Observation, work: float, delay: Reading, load: Reading, weight: float
    ) -> None:
        self._reference.update("work", work, load, weight)
        if available(delay):
            self._reference.update("delay", delay, load, weight)
        usage = seen.sample.cpu_usage_cores
        if available(usage):
            self._reference.update("cpu_usage_cores", usage, load, weight)
        for name in WITNESSES:
            value = seen.sample.reading(name)
            if available(value):
                self._reference.update(name, value + 1.0, load, weight)

    def _learn_ratio(self, seen: Observation, work: float, delay: Reading, load: Reading) -> None:
        reference = self._reference.get("work", load)
        if reference is None or reference.support < BOOTSTRAP_SUPPORT:
            self._bootstrap(seen, work, delay, load)
            if reference is None:
                return
        delay_reference = self._reference.get("delay", load)
        delay_ratio: float | None = None
        if available(delay) and delay > 0 and delay_reference is not None:
            delay_ratio = min(max(delay / delay_reference.value, 1 / _MOST_RATIO), _MOST_RATIO)
        raw_ratio = max(work / reference.value, _LEAST_RATIO)
        self._learn_elasticity(raw_ratio, delay_ratio)
        work_ratio = contended_ratio(raw_ratio, delay_ratio)
        x = _features([seen.allocation], seen.context)
        key = _cell_key(seen.allocation, seen.context)
        prior = expect(CpuGrants.of([seen.allocation]), seen.context)
        at_s = seen.sample.at_s
        residual = math.log(work_ratio) - math.log(prior.work[0])
        self._work.update(key, x[0], residual, at_s)
        if delay_ratio is not None:
            self._delay.update(key, x[0], math.log(delay_ratio) - math.log(prior.delay[0]), at_s)
        if available(seen.batch_cores):
            got, expected = (
                max(seen.batch_cores, _LEAST_CORES),
                max(float(prior.batch_cores[0]), _LEAST_CORES),
            )
            self._batch.update(key, x[0], math.log(got / expected), at_s)

    def _learn_elasticity(self, work_ratio: float, delay_ratio: float | None) -> None:
        if delay_ratio is None or delay_ratio < _ELASTIC_DELAY:
            return
        seen = min(max(-math.log(work_ratio) / math.log(delay_ratio), 0.0), 1.5)
        before = self._elasticity if self._elasticity is not None else seen
        self._elasticity = before + _ELASTIC_GAIN * (seen - before)

    def _bootstrap(self, seen: Observation, work: float, delay: Reading, load: Reading) -> None:
        """No undisturbed sample yet: a strongly protected one tells the reference through the prior."""
        prior = expect(CpuGrants.of([seen.allocation]), seen.context)
        if prior.work[0] < PROTECTED_RATIO or seen.allocation.cpu.instrument is CpuInstrument.NONE:
            self.skipped["no reference yet"] += 1
            return
        scaled_delay = delay / float(prior.delay[0]) if available(delay) else delay
        self._learn_reference(seen, work / float(prior.work[0]), scaled_delay, load, 0.5)

    # -- answering ----------------------------------------------------------------------------------

    def reference(self, signal: str, load: Reading) -> Band | None:
        """Expected undisturbed value; for the witnesses (percentages) 1 is added, so that 0 has a logarithm."""
        return self._reference.get(signal, load)

    @property
    def elasticity(self) -> float | None:
        """How far work falls when delay grows, -d log(work) / d log(delay): about 1 in a closed loop, 0 in an open
        one; None until contention was seen.
        """
        return self._elasticity

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Work ratio to the reference, at most 1.05."""
        prior = expect(CpuGrants.of(allocations), context)
        bands = self._bands(self._work, prior.work, allocations, context)
        return tuple(Band(min(b.value, 1.05), b.sd, b.support) for b in bands)

    def predict_delay(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Delay ratio to the reference."""
        prior = expect(CpuGrants.of(allocations), context)
        return self._bands(self._delay, prior.delay, allocations, context)

    def batch_cores(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[float, ...]:
        """CPU that batch is predicted to get, in cores: what sharing leaves it, corrected by experience."""
        prior = expect(CpuGrants.of(allocations), context)
        mean, _, _ = self._batch.predict(_features(allocations, context), self._now_s)
        got = np.maximum(prior.batch_cores, _LEAST_CORES) * np.exp(mean)
        limits = np.minimum([a.cpu.batch_cores for a in allocations], max(context.batch_demand_cores, 0.0))
        return tuple(float(v) for v in np.minimum(got, limits))

    def _bands(
        self, residual: Residual, prior: Floats, allocations: Sequence[Allocation], context: ModelContext
    ) -> tuple[Band, ...]:
        mean, sd, support = residual.predict(_features(allocations, context), self._now_s)
        values = prior * np.exp(mean)
        return tuple(Band(float(v), float(s), float(n)) for v, s, n in zip(values, sd, support, strict=True))


def _features(allocations: Sequence[Allocation], context: ModelContext) -> Floats:
    """Rows (n, 5): share of cores with batch, log10 of the weight ratio, exclusive, LRA load, batch load."""
    total = max(context.total_cores, 1e-9)
    lra = min(context.lra_demand_cores / total, 1.5)
    batch = min(context.batch_demand_cores / total, 1.0)
    return np.array(
        [
            (
                a.cpu.batch_cores / a.cpu.total_cores,
                math.log10(a.cpu.weight_ratio),
                1.0 if a.cpu.exclusive else 0.0,
                lra,
                batch,
            )
            for a in allocations
        ],
        dtype=np.float64,
    )


def _cell_key(allocation: Allocation, context: ModelContext) -> tuple[object, ...]:
    total = max(context.total_cores, 1e-9)
    return (
        allocation.cpu,
        round(4 * context.lra_demand_cores / total),
        round(2 * min(context.batch_demand_cores / total, 1.0)),
    )
