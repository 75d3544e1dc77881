"""One LRA among several: what its samples say. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import max_min, outcomes
from perphd.admission.cause import surroundings
from perphd.admission.context import cores_per_cpu, model_context
from perphd.admission.core_curve import CoreCurve, apart, core_curve, own_cores, unknown_curve
from perphd.admission.detector import DetectorState, Judgement, Target, judge, rearm, standing, target_of
from perphd.admission.gathering import Awaiting, gathered_by
from perphd.admission.lra_state import LraState
from perphd.admission.outcomes import PATIENT, Came, Setting, regret
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings, at_pace, settings_for
from perphd.admission.thresholds import WORSE_RATIO
from perphd.domain.decision import Cause
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available, value_or
from perphd.domain.sample import is_short as is_between_ticks
from perphd.domain.signals import performance

MOST_SCORES: Final = 30
LEAST_MEASURED: Final = 2
"""Clean samples from which a level counts as measured."""
FAR: Final = 0.85
"""A score below this ends the time for which an LRA with a good mean counts as calm."""
RISING: Final = 1.1
"""A score that grows by this factor from sample to sample is on its way."""
FALLS: Final = 0.3
"""Part of a fall of demand that one sample is believed; a rise is believed at once."""
SATURATED: Final = 0.9
"""Busy share of its CPUs from which use no longer shows what an LRA wants ..."""
UNSEEN: Final = 1.25
"""... and by what factor more it is then taken to want, where nothing tells."""
STEPS: Final = (1, 1, 2, 4, 8)
"""Cores by which a rescue goes on when the last one was not enough."""


@dataclass(frozen=True, slots=True)
class LraObservation:
    """One LRA at one tick. ``clean``: the sample lies wholly after the last change; ``settings``: those for it.

    ``awaits``: its sample cannot be judged yet, and what was found before stands.
    """

    view: WorkloadView
    target: Target
    judged: Judgement
    clean: bool
    settings: PolicySettings
    scene: Scene
    awaits: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.view.spec.name

    @property
    def score(self) -> Reading:
        """Performance over target now."""
        return self.judged.score


def observe(
    snapshot: Snapshot,
    view: WorkloadView,
    settings: PolicySettings,
    state: DetectorState,
    *,
    is_apart: bool,
    known: Target | None = None,
) -> LraObservation:
    """One LRA as this tick shows it.

    Args:
        snapshot: the host now.
        view: the LRA, which is there: it has a sample and a model.
        settings: the host's.
        state: of its detector until now.
        is_apart: it has cores of its own already.
        known: its target until now.
    """
    assert view.sample is not None
    assert view.model is not None
    own = at_pace(settings_for(settings, view.spec), snapshot.period_s)
    gathered, found = gathered_by(state.gathered, view, own, snapshot.period_s)
    if gathered is not state.gathered:
        state = replace(state, gathered=gathered)
    if isinstance(found, Awaiting):
        waits = Unavailable(found.text)
        judged = Judgement(standing(state, found), state, waits)
        scene = Scene(own, snapshot, view)
        return LraObservation(view, known or Target(waits, waits), judged, False, own, scene, awaits=True)
    if found is not view.sample:
        view = replace(view, sample=found)
    model = view.model
    assert model is not None
    perf = performance(found, view.spec.objective.latency_percentile)
    target = target_of(view.spec.objective, model, perf, own)
    judged = judge(
        state,
        found,
        perf,
        target,
        model,
        own,
        protected=is_apart,
        around=surroundings(snapshot),
        period_s=snapshot.period_s,
    )
    scene = Scene(own, snapshot, view)
    return LraObservation(view, target, judged, scene.is_clean(), own, scene)


def take_in(
    lra: LraState, observed: LraObservation, demand: Reading, now_s: float, period_s: float
) -> LraState:
    """The lra with one sample more; of a glance between two ticks only what is blatant counts."""
    judged = observed.judged
    if observed.awaits:
        return replace(lra, detector=judged.state)
    lra = lra.with_own(target=observed.target)
    if not available(judged.score):
        unknown_s = lra.unknown_since_s if lra.unknown_since_s is not None else now_s
        return replace(lra, detector=judged.state, unknown_since_s=unknown_s)
    lra = replace(lra, unknown_since_s=None)
    sample = observed.view.sample
    if sample is not None and is_between_ticks(sample, period_s) and not judged.blatant:
        return replace(lra, detector=judged.state)
    if available(demand):
        old = lra.own.demand
        new = demand if old is None or demand >= old else old + FALLS * (demand - old)
        lra = lra.with_own(demand=new)
    if not observed.clean:
        return replace(lra, detector=rearm(judged.state))
    scores = (*lra.scores, min(judged.score, 10.0))[-MOST_SCORES:]
    rooms = (*lra.own.rooms, _room_of(observed, scores[-1]))[-MOST_SCORES:]
    lra = replace(lra, detector=judged.state, scores=scores).with_own(rooms=rooms)
    calm = judged.score >= 1.0 or (lra.level >= 1.0 and judged.score >= FAR)
    since_s = (lra.own.calm_since_s if lra.own.calm_since_s is not None else now_s) if calm else None
    return lra.with_own(calm_since_s=since_s)


def _room_of(observed: LraObservation, score: float) -> float:
    """The accepted delay over the one seen, of this sample; its score where no delay is judged."""
    sample, target = observed.view.sample, observed.target.delay
    if sample is None or not available(target):
        return score
    delay = performance(sample, observed.view.spec.objective.latency_percentile).delay
    return min(target / delay, 10.0) if available(delay) and delay > 0 else score


def demand_of(observed: LraObservation, busy: float, threads_per_core: int) -> Reading:
    """Hardware threads that the LRA wants to keep busy, from its use and how busy its CPUs (a share) are."""
    sample = observed.view.sample
    if sample is None or not available(sample.cpu_usage_cores):
        return sample.cpu_usage_cores if sample is not None else observed.judged.score
    base = max_min.base_demand(sample.cpu_usage_cores, busy, threads_per_core)
    asked, done = sample.load_per_s, sample.work_rate_per_s
    if available(asked) and available(done) and done > 0 and asked > done:
        return base * min(asked / done, 10.0)
    return base * UNSEEN if busy >= SATURATED and not available(asked) else base


def is_recovering(lra: LraState) -> bool:
    """True while its score still rises after it was given more: what had queued up is being worked off."""
    pending, scores = lra.pending, lra.scores
    if pending is None or pending.shrinks or len(scores) > PATIENT:
        return False
    before = scores[-2] if len(scores) >= 2 else value_or(pending.score_before, math.nan)
    return math.isnan(before) or scores[-1] > RISING * before


def is_short(lra: LraState, observed: LraObservation) -> bool:
    """True if it is believed to be below its target now."""
    if not lra.scores or not observed.clean or is_recovering(lra):
        return False
    return outcomes.is_short(observed.judged, lra.scores, observed.settings, apart=True)


def judge_pending(lra: LraState, observed: LraObservation) -> Came:
    """What came of the last change of its cores."""
    pending = lra.pending
    if pending is None:
        return Came.OPEN
    if not observed.clean:
        # Taking back does not wait for things to settle when far too little is left.
        far = pending.shrinks and available(observed.score) and observed.score < WORSE_RATIO
        return Came.TOO_LITTLE if far else Came.OPEN
    if not lra.scores or (is_recovering(lra) and lra.scores[-1] < 1.0):
        return Came.OPEN
    return outcomes.judge(
        pending, lra.scores, observed.judged.noise_sd, observed.scene.nothing, observed.settings
    )


def found_enough(lra: LraState) -> LraState:
    """The lra with its rescues forgotten, if its scores say that its cores are enough."""
    if len(lra.scores) < 3 or lra.level < 1.0 or lra.scores[-1] < 1.0:
        return lra
    return lra.with_own(rescues=0, idle_times=0)


def found_too_few(lra: LraState, observed: LraObservation) -> LraState:
    """The lra with its cores on the list of what is not tried again for a while."""
    scene = observed.scene
    cores, total = lra.own.cores, scene.nothing.cpu.total_cores
    failed = apart(total, cores, scene.nothing)
    # On too few cores everything takes longer: what it wants is what it wanted before.
    wants = lra.own.demand
    if wants is not None and lra.pending is not None:
        wants = min(wants, value_or(lra.pending.cpus, wants))
    regrets, _ = regret(lra.regrets, failed, scene.now_s, observed.settings.regret_s, _setting(wants, scene))
    return replace(lra, regrets=regrets)


def _setting(demand: float | None, scene: Scene) -> Setting:
    """Under what cores are enough or not: who is beside, and the CPU that it wants, which says more than its load."""
    return Setting(scene.setting().beside, cpus=demand if demand is not None else NOT_MEASURED)


def curve_of(
    lra: LraState, observed: LraObservation, total: int, most: int, cache: tuple[int, int]
) -> CoreCurve:
    """What 1, 2, ... ``most`` of ``total`` cores would give it.

    Args:
        lra: what is remembered of it.
        observed: how it is now.
        total: usable cores.
        most: cores that it can have at most.
        cache: ways that batch may not use, and the throttle of its bandwidth (%), where it is.
    """
    scene, view = observed.scene, observed.view
    model, ways, pct = view.model, *cache
    like = replace(scene.nothing, llc_ways=ways, mbw_pct=pct)
    if model is None or lra.own.demand is None or not available(observed.score):
        return unknown_curve(max(lra.own.cores, 1), most, total, like)
    context = model_context(scene.snapshot, view, model)
    if model.reference("cpu_usage_cores", NOT_MEASURED) is None:
        # What it uses beside everybody else is no measure of what it wants.
        wants = lra.own.demand * cores_per_cpu(scene.snapshot)
        context = replace(context, lra_demand_cores=min(wants, context.total_cores))
    measured = None
    if lra.own.cores and len(lra.scores) >= LEAST_MEASURED:
        n = min(len(lra.scores), PATIENT)
        measured = lra.own.cores, lra.level, observed.judged.noise_sd / math.sqrt(n)
    curve = core_curve(
        model,
        context,
        observed.target,
        observed.settings.confidence_z,
        most,
        lambda n: own_cores(total, n, like),
        measured,
    )
    setting, now_s = _setting(lra.own.demand, scene), scene.now_s
    failed = [(r, r.allocation.cpu.own_cores) for r in lra.regrets if r.allocation.cpu.own_cores is not None]
    barred = [cores for r, cores in failed if r.bars(now_s, setting)]
    doubted = [cores for r, cores in failed if setting.resembles(r.setting)]
    return replace(curve, barred=max([curve.barred, *barred]), doubted=max(doubted, default=0))


def hierarchy_is_to_blame(observed: LraObservation) -> bool:
    """True if instructions take clearly longer because of cache or memory bandwidth."""
    return observed.judged.hierarchy in (Cause.LLC, Cause.MBW)
