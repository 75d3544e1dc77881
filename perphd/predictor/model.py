"""The Res-Perf model of one LRA: reference x physics x learned correction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perphd.domain.allocation import Allocation, CpuInstrument
from perphd.domain.learning import DEFAULT_LEARNER, GATE_MAPE, Ablated, Learner
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import NOT_MEASURED, Reading, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.signals import Performance, contended_ratio, performance
from perphd.predictor import corrections, features
from perphd.predictor.answer import Answer
from perphd.predictor.boosted import Boosted, Correction
from perphd.predictor.features import Covariates, cell_key
from perphd.predictor.gate import Gate
from perphd.predictor.ogbrt.rebuild import RebuildJob, Rebuilt
from perphd.predictor.persist import ModelState, Skipped
from perphd.predictor.physics import CpuGrants, ExpectedPerformance, Floats, expect
from perphd.predictor.reference import Reference
from perphd.predictor.residual import Residual
from perphd.predictor.staged import Staged, rows_of
from perphd.predictor.trial import OnTrial, Start

WITNESSES = ("cpu_some_pct", "memory_some_pct", "io_some_pct")
"""Readings whose undisturbed level is learned along with work and delay, to tell contention from low load."""
COUNTED = ("cpi", "llc_mpki", "memory_stall_ratio", "llc_occupancy_bytes", "mbw_bytes_per_s")
"""Readings of processor counters whose undisturbed level the model learns."""

_UNFIT = (Quality.FIRST, Quality.LATE, Quality.GONE, Quality.RESTARTED, Quality.SETTLING, Quality.SLI_MISSING,
          Quality.BETWEEN)  # fmt: skip
CLOSED_ELASTICITY = 0.3
"""Elasticity above which an LRA's load counts as closed: its work rate falls when it has to wait."""
_ELASTIC_DELAY = 1.25
_ELASTIC_GAIN = 0.1
_LEAST_CORES = 0.02
THROTTLED_PCT = 5.0
"""Excess over the usual throttled share (%) above which a sample is not learned."""
_THROTTLED_GAIN = 0.02
_LEAST_RATIO, _MOST_RATIO = 0.02, 50.0
_MOST_WORK = 1.05
OUTLIER = "outlier, learned in part"
BOOTSTRAP_SUPPORT = 10.0
"""Support of a reference up to which samples under strong protection may replace undisturbed ones."""
BOOTSTRAP_LOAD = 0.7
"""Share of the host's cores up to which an LRA's use counts as its demand while it shares all cores with batch."""
PROTECTED_RATIO = 0.9
"""A sample counts as strongly protected if the prior predicts at least this work ratio."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample with its circumstances.

    ``undisturbed``: batch did not compete. ``batch_cores``: CPU time per second that batch got. ``shielded``: batch's
    cache and bandwidth were restricted as far as possible, or are known to be spare. ``neighbours_bytes_per_s``,
    ``neighbours_cores``: memory bandwidth and CPU use of the other LRAs. ``contended``: undeclared work or the
    hypervisor filled the host. ``cache_knobs``: in how many of the two resources cache and bandwidth batch can be
    restricted now (0 to 2); None: there is no batch. ``count``: number of samples merged into this one.
    """

    sample: Sample
    allocation: Allocation
    context: ModelContext
    undisturbed: bool
    batch_cores: Reading = NOT_MEASURED
    latency_percentile: str = "p95"
    neighbours_bytes_per_s: Reading = NOT_MEASURED
    neighbours_cores: Reading = NOT_MEASURED
    contended: bool = False
    shielded: bool = True
    cache_knobs: int | None = None
    count: int = 1


class LraModel:
    """Learns from observations and implements ``domain.policy.ResPerfModel``. Deterministic; no clock.

    ``samples``: number of samples learned. ``skipped``: number of samples not learned, by reason.

    Args:
        learner: the kind of correction; None: ``DEFAULT_LEARNER``.
        gate_mape: largest mean relative error at the current allocation at which the model may act, see ``Gate``.
    """

    def __init__(self, learner: Learner | Ablated | None = None, gate_mape: float = GATE_MAPE) -> None:
        self.learner: Learner | Ablated = learner or DEFAULT_LEARNER
        self.work_gate, self.delay_gate = Gate(gate_mape), Gate(gate_mape)
        self._reference = Reference()
        self._work = corrections.for_channel(self.learner, "work")
        self._delay = corrections.for_channel(self.learner, "delay")
        self._batch = corrections.correction("residual", 0.3, 0.15, +1)
        self._around = Covariates()
        self._asked: _Question | None = None
        self._elasticity: float | None = None
        self._stood_in_knobs: int | None = None
        self._undisturbed = 0
        self._throttled_pct: float | None = None
        self._now_s = 0.0
        self.samples = 0
        self.skipped: Counter[str] = Counter()

    # -- keeping ------------------------------------------------------------------------------------

    def to_state(self, now_s: float | None = None) -> ModelState:
        """The whole state as plain values; ``now_s``: reference time of ages (default: last sample)."""
        now_s = self._now_s if now_s is None else now_s
        return ModelState(
            reference=self._reference.to_state(),
            work=self._work.to_state(now_s),
            delay=self._delay.to_state(now_s),
            batch=self._batch.to_state(now_s),
            elasticity=self._elasticity,
            stood_in_knobs=self._stood_in_knobs,
            samples=self.samples,
            skipped=tuple(Skipped(reason, count) for reason, count in self.skipped.items()),
            work_error=self.work_gate.mean,
            delay_error=self.delay_gate.mean,
            work_advises=not self.work_gate.is_open,
            delay_advises=not self.delay_gate.is_open,
        )

    @classmethod
    def from_state(
        cls,
        state: ModelState,
        now_s: float = 0.0,
        elapsed_s: float = 0.0,
        learner: Learner | Ablated | None = None,
        gate_mape: float = GATE_MAPE,
    ) -> LraModel:
        """The model with this state, aged by ``elapsed_s``.

        Args:
            state: from ``to_state``, on any host and clock.
            now_s: the present time on the clock of future samples.
            elapsed_s: time for which the model was not in use; negative values count as 0.
            learner: kind of correction from now on; only the part specific to another learner is lost.
            gate_mape: see the class.

        Raises:
            InvalidModel: the values are inconsistent.
        """
        made = cls(learner, gate_mape)
        made._now_s = now_s
        made._reference = Reference.from_state(state.reference, elapsed_s)
        made._work = corrections.restored(made.learner, "work", state.work, now_s, elapsed_s)
        made._delay = corrections.restored(made.learner, "delay", state.delay, now_s, elapsed_s)
        made._batch.restore(state.batch, now_s, elapsed_s)
        for learned, known in (
            (made._work, state.work),
            (made._delay, state.delay),
            (made._batch, state.batch),
        ):
            if isinstance(learned, Boosted) and known.boosted is None and known.staged is not None:
                x, _, y = rows_of(known.staged)
                if len(y):
                    learned.begin(x, y)
        made.work_gate.restore(state.work_error, state.work_advises)
        made.delay_gate.restore(state.delay_error, state.delay_advises)
        made._elasticity = state.elasticity
        made._stood_in_knobs = state.stood_in_knobs
        made.samples = state.samples
        made.skipped = Counter({item.reason: item.count for item in state.skipped})
        return made

    # -- beginning ----------------------------------------------------------------------------------

    def begin(self, x: Floats, prior: Floats, y: Floats) -> None:
        """Start from a profile.

        Rows ``x`` (n, D) of ``features.COLUMNS``, physics predictions of work ``prior`` (log, (n,)), corrections ``y``
        (n,). Cells alone cannot hold a profile, so stages replace a ``residual`` work correction.
        """
        if isinstance(self._work, Residual):
            known = self._work.to_state(self._now_s)
            self._work = Staged(corrections.SCALES, corrections.WORK_SD, 0.06, +1)
            self._work.restore(known, self._now_s)
        self.begin_channel("work", x, prior, y)

    def begin_channel(self, channel: str, x: Floats, prior: Floats, y: Floats) -> None:
        """Start the channel ``work`` or ``delay`` from a profile."""
        learned = self._work if channel == "work" else self._delay
        if isinstance(learned, Staged):
            learned.begin(x, prior, y)
        elif isinstance(learned, Boosted):
            learned.begin(x, y)

    def begin_told(self, work: Start, delay: Start | None) -> bool:
        """Start from other hosts' estimates, on trial; False if samples beside batch are already known."""
        if self._work.cells or isinstance(self._work, OnTrial):
            return False
        self._work = corrections.told(self._work, "work", work)
        if delay is not None:
            self._delay = corrections.told(self._delay, "delay", delay)
        return True

    @property
    def trials(self) -> Mapping[str, bool]:
        """For each channel on trial: True while the start from other hosts is not worse than learning alone."""
        each = (("work", self._work), ("delay", self._delay))
        return {channel: learned.keeps for channel, learned in each if isinstance(learned, OnTrial)}

    def doubt(self) -> None:
        """Treat present knowledge as a weak prior, because a new version of the application runs.

        Bands widen, and new samples outweigh remembered ones. ``samples`` restarts from 0.
        """
        self._reference.doubt()
        for learned in (self._work, self._delay, self._batch):
            learned.doubt()
        self.work_gate, self.delay_gate = self.work_gate.reset(), self.delay_gate.reset()
        self.samples = 0
        self.skipped.clear()

    # -- rebuilding ---------------------------------------------------------------------------------

    def next_rebuild(self) -> tuple[str, RebuildJob] | None:
        """A channel whose trees a worker should rebuild now, with the job; None if there is none.

        Each job is returned once, until ``offer`` brings its result.
        """
        for channel, learned in self._boosted():
            if learned.rebuild_due:
                return channel, learned.rebuild_job()
        return None

    def offer(self, channel: str, rebuilt: Rebuilt | None) -> None:
        """Put rebuilt trees on trial beside the present ones; None: the rebuild failed."""
        for name, learned in self._boosted():
            if name == channel:
                learned.offer(rebuilt)

    def _boosted(self) -> Iterator[tuple[str, Boosted]]:
        for channel, learned in (("work", self._work), ("delay", self._delay), ("batch", self._batch)):
            if isinstance(learned, Boosted):
                yield channel, learned

    @property
    def work_correction(self) -> Correction:
        """The learned correction of the work rate."""
        return self._work

    @property
    def cells(self) -> int:
        """Number of places at which the work rate is known."""
        return self._work.cells

    # -- learning -----------------------------------------------------------------------------------

    def observe(self, seen: Observation) -> None:
        """Learn one sample if it is suitable; otherwise count the reason. Never raises for unusual readings."""
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
        if perf.work_source == "mips" and sample.has(Quality.MULTIPLEXED):
            self.skipped[Quality.MULTIPLEXED.value] += 1
            return
        if self._is_throttled(sample):
            self.skipped["throttled"] += 1
            return
        self.samples += 1
        self._around = _surroundings(seen)
        self._forget_stand_ins(seen)
        if seen.undisturbed:
            self._undisturbed += 1
            if self._undisturbed >= BOOTSTRAP_SUPPORT:
                self._stood_in_knobs = None
            self._learn_reference(seen, perf, float(seen.count))
        else:
            self._learn_ratio(seen, perf, perf.work)

    def _is_throttled(self, sample: Sample) -> bool:
        """True if the LRA's own CPU limit throttled it more than usual, which is not interference.

        An LRA that is always throttled is learned as it is.
        """
        share_pct = sample.cpu_throttled_pct
        if not available(share_pct):
            return False
        usual_pct = self._throttled_pct if self._throttled_pct is not None else share_pct
        self._throttled_pct = usual_pct + _THROTTLED_GAIN * (share_pct - usual_pct)
        return share_pct >= usual_pct + THROTTLED_PCT

    def _forget_stand_ins(self, seen: Observation) -> None:
        """Drop the reference, learned from substitute samples, once batch can be restricted in further resources.

        This happens, for example, after resctrl was mounted, its lock was released, or another program gave
        up its masks. The substitutes contained the cost of cache and bandwidth.
        """
        stood_in, now = self._stood_in_knobs, seen.cache_knobs
        if stood_in is not None and now is not None and now > stood_in:
            self._reference, self._stood_in_knobs = Reference(), None

    def _learn_reference(
        self, seen: Observation, perf: Performance, weight: float, scale: float = 1.0
    ) -> None:
        """Learn an undisturbed sample; ``scale``: assumed ratio of its work to the reference's."""
        work, delay, load = perf.work, perf.delay, perf.load
        if available(work):
            self._reference.update(f"work:{perf.work_source}", work / scale, load, weight, seen.contended)
        if available(delay):
            self._reference.update(f"delay:{perf.delay_source}", delay * scale, load, weight, seen.contended)
        if available(perf.in_flight):
            self._reference.update("in_flight", perf.in_flight, load, weight, seen.contended)
        usage = seen.sample.cpu_usage_cores
        if available(usage):
            self._reference.update("cpu_usage_cores", usage, load, weight, seen.contended)
        for name in WITNESSES:
            value = seen.sample.reading(name)
            if available(value):
                self._reference.update(name, value + 1.0, load, weight, seen.contended)
        for name in COUNTED:
            value = seen.sample.reading(name)
            if available(value) and value > 0:
                self._reference.update(name, value, load, weight, seen.contended)

    def _learn_ratio(self, seen: Observation, perf: Performance, work: float) -> None:
        delay, load = perf.delay, perf.load
        reference = self._reference.get(f"work:{perf.work_source}", load)
        prior = expect(CpuGrants.of([seen.allocation]), seen.context)
        if reference is None or reference.support < BOOTSTRAP_SUPPORT:
            self._bootstrap(seen, perf, prior)
            if reference is None:
                return
        delay_reference = self._reference.get(f"delay:{perf.delay_source}", load)
        delay_ratio: float | None = None
        if available(delay) and delay > 0 and delay_reference is not None:
            delay_ratio = min(max(delay / delay_reference.value, 1 / _MOST_RATIO), _MOST_RATIO)
        raw_ratio = max(work / reference.value, _LEAST_RATIO)
        self._learn_elasticity(raw_ratio, delay_ratio)
        in_flight = self._reference.get("in_flight", load)
        in_flight_ratio = perf.in_flight_ratio(in_flight.value if in_flight is not None else None)
        work_ratio = contended_ratio(raw_ratio, delay_ratio, in_flight_ratio, self.is_closed)
        x = features.features([seen.allocation], seen.context, self._around)
        key = cell_key(seen.allocation, seen.context)
        at_s = seen.sample.at_s
        residual = math.log(work_ratio) - math.log(prior.work[0])
        if seen.count > 1 and available(events := seen.sample.work_events) and events > 0:
            for learned in (self._work, self._delay):
                learned.noise_at_least(min(1.0 / math.sqrt(events), 0.5))
        clipped = self._work.clipped
        self.work_gate.update(self._work.update(key, x[0], residual, at_s, math.log(prior.work[0])))
        if self._work.clipped > clipped:
            self.skipped[OUTLIER] += 1
        if delay_ratio is not None:
            expected_log = math.log(prior.delay[0])
            missed = self._delay.update(key, x[0], math.log(delay_ratio) - expected_log, at_s, expected_log)
            self.delay_gate.update(missed)
        self._work, self._delay = corrections.settled(self._work), corrections.settled(self._delay)
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

    def _bootstrap(self, seen: Observation, perf: Performance, prior: ExpectedPerformance) -> None:
        """Learn a reference from a strongly protected sample through the prior, while undisturbed ones are missing.

        This requires spare cores without batch: on shared cores the LRA's use may be all that it could get,
        and a squeezed application would pass for an undisturbed one. It also requires that batch's cache and
        bandwidth are restricted, because the prior ignores their cost.
        """
        grant = seen.allocation.cpu
        spare = seen.context.lra_demand_cores <= BOOTSTRAP_LOAD * seen.context.total_cores
        protected = grant.instrument is not CpuInstrument.NONE and (
            grant.batch_cores < grant.total_cores or spare
        )
        if prior.work[0] < PROTECTED_RATIO or not (protected and seen.shielded):
            self.skipped["no reference yet"] += 1
            return
        if seen.cache_knobs is not None:
            known = self._stood_in_knobs
            if known is not None and seen.cache_knobs < known:
                self.skipped["batch has the cache"] += 1
                return
            self._stood_in_knobs = seen.cache_knobs
        self._learn_reference(seen, perf, 0.5, float(prior.work[0]))

    # -- answering ----------------------------------------------------------------------------------

    def reference(self, signal: str, load: Reading) -> Band | None:
        """Expected undisturbed value; 1 is added to pressures (percentages), so that 0 has a logarithm."""
        return self._reference.get(signal, load)

    def references(self) -> tuple[tuple[str, Reading, Band], ...]:
        """Every reference value with its load (Unavailable: over all loads), as from ``reference``."""
        return self._reference.all()

    @property
    def is_closed(self) -> bool:
        """True if contention has shown a closed loop: new requests arrive only after answers."""
        return self._elasticity is not None and self._elasticity >= CLOSED_ELASTICITY

    @property
    def may_act(self) -> bool:
        """True if predictions at the current allocation are accurate. Otherwise bands are as wide as the prior's."""
        return self.work_gate.is_open and self.delay_gate.is_open

    @property
    def alarms(self) -> int:
        """Number of detected changes of the application."""
        return self._work.alarms + self._delay.alarms

    def predict_work(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Work relative to the reference, at most 1.05.

        It never falls with a lower batch weight on the same cores. With ``staged``, it never falls with more ways, less
        bandwidth for neighbours or more exclusive cores either.
        """
        asked = self._question(_as_seen(allocations), context)
        answer = self._answer(
            self._work, asked.prior.work, asked, self.work_gate, corrections.WORK_SD
        ).at_most(_MOST_WORK)
        if not isinstance(self._work, Staged):
            answer = answer.monotone(asked.allocations, asked.grants)
        return answer.bands()

    def predict_delay(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Delay relative to the reference. With ``staged``, changes that never lower work never raise it."""
        asked = self._question(_as_seen(allocations), context)
        answer = self._answer(self._delay, asked.prior.delay, asked, self.delay_gate, corrections.DELAY_SD)
        return answer.bands()

    def batch_cores(self, allocations: Sequence[Allocation], context: ModelContext) -> tuple[Band, ...]:
        """Predicted CPU use of batch in cores: the part that sharing leaves it, with the learned correction."""
        asked = self._question(tuple(allocations), context)
        left = np.maximum(asked.prior.batch_cores, _LEAST_CORES)
        answer = self._answer(self._batch, left, asked)
        most = np.minimum(asked.grants.batch, max(context.batch_demand_cores, 0.0))
        return answer.at_most(most).monotone(asked.allocations, asked.grants, heavier_is_more=True).bands()

    def _question(self, allocations: tuple[Allocation, ...], context: ModelContext) -> _Question:
        """The input that the three predictions share. It is cached, because they are requested in succession."""
        last = self._asked
        same = last is not None and last.around is self._around and last.context == context
        if last is None or not same or last.allocations != allocations:
            grants = CpuGrants.of(allocations)
            rows = features.features(allocations, context, self._around, grants)
            last = _Question(allocations, context, self._around, grants, expect(grants, context), rows)
            self._asked = last
        return last

    def _answer(
        self,
        learned: Correction,
        prior: Floats,
        asked: _Question,
        gate: Gate | None = None,
        prior_sd: float = 0.0,
    ) -> Answer:
        mean, sd, support = learned.predict(asked.rows, self._now_s, np.log(prior))
        if gate is not None:
            sd = gate.widen(sd, support, prior_sd)
        return Answer(prior * np.exp(mean), sd, support)


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """Allocations under a context, with derived values; ``rows``: features. Arrays must not be modified."""

    allocations: tuple[Allocation, ...]
    context: ModelContext
    around: Covariates
    grants: CpuGrants
    prior: ExpectedPerformance
    rows: Floats


def _surroundings(seen: Observation) -> Covariates:
    cores: Reading = seen.neighbours_cores
    load = cores / max(seen.context.total_cores, 1e-9) if available(cores) else cores
    return Covariates.of(seen.sample, seen.neighbours_bytes_per_s, load)


def _as_seen(allocations: Sequence[Allocation]) -> tuple[Allocation, ...]:
    return tuple(
        a if a.cpu.own_cores is None else replace(a, cpu=a.cpu.without_own_cores()) for a in allocations
    )
