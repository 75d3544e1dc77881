"""One LRA among several: what its samples say. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission import outcomes, partition
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
from perphd.domain.sample import is_short as is_glance
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
class Look:
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


def look_at(
    snapshot: Snapshot,
    view: WorkloadView,
    settings: PolicySettings,
    state: DetectorState,
    *,
    is_apart: bool,
    known: Target | None = None,
) -> Look:
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
        return Look(view, known or Target(waits, waits), judged, False, own, scene, awaits=True)
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
    return Look(view, target, judged, scene.is_clean(), own, scene)


def take_in(member: LraState, look: Look, demand: Reading, now_s: float, period_s: float) -> LraState:
    """The member with one sample more; of a glance between two ticks only what is blatant counts."""
    judged = look.judged
    if look.awaits:
        return replace(member, detector=judged.state)
    member = member.with_own(target=look.target)
    if not available(judged.score):
        unknown_s = member.unknown_since_s if member.unknown_since_s is not None else now_s
        return replace(member, detector=judged.state, unknown_since_s=unknown_s)
    member = replace(member, unknown_since_s=None)
    sample = look.view.sample
    if sample is not None and is_glance(sample, period_s) and not judged.blatant:
        return replace(member, detector=judged.state)
    if available(demand):
        old = member.own.demand
        new = demand if old is None or demand >= old else old + FALLS * (demand - old)
        member = member.with_own(demand=new)
    if not look.clean:
        return replace(member, detector=rearm(judged.state))
    scores = (*member.scores, min(judged.score, 10.0))[-MOST_SCORES:]
    rooms = (*member.own.rooms, _room_of(look, scores[-1]))[-MOST_SCORES:]
    member = replace(member, detector=judged.state, scores=scores).with_own(rooms=rooms)
    calm = judged.score >= 1.0 or (member.level >= 1.0 and judged.score >= FAR)
    since_s = (member.own.calm_since_s if member.own.calm_since_s is not None else now_s) if calm else None
    return member.with_own(calm_since_s=since_s)


def _room_of(look: Look, score: float) -> float:
    """The accepted delay over the one seen, of this sample; its score where no delay is judged."""
    sample, target = look.view.sample, look.target.delay
    if sample is None or not available(target):
        return score
    delay = performance(sample, look.view.spec.objective.latency_percentile).delay
    return min(target / delay, 10.0) if available(delay) and delay > 0 else score


def demand_of(look: Look, busy: float, threads_per_core: int) -> Reading:
    """Hardware threads that the LRA wants to keep busy, from its use and how busy its CPUs (a share) are."""
    sample = look.view.sample
    if sample is None or not available(sample.cpu_usage_cores):
        return sample.cpu_usage_cores if sample is not None else look.judged.score
    base = partition.base_demand(sample.cpu_usage_cores, busy, threads_per_core)
    asked, done = sample.load_per_s, sample.work_rate_per_s
    if available(asked) and available(done) and done > 0 and asked > done:
        return base * min(asked / done, 10.0)
    return base * UNSEEN if busy >= SATURATED and not available(asked) else base


def is_recovering(member: LraState) -> bool:
    """True while its score still rises after it was given more: what had queued up is being worked off."""
    pending, scores = member.pending, member.scores
    if pending is None or pending.shrinks or len(scores) > PATIENT:
        return False
    before = scores[-2] if len(scores) >= 2 else value_or(pending.score_before, math.nan)
    return math.isnan(before) or scores[-1] > RISING * before


def is_short(member: LraState, look: Look) -> bool:
    """True if it is believed to be below its target now."""
    if not member.scores or not look.clean or is_recovering(member):
        return False
    return outcomes.is_short(look.judged, member.scores, look.settings, apart=True)


def judge_pending(member: LraState, look: Look) -> Came:
    """What came of the last change of its cores."""
    pending = member.pending
    if pending is None:
        return Came.OPEN
    if not look.clean:
        # Taking back does not wait for things to settle when far too little is left.
        far = pending.shrinks and available(look.score) and look.score < WORSE_RATIO
        return Came.TOO_LITTLE if far else Came.OPEN
    if not member.scores or (is_recovering(member) and member.scores[-1] < 1.0):
        return Came.OPEN
    return outcomes.judge(pending, member.scores, look.judged.noise_sd, look.scene.nothing, look.settings)


def found_enough(member: LraState) -> LraState:
    """The member with its rescues forgotten, if its scores say that its cores are enough."""
    if len(member.scores) < 3 or member.level < 1.0 or member.scores[-1] < 1.0:
        return member
    return member.with_own(rescues=0, idle_times=0)


def found_too_few(member: LraState, look: Look) -> LraState:
    """The member with its cores on the list of what is not tried again for a while."""
    scene = look.scene
    cores, total = member.own.cores, scene.nothing.cpu.total_cores
    failed = apart(total, cores, scene.nothing)
    # On too few cores everything takes longer: what it wants is what it wanted before.
    wants = member.own.demand
    if wants is not None and member.pending is not None:
        wants = min(wants, value_or(member.pending.cpus, wants))
    regrets, _ = regret(member.regrets, failed, scene.now_s, look.settings.regret_s, _setting(wants, scene))
    return replace(member, regrets=regrets)


def _setting(demand: float | None, scene: Scene) -> Setting:
    """Under what cores are enough or not: who is beside, and the CPU that it wants, which says more than its load."""
    return Setting(scene.setting().beside, cpus=demand if demand is not None else NOT_MEASURED)


def curve_of(member: LraState, look: Look, total: int, most: int, cache: tuple[int, int]) -> CoreCurve:
    """What 1, 2, ... ``most`` of ``total`` cores would give it.

    Args:
        member: what is remembered of it.
        look: how it is now.
        total: usable cores.
        most: cores that it can have at most.
        cache: ways that batch may not use, and the throttle of its bandwidth (%), where it is.
    """
    scene, view = look.scene, look.view
    model, ways, pct = view.model, *cache
    like = replace(scene.nothing, llc_ways=ways, mbw_pct=pct)
    if model is None or member.own.demand is None or not available(look.score):
        return unknown_curve(max(member.own.cores, 1), most, total, like)
    context = model_context(scene.snapshot, view, model)
    if model.reference("cpu_usage_cores", NOT_MEASURED) is None:
        # What it uses beside everybody else is no measure of what it wants.
        wants = member.own.demand * cores_per_cpu(scene.snapshot)
        context = replace(context, lra_demand_cores=min(wants, context.total_cores))
    measured = None
    if member.own.cores and len(member.scores) >= LEAST_MEASURED:
        n = min(len(member.scores), PATIENT)
        measured = member.own.cores, member.level, look.judged.noise_sd / math.sqrt(n)
    curve = core_curve(
        model,
        context,
        look.target,
        look.settings.confidence_z,
        most,
        lambda n: own_cores(total, n, like),
        measured,
    )
    setting, now_s = _setting(member.own.demand, scene), scene.now_s
    failed = [
        (r.allocation.cpu.own_cores, r.until_s)
        for r in member.regrets
        if r.allocation.cpu.own_cores is not None and setting.resembles(r.setting)
    ]
    barred = [cores for cores, until_s in failed if until_s > now_s]
    doubted = [cores for cores, _ in failed]
    return replace(curve, barred=max([curve.barred, *barred]), doubted=max(doubted, default=0))


def hierarchy_is_to_blame(look: Look) -> bool:
    """True if instructions take clearly longer because of cache or memory bandwidth."""
    return look.judged.hierarchy in (Cause.LLC, Cause.MBW)
