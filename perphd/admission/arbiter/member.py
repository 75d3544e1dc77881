"""State of one LRA among several with exclusive cores, and the evaluation of its samples. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perphd.admission.arbiter import partition
from perphd.admission.arbiter.partition import Anchor, Seen
from perphd.admission.detector.cause import surroundings
from perphd.admission.detector.gathering import Awaiting, gathered_by
from perphd.admission.detector.judge import (
    DetectorState,
    Judgement,
    Target,
    judge,
    rearm,
    standing,
    target_of,
)
from perphd.admission.detector.scatter import mean
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import PATIENCE, is_often_short
from perphd.admission.settings import PolicySettings, at_pace, settings_for
from perphd.admission.thresholds import HELPED_RATIO, WORSE_RATIO
from perphd.domain.decision import Cause
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import is_short as is_glance
from perphd.domain.signals import performance

MOST_SCORES: Final = 30
PATIENT: Final = 6
"""Number of samples whose mean proves even a small shortfall."""
MILD: Final = 3
"""Number of consecutive samples below target that prove a shortfall even if none is far below it."""
FAR: Final = 0.85
"""Score below which a single sample proves a shortfall."""
RISING: Final = 1.1
"""Factor by which the score must grow from one sample to the next to show a recovery."""
AMPLE: Final = 1.08
"""Room (``Member.room``) from which a reduced number of cores is clearly enough; with less, its trial lasts longer."""
FALLS: Final = 0.3
"""Share of a fall in demand that is accepted per sample; a rise is accepted at once."""
ELSEWHERE: Final = 0.94
"""Factor on a demand that was measured on too few cores, because such a demand appears too high."""
SATURATED: Final = 0.9
"""Busy share of an LRA's CPUs above which its use no longer shows its demand."""
UNSEEN: Final = 1.25
"""Factor on the use of saturated CPUs to estimate demand if nothing else shows it."""
APART_BUSY: Final = 0.03
"""Difference of busy shares that count as different."""
MOST_BUSY: Final = 12
STEPS: Final = (1, 1, 2, 4, 8)
"""Cores added by successive rescues."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A change of an LRA's cores under evaluation.

    ``score`` (NaN if unknown), ``demand``: values before the change.

    ``lost_s``: sampled time since then in which the LRA was not on target.
    """

    at_s: float
    before: int
    after: int
    score: float
    demand: float
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """State of an LRA with exclusive cores.

    ``scores``: clean scores since its last change, newest last. ``demand``: hardware threads that it keeps busy at full
    speed. ``rescues``: consecutive changes that left it short. ``calm_since_s``: time since which it has been
    on target.
    ``idle_cores_until_s``: end of the cooldown after more cores did not help, ``idle_times`` times in a row.
    ``idle_cache_until_s``: end of the cooldown after less cache and bandwidth for batch did not help.
    ``unknown_since_s``: time since which the LRA cannot be judged.
    ``target``: target of its last sample. ``rooms``: for each score, accepted over observed delay (the score itself
    if there is no delay). It shows spare capacity better than a work rate does. ``spans``: for each
    score, the seconds that it covers. ``busy``: busy shares of its own cores at which it was measured, newest last.
    """

    cores: int
    detector: DetectorState = DetectorState()
    scores: tuple[float, ...] = ()
    demand: float | None = None
    seen: tuple[Seen, ...] = ()
    anchor: Anchor | None = None
    trial: Trial | None = None
    rescues: int = 0
    calm_since_s: float | None = None
    idle_cores_until_s: float = -math.inf
    idle_times: int = 0
    idle_cache_until_s: float = -math.inf
    unknown_since_s: float | None = None
    rooms: tuple[float, ...] = ()
    spans: tuple[float, ...] = ()
    target: Target | None = None
    busy: tuple[float, ...] = ()

    @property
    def room(self) -> float:
        """Mean ratio of accepted to observed delay in the LRA's latest clean samples; NaN if there are none."""
        n = min(len(self.scores), PATIENT)
        return mean(self.rooms[-n:]) if n else math.nan

    @property
    def now(self) -> float:
        """The score that a change should improve: the lower one of the latest and the mean score; NaN without
        scores.
        """
        return min(self.level, self.scores[-1]) if self.scores else math.nan

    @property
    def level(self) -> float:
        """Mean of the latest ``PATIENT`` scores; NaN if there are none."""
        return mean(self.scores[-PATIENT:]) if self.scores else math.nan


@dataclass(frozen=True, slots=True)
class Look:
    """One LRA at one tick.

    ``clean``: the sample lies wholly after the last change. ``settings``: the settings for this LRA.
    ``awaits``: the sample cannot be judged yet, and the last verdict stands.
    """

    view: WorkloadView
    target: Target
    judged: Judgement
    clean: bool
    settings: PolicySettings
    awaits: bool = False

    @property
    def name(self) -> str:
        """The LRA's name."""
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
    """Judge one LRA at this tick.

    Args:
        snapshot: the host now.
        view: the LRA, which has a sample and a model.
        settings: the host's settings.
        state: the previous state of the detector.
        is_apart: True if the LRA already has exclusive cores.
        known: its target until now, if any.
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
        return Look(view, known or Target(waits, waits), judged, clean=False, settings=own, awaits=True)
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
    return Look(view, target, judged, LraContext(own, snapshot, view).is_clean(), own)


class TrialFinding(StrEnum):
    """Findings about an LRA's last change of cores."""

    OPEN = "open"
    ENOUGH = "enough"
    TOO_FEW = "too few"
    NO_HELP = "it did not help"


def take_in(
    member: Member, look: Look, demand: Reading, threads_per_core: int, now_s: float, period_s: float
) -> Member:
    """The member after one more sample; a short sample between ticks counts only if it is blatant."""
    judged = look.judged
    if look.awaits:
        return replace(member, detector=judged.state)
    member = replace(member, target=look.target)
    member = replace(member, trial=_with_lost(member.trial, look, now_s))
    if not available(judged.score):
        unknown_s = member.unknown_since_s if member.unknown_since_s is not None else now_s
        return replace(member, detector=judged.state, unknown_since_s=unknown_s)
    member = replace(member, unknown_since_s=None)
    sample = look.view.sample
    if sample is not None and is_glance(sample, period_s) and not judged.blatant:
        return replace(member, detector=judged.state)
    if available(demand):
        old = member.demand
        new = demand if old is None or demand >= old else old + FALLS * (demand - old)
        member = replace(member, demand=new)
    if not look.clean:
        return replace(member, detector=rearm(judged.state))
    scores = (*member.scores, min(judged.score, 10.0))[-MOST_SCORES:]
    rooms = (*member.rooms, _room_of(look, scores[-1]))[-MOST_SCORES:]
    spans = (*member.spans, 0.0 if sample is None else sample.interval_s)[-MOST_SCORES:]
    member = replace(member, detector=judged.state, scores=scores, rooms=rooms, spans=spans)
    member = replace(
        member, anchor=_anchor(member, look, threads_per_core), busy=_busy(member, threads_per_core)
    )
    calm = judged.score >= 1.0 or (member.level >= 1.0 and judged.score >= FAR)
    since_s = (member.calm_since_s if member.calm_since_s is not None else now_s) if calm else None
    return replace(member, calm_since_s=since_s)


def _with_lost(trial: Trial | None, look: Look, now_s: float) -> Trial | None:
    """The trial, with the time of this sample added unless the sample was on target.

    Time that no sample covers is not counted.
    """
    sample, score = look.view.sample, look.score
    if trial is None or sample is None or (look.clean and available(score) and score >= 1.0):
        return trial
    lost_s = max(
        0.0, min(sample.interval_s, now_s - trial.at_s)
    )  # the sample may have begun before the change
    return replace(trial, lost_s=trial.lost_s + lost_s)


def _room_of(look: Look, score: float) -> float:
    """Accepted over observed delay of this sample; its score if no delay is judged."""
    sample, target = look.view.sample, look.target.delay
    if sample is None or not available(target):
        return score
    delay = performance(sample, look.view.spec.objective.latency_percentile).delay
    return min(target / delay, 10.0) if available(delay) and delay > 0 else score


def _anchor(member: Member, look: Look, threads_per_core: int) -> Anchor | None:
    """The LRA's present operating point if it is on target and known, else the previous one."""
    sample = look.view.sample
    if sample is None or member.demand is None or member.level < 1.0 or len(member.scores) < 2:
        return member.anchor
    work, usage = sample.work_rate_per_s, sample.cpu_usage_cores
    delay = sample.reading(f"latency_{look.view.spec.objective.latency_percentile}_ms")
    if not (available(work) and available(usage) and available(delay)) or work <= 0 or delay <= 0:
        return member.anchor
    busy = partition.busy_share(member.demand, member.cores, threads_per_core)
    return Anchor(member.room, min(busy, 0.97), member.cores, min(1000.0 * usage / work / delay, 1.0))


def _busy(member: Member, threads_per_core: int) -> tuple[float, ...]:
    """The busy shares at which it was measured, with the present one instead of others close to it.

    A place with few samples does not count, because there the model repeats what it learned nearby.
    """
    if member.demand is None or len(member.scores) < PATIENT:
        return member.busy
    now = partition.busy_share(member.demand, member.cores, threads_per_core)
    apart = [each for each in member.busy if abs(each - now) >= APART_BUSY]
    return (*apart[1 - MOST_BUSY :], now)


def demand_of(look: Look, busy: float, threads_per_core: int) -> Reading:
    """Hardware threads that the LRA demands, from its use and the busy share of its CPUs."""
    sample = look.view.sample
    if sample is None or not available(sample.cpu_usage_cores):
        return sample.cpu_usage_cores if sample is not None else look.judged.score
    base = partition.base_demand(sample.cpu_usage_cores, busy, threads_per_core)
    asked, done = sample.load_per_s, sample.work_rate_per_s
    if available(asked) and available(done) and done > 0 and asked > done:
        return base * min(asked / done, 10.0)
    return base * UNSEEN if busy >= SATURATED and not available(asked) else base


def is_recovering(member: Member) -> bool:
    """True while its score still rises after a gain, because a backlog is being worked off."""
    trial, scores = member.trial, member.scores
    if trial is None or trial.after < trial.before or len(scores) > PATIENT:
        return False
    before = scores[-2] if len(scores) >= 2 else trial.score
    return math.isnan(before) or scores[-1] > RISING * before


def is_short(member: Member, look: Look) -> bool:
    """True if the LRA is probably below its target now."""
    scores = member.scores
    if not scores or not look.clean or is_recovering(member):
        return False
    if scores[-1] < FAR or (len(scores) >= 2 and max(scores[-2:]) < 1.0 and mean(scores[-2:]) < 0.95):
        return True
    if len(scores) >= MILD and max(scores[-MILD:]) < 1.0 and mean(scores[-MILD:]) < 0.99:
        return True
    if is_often_short(scores, look.settings):
        return True
    if len(scores) < PATIENT:
        return False
    doubt = 0.5 * look.judged.noise_sd / math.sqrt(PATIENT)
    return -math.log(mean(scores[-PATIENT:])) > max(doubt, 0.01)


def judge_trial(member: Member, look: Look) -> TrialFinding:
    """Evaluate the member's last change of cores."""
    trial, settings = member.trial, look.settings
    if trial is None:
        return TrialFinding.OPEN
    shrunk = trial.after < trial.before
    if not look.clean:
        # A reduction that left far too little is reverted before everything has settled.
        far = shrunk and available(look.score) and look.score < WORSE_RATIO
        return TrialFinding.TOO_FEW if far else TrialFinding.OPEN
    if not member.scores:
        return TrialFinding.OPEN
    if shrunk:
        if is_short(member, look):
            return TrialFinding.TOO_FEW
        # Watch a barely sufficient number of cores for longer, and return the core at the first doubt.
        ticks = settings.evaluate_ticks * (1 if member.room >= AMPLE else PATIENCE)
        return (
            TrialFinding.ENOUGH if len(member.scores) >= ticks and member.level >= 1.0 else TrialFinding.OPEN
        )
    if len(member.scores) < settings.evaluate_ticks or (is_recovering(member) and member.scores[-1] < 1.0):
        return TrialFinding.OPEN
    level = mean(member.scores[-settings.evaluate_ticks :])
    if level >= 1.0:
        return TrialFinding.ENOUGH
    if math.isnan(trial.score) or level >= trial.score * HELPED_RATIO:
        return TrialFinding.TOO_FEW
    return TrialFinding.NO_HELP


def found_enough(member: Member, look: Look, now_s: float) -> Member:
    """Record that the present cores are enough, if the scores show that."""
    if len(member.scores) < 3 or member.demand is None or member.level < 1.0 or member.scores[-1] < 1.0:
        return member
    good = Seen(member.cores, member.demand, member.level, now_s + partition.GOOD_LASTS_S)
    seen = partition.note(member.seen, good, now_s, look.settings.regret_s)
    return replace(member, seen=seen, rescues=0, idle_times=0)


def found_too_few(member: Member, look: Look, now_s: float) -> Member:
    """Record that the present cores are too few.

    The longer the LRA was below target with them, the longer the record counts.
    """
    demand = member.demand if member.demand is not None else 0.0
    if member.trial is not None:
        # Everything takes longer on too few cores, so use the demand from before.
        demand = min(demand, member.trial.demand)
    else:
        demand *= ELSEWHERE
    bad = Seen(member.cores, demand, member.level if member.scores else 0.0, now_s, times=1)
    least_s = _lost_s(member) / partition.MOST_LOST
    return replace(member, seen=partition.note(member.seen, bad, now_s, look.settings.regret_s, least_s))


def _lost_s(member: Member) -> float:
    """Sampled seconds below target with the present cores; after a reduction, all seconds not seen on target."""
    trial = member.trial
    if trial is not None and trial.after < trial.before:
        return trial.lost_s
    spans = member.spans[len(member.spans) - len(member.scores) :]
    return sum(span_s for score, span_s in zip(member.scores, spans, strict=False) if score < 1.0)


def hierarchy_is_to_blame(look: Look) -> bool:
    """True if lack of cache or memory bandwidth makes instructions take clearly longer."""
    return look.judged.hierarchy in (Cause.LLC, Cause.MBW)
