"""One LRA's turn in one tick: judge what came, decide what follows.

Fast to relieve, slow to take back: growth follows a verdict at once, shrinking waits until the bound has stayed
above target. What is carried from tick to tick is ``LraState``, a value.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from perphd.admission import blind, culprit, inferer, memory, outcomes, pregrow, probing, quarantine
from perphd.admission import cause as causes
from perphd.admission.context import batch_is_quiet, batch_is_there
from perphd.admission.detector import DetectorState, Judgement, Target, judge, rearm, target_of
from perphd.admission.forecast import Expected, Forecast
from perphd.admission.giveback import GiveBack
from perphd.admission.inferer import Assessed
from perphd.admission.outcomes import Came, Pending, Regret, alive
from perphd.admission.quarantine import Quarantine
from perphd.admission.rescue import Move, Plight, rescue
from perphd.admission.scatter import mean
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation
from perphd.domain.decision import TROUBLED, Action, Cause, Decision, Health, Outcome, Verdict
from perphd.domain.policy import ResPerfModel, Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available, value_or
from perphd.domain.sample import is_short
from perphd.domain.signals import Performance, performance

ALERT_S = 30.0
"""For so long after batch arrived, trouble is expected and believed sooner."""
LOAD_ROSE = 1.2
"""Growth of the load that makes what was enough before no measure of what is enough now."""
LOADS = 5
"""Ticks whose median load is what was asked until now."""
FIRST_STRIDE = 2
"""Units of the first step back after a rescue that gave more than enough."""
SUDDEN_TICKS = 3
"""For so long after trouble began, what does not relieve it at once is not waited for; later, steps are looked at."""
BEYOND_STEP = 0.4
"""A score so low after one step back is not that step's doing alone: something else has come."""
ON_TARGET = "on target"
BELOW_UNDISTURBED = "below its objective, but nothing here contends with it: more of batch's would not help"
LEAST_SCORES = 30
"""Clean scores since the last change that are remembered, at least."""


@dataclass(frozen=True, slots=True)
class LraState:
    """What is remembered about one LRA. ``scores``: clean scores since the last change, newest last.

    ``stride``: how many units may be given back at once: twice as many after each step back that left more than
    enough, one after anything else.
    ``moments``: shortfall and batch's samples of the last ticks, to find out who is to blame. ``loads``: what was asked
    of it in the last ticks.
    """

    first_seen_s: float
    detector: DetectorState = DetectorState()
    pending: Pending | None = None
    scores: tuple[float, ...] = ()
    slack_since_s: float | None = None
    stride: int = 1
    quiet_since_s: float | None = None
    busy_since_s: float | None = None
    unknown_since_s: float | None = None
    regrets: tuple[Regret, ...] = ()
    quarantine: Quarantine = Quarantine()
    forecasts: tuple[Forecast, ...] = pregrow.NO_FORECASTS
    moments: tuple[culprit.Moment, ...] = ()
    aside: probing.Probing = probing.Probing()
    loads: tuple[float, ...] = ()

    @classmethod
    def new(cls, now_s: float) -> LraState:
        """The state of an LRA that is seen for the first time."""
        return cls(first_seen_s=now_s, detector=DetectorState(since_s=now_s))

    def anew(self) -> LraState:
        """The same after others have decided for it: what was in hand is void, what was learned stays."""
        return replace(
            LraState(self.first_seen_s),
            detector=replace(rearm(self.detector), health=Health.UNKNOWN),
            regrets=self.regrets,
            quarantine=self.quarantine,
            forecasts=self.forecasts,
            aside=self.aside,
        )


class Turn:
    """One LRA's turn in one tick. Holds the working values of a single decision; never outlives it."""

    def __init__(
        self, settings: PolicySettings, snapshot: Snapshot, view: WorkloadView, state: LraState
    ) -> None:
        self.scene, self.state = Scene(settings, snapshot, view), state
        self.settings, self.snapshot, self.view = settings, snapshot, view
        self.nothing, self.current, self.now_s = self.scene.nothing, self.scene.current, self.scene.now_s
        self.outcome: Outcome | None = None
        self._blatant: float | None = None
        self.target = Target(Unavailable("not sampled"), Unavailable("not sampled"))

    def run(self) -> Decision:
        """Judge, then decide; updates ``state`` and ``outcome``."""
        view = self.view
        if view.sample is None or view.model is None:
            # What was in hand is void: the application that comes back begins anew.
            self.state = replace(
                self.state,
                pending=None,
                scores=(),
                slack_since_s=None,
                unknown_since_s=None,
                stride=1,
                moments=(),
                aside=self.state.aside.back(),
            )
            reason = f"waiting for cgroup {view.spec.cgroup}: it does not exist"
            verdict = Verdict(Health.UNKNOWN, Cause.NONE, self.now_s, ())
            return self._record(verdict, Move(Action.RELEASE, self.nothing, reason))
        perf = performance(view.sample, view.spec.objective.latency_percentile)
        if self.state.pending is not None and self.state.pending.after != self.current:
            # What was decided is not what is in force (refused, undone, restored): there is nothing to judge, and
            # deciding the same again at once would only be refused again.
            if self.state.pending.before == self.current and view.enforced:
                self._regret(self.state.pending.after)
            self.state = replace(self.state, pending=None)
        self.target = target_of(view.spec.objective, view.model, perf, self.settings)
        self._note_batch()
        judged = judge(
            self.state.detector,
            view.sample,
            perf,
            self.target,
            view.model,
            self.settings,
            alert=self._is_alert(),
            protected=self.current != self.nothing,
            around=causes.surroundings(self.snapshot),
            period_s=self.snapshot.period_s,
            rising=self._is_rising(perf),
        )
        self._blatant = judged.score if judged.blatant and available(judged.score) else None
        clean = self.scene.is_clean()
        whole = not is_short(view.sample, self.snapshot.period_s)  # a glance between two ticks scatters more
        if clean and available(judged.score) and whole:
            most = max(LEAST_SCORES, outcomes.PATIENCE * self.settings.evaluate_ticks)
            scores = (*self.state.scores, min(judged.score, 10.0))[-most:]
            self.state = replace(self.state, detector=judged.state, scores=scores)
        elif not clean:
            # An own change is still taking effect: look, but do not hold it against the LRA.
            self.state = replace(self.state, detector=rearm(judged.state))
        else:
            self.state = replace(self.state, detector=judged.state)
        if available(judged.score) and whole:
            shortfall = -math.log(min(max(judged.score, 1e-3), 10.0))
            moment = culprit.Moment(shortfall, culprit.uses(self.snapshot))
            self.state = replace(self.state, moments=(*self.state.moments, moment)[-culprit.WINDOW :])
        foreseen = self._foresee(perf) if self.settings.forecast else None
        move = self._move(judged, perf, view.model, clean)
        if foreseen is not None and judged.verdict.health is Health.HEALTHY and clean:
            move = self._prepare(move, view.model, perf, foreseen)
        if move.chosen != self.current and view.enforced:
            self._remember_change(move)
        verdict = judged.verdict
        if foreseen is not None:
            told = pregrow.evidence(foreseen, perf.load)
            verdict = replace(verdict, evidence=(*verdict.evidence, told))
        if verdict.health in TROUBLED:
            verdict = replace(verdict, culprit=culprit.find(self.state.moments, verdict.cause))
        if verdict.health is Health.HEALTHY and self.state.slack_since_s is not None:
            verdict = replace(verdict, health=Health.OVERPROVISIONED, since_s=self.state.slack_since_s)
        return self._record(verdict, move)

    # -- what to do ---------------------------------------------------------------------------------

    def _move(self, judged: Judgement, perf: Performance, model: ResPerfModel, clean: bool) -> Move:
        if self.state.quiet_since_s is not None:
            return self._when_quiet()
        if not available(judged.score):
            return self._when_unknown(judged, perf)
        is_blind = self.target.work_band is None and self.target.delay_band is None
        if not is_blind:
            self.state = replace(self.state, unknown_since_s=None)
        pending = self.state.pending
        if pending is not None and pending.action is Action.SHRINK and judged.blatant:
            # Taking back does not wait: whatever is still settling, this is far too little.
            return self._relieved_after(pending, judged, perf, model)
        if not clean and pending is not None and judged.blatant and self._load_rose(perf, pending):
            # What was decided was for a load that is no more.
            self.state = replace(self.state, pending=None)
            return self._rescue(judged, model, "its load goes on rising: ")
        sudden = self.now_s - judged.verdict.since_s <= SUDDEN_TICKS * self.snapshot.period_s
        if pending is not None and judged.blatant and sudden and outcomes.is_no_better(pending, judged.score):
            self.state = replace(self.state, pending=None)
            return self._rescue(judged, model, "the last step has not helped: ")
        if not clean:
            return self._hold("the last change is settling")
        if is_blind and self.current != self.nothing:
            given_up = blind.give_up(self.scene, self._unknown_for_s())
            if given_up is not None:
                return self._with_regret(given_up)
        if is_blind and judged.verdict.health is Health.DEGRADED and self.current == self.nothing:
            why = "below its objective, and what it does undisturbed is not known yet"
            return blind.probe(self.scene, why, alive(self.state.regrets, self.now_s))
        if self.state.pending is not None:
            after = self._judge_pending(self.state.pending, judged.noise_sd)
            if after is not None:
                return after
        if judged.verdict.health is Health.DEGRADED:
            protected = memory.protect(self.scene, alive(self.state.regrets, self.now_s))
            if protected is not None:
                return self._with_regret(protected)
        if self._is_alert() and not is_blind and not self._quarantined and self._foresees_trouble(model):
            return self._rescue(
                judged, model, "batch has come, and beside it the target is expected to be missed: "
            )
        if judged.verdict.health is Health.DEGRADED:
            if judged.score >= 1.0:
                return self._hold("back on target; watching")
            short = outcomes.still_short(self.state.scores, judged.noise_sd, self.settings)
            if not judged.confirmed and not short:
                return self._hold("below target, but no further than its samples scatter: watching")
            if is_blind:
                return self._climb(judged)  # what it does undisturbed is not known: rung by rung
            if why := causes.nothing_to_give(judged.verdict.cause):
                return self._hold(why)
            return self._rescue(judged, model)
        if self._grazes(judged):
            return self._rescue(judged, model, "below its target too often: ")
        return self._give_back(judged, model)

    def _grazes(self, judged: Judgement) -> bool:
        """True if what is in force is just too little: on target in the mean, and below it again and again."""
        below = judged.verdict.health is Health.SUSPECT and not causes.nothing_to_give(judged.verdict.cause)
        return (
            below
            and self.current != self.nothing
            and outcomes.is_often_short(self.state.scores, self.settings)
        )

    def _relieved_after(
        self, pending: Pending, judged: Judgement, perf: Performance, model: ResPerfModel
    ) -> Move:
        """What follows a step back that left far too little: more than there was before, or that again."""
        why = ""
        if self._load_rose(perf, pending):
            why = "its load has risen: "
        elif self._blatant is not None and self._blatant < BEYOND_STEP and not self._quarantined:
            why = "far below its target, more than the last step explains: "
        if why:
            self.state = replace(self.state, pending=None)
            move = self._rescue(judged, model, why)
            acts = move.action in (Action.GROW, Action.EXPLORE)
            if acts and not inferer.asks_no_more(move.chosen, pending.before):
                return move
        return self._undo(pending, f"score {value_or(judged.score, 0.0):.2f}: far too little is left")

    @staticmethod
    def _load_rose(perf: Performance, pending: Pending) -> bool:
        """True if clearly more is asked of it than when that change was decided."""
        return available(perf.load) and available(pending.load) and perf.load > LOAD_ROSE * pending.load

    def _is_rising(self, perf: Performance) -> bool:
        """True if clearly more is asked of it than in the last ticks."""
        known = self.state.loads
        rising = available(perf.load) and bool(known) and perf.load > LOAD_ROSE * statistics.median(known)
        if available(perf.load):
            self.state = replace(self.state, loads=(*known, perf.load)[-LOADS:])
        return rising

    def _rescue(self, judged: Judgement, model: ResPerfModel, why: str = "") -> Move:
        self.state = replace(self.state, slack_since_s=None, stride=1)
        if self._quarantined:
            return self._climb(judged)
        plight = Plight(judged, self.state.scores, alive(self.state.regrets, self.now_s))
        move = self._with_regret(rescue(self.scene, model, self.target, plight))
        return replace(move, reason=why + move.reason)

    def _with_regret(self, move: Move) -> Move:
        if move.regret is not None:
            self._regret(move.regret)
        return move

    def _foresee(self, perf: Performance) -> Expected | None:
        """The growth of its load that is to be prepared for, if one is expected."""
        forecasts = pregrow.observe(self.state.forecasts, perf.load, self.now_s)
        self.state = replace(self.state, forecasts=forecasts)
        settings = self.settings
        return pregrow.spike(forecasts, perf.load, settings.forecast_horizon_s, settings.forecast_growth)

    def _prepare(self, move: Move, model: ResPerfModel, perf: Performance, foreseen: Expected) -> Move:
        """Nothing is given back before a spike, and what is idle is taken for it."""
        if move.action not in (Action.HOLD, Action.SHRINK) or self.state.quiet_since_s is not None:
            return move
        if self.state.pending is None and not self._quarantined:
            step = pregrow.advise(self.scene, model, self.target, perf.load, foreseen)
            if step is not None and not self._is_regretted(step):
                return Move(Action.GROW, step, "a load spike is expected: it gets what is idle")
        return (
            self._hold("a load spike is expected: nothing is given back")
            if move.action is Action.SHRINK
            else move
        )

    @property
    def _quarantined(self) -> bool:
        """True while the model's advice is not asked for: it failed too often."""
        return self.state.quarantine.active(self.now_s)

    def _climb(self, judged: Judgement) -> Move:
        """A rescue without the model."""
        score = mean(self.state.scores[-5:]) if self.state.scores else value_or(judged.score, 1.0)
        cause = judged.hierarchy if judged.hierarchy is not Cause.NONE else judged.verdict.cause
        barred = alive(self.state.regrets, self.now_s)
        found = quarantine.climb(self.scene, cause, barred, self.state.quarantine, score)
        if found is None:
            return self._hold("best effort: the model's advice has failed, and the ladder is at its end")
        step, why = found
        self._regret(self.current)  # it did not do: not again soon
        return Move(Action.GROW, step, why)

    def _descend(self) -> Move:
        """A step back without the model, one rung at a time."""
        step = quarantine.descend(self.scene, alive(self.state.regrets, self.now_s))
        if step is None:
            return self._hold(
                "on target; the model's advice has failed, and no rung below is to be tried now"
            )
        since_s = self.state.slack_since_s if self.state.slack_since_s is not None else self.now_s
        self.state = replace(self.state, slack_since_s=since_s)
        if self.now_s - since_s < self.settings.shrink_after_s:
            return self._hold("more than enough; waiting before a rung is given back")
        return Move(Action.SHRINK, step, "more than enough for long enough: one rung back, without the model")

    def _foresees_trouble(self, model: ResPerfModel) -> bool:
        """True if beside so much batch the target has no fair chance: harm is not waited for, only proven absent."""
        if not (self.settings.precaution and self.view.enforced):
            return False
        here = self.scene.assess_these([self.current], model, self.target)[0]
        return inferer.chance(here.prediction, 1.0, self.settings.confidence_z) < inferer.FAIR

    def _give_back(self, judged: Judgement, model: ResPerfModel) -> Move:
        if judged.verdict.health is not Health.HEALTHY:
            # One sample below target is no news where samples scatter: what was gathered about slack stays.
            return self._hold("watching")
        on_target = ON_TARGET if value_or(judged.score, 1.0) >= 1.0 else BELOW_UNDISTURBED
        if self.current == self.nothing and not self.scene.batch_is_starved():
            return self._hold(on_target)
        if self._quarantined:
            return self._descend()
        stride, regretted = self.state.stride, alive(self.state.regrets, self.now_s)
        back = GiveBack(self.scene, model, self.target, regretted, stride)
        home = self.state.aside.way_home(self.current)
        if home is not None and not back.is_weaker_than_regretted(home):
            self.state = replace(self.state, aside=self.state.aside.back())
            return Move(Action.SHRINK, home, "the step aside is over: back to where it was")
        assessed = self.scene.assess(model, self.target)
        current = next(a for a in assessed if a.allocation == self.current)
        smaller = back.smaller(assessed, current)
        if smaller is None:
            self._lose_slack()
            if (aside := self._step_aside(judged, assessed, model)) is not None:
                return aside
            text = "just enough: nothing smaller is predicted to keep the target"
            return self._hold(text if self.current != self.nothing else on_target)
        since_s = self.state.slack_since_s if self.state.slack_since_s is not None else self.now_s
        self.state = replace(self.state, slack_since_s=since_s)
        stakes = self.scene.stakes
        sure = inferer.chance(smaller.prediction, stakes.need, stakes.z) >= inferer.SURE
        waits_s = (0.0, self.settings.shrink_sure_after_s, self.settings.shrink_after_s)
        # Where the last step has left more than enough there is no need to look long; there is where some were undone.
        wait_s = waits_s[(not sure) + (stride == 1)] * outcomes.patience(regretted)
        if self.now_s - since_s < wait_s:
            return self._hold("more than enough; waiting before a step is given back")
        reason = "more than enough for long enough: a step that leaves batch more"
        reason += " and is as good as certain to keep the target" if sure else ""
        candidates = self.scene.candidates(assessed, smaller, current)
        return Move(Action.SHRINK, smaller.allocation, reason, candidates)

    def _step_aside(
        self, judged: Judgement, assessed: tuple[Assessed, ...], model: ResPerfModel
    ) -> Move | None:
        """Where all that could be given back is: see ``probing``."""
        barred, since_s = alive(self.state.regrets, self.now_s), judged.verdict.since_s
        known = self.state.aside, self.state.scores
        found = probing.aside(self.scene, model, self.target, assessed, *known, barred, since_s)
        if found is None:
            return None
        self.state = replace(self.state, aside=found[1], stride=1)
        return found[0]

    def _when_quiet(self) -> Move:
        since_s = self.state.quiet_since_s if self.state.quiet_since_s is not None else self.now_s
        if self.current == self.nothing:
            return self._hold("no batch work is running")
        if self.now_s - since_s < self.settings.release_after_s:
            return self._hold("batch is idle or gone; waiting before everything is given back")
        return Move(Action.RELEASE, self.nothing, "batch is idle or gone: everything is given back")

    def _when_unknown(self, judged: Judgement, perf: Performance) -> Move:
        reason = judged.score.reason if isinstance(judged.score, Unavailable) else ""
        may_probe = not self.target.known and available(perf.work)
        regretted = alive(self.state.regrets, self.now_s)
        return self._with_regret(
            blind.when_unknown(self.scene, reason, self._unknown_for_s(), may_probe, regretted)
        )

    def _unknown_for_s(self) -> float:
        """For how long it could not be judged, or what it does undisturbed is not known."""
        since_s = self.state.unknown_since_s if self.state.unknown_since_s is not None else self.now_s
        self.state = replace(self.state, unknown_since_s=since_s)
        return self.now_s - since_s

    def _is_regretted(self, allocation: Allocation) -> bool:
        return allocation in alive(self.state.regrets, self.now_s)

    # -- what came of it ----------------------------------------------------------------------------

    def _judge_pending(self, pending: Pending, noise_sd: float) -> Move | None:
        """The move that follows from what came of the last change; None if it stands."""
        if not self.state.scores:
            return self._hold("the last change is being judged")
        came = outcomes.judge(pending, self.state.scores, noise_sd, self.nothing, self.settings)
        if came is Came.OPEN:
            return self._hold("the last change is being judged")
        before, after = pending.score_before, mean(self.state.scores)
        held = quarantine.judged(self.state.quarantine, pending, came, after, self.now_s, self.settings)
        self.state = replace(self.state, quarantine=held)
        # Cache and bandwidth that did not help are batch's again at once: the next dimension is tried instead.
        idle_step = came is Came.NO_HELP and pending.before.cpu == pending.after.cpu
        idle_step = idle_step and pending.before.memory_bytes == pending.after.memory_bytes
        undo = came in (Came.TOO_LITTLE, Came.WORSE) or idle_step
        text = f"score {value_or(before, math.nan):.2f} -> {after:.2f}: {came}"
        self.outcome = Outcome(
            self.now_s, self.view.spec.name, pending.at_s, before, after, kept=not undo, text=text
        )
        doubt = noise_sd / math.sqrt(len(self.state.scores))
        if came is not Came.HELPED:
            stride = 1
        elif pending.action is Action.SHRINK:
            levels = self.snapshot.host.mba_levels_pct
            units = outcomes.units_between(pending.before, pending.after, levels)
            stride = outcomes.next_stride(units, before, after, doubt)
        else:
            rescued = self.state.aside.out != pending.after and outcomes.is_ample(self.state.scores, noise_sd)
            stride = FIRST_STRIDE if rescued else 1
        self.state = replace(self.state, pending=None, stride=stride)
        return self._undo(pending, text) if undo else None

    def _undo(self, pending: Pending, why: str) -> Move:
        wait_s = self._regret(pending.after)
        kept = tuple(r for r in self.state.regrets if r.allocation != pending.before)
        self.state = replace(self.state, pending=None, slack_since_s=None, regrets=kept, stride=1)
        reason = f"{why}: taken back, nothing like it is tried for {wait_s:.0f} s"
        return Move(Action.ROLLBACK, pending.before, reason)

    def _regret(self, allocation: Allocation) -> float:
        if not self.view.enforced:
            return 0.0  # what is only watched has shown nothing of what was decided
        regrets, wait_s = outcomes.regret(self.state.regrets, allocation, self.now_s, self.settings.regret_s)
        self.state = replace(self.state, regrets=regrets)
        return wait_s

    def _remember_change(self, move: Move) -> None:
        score: Reading = Unavailable("no clean score before")
        if self._blatant is not None:
            score = self._blatant  # that is what the change is to cure, not the good time before
        elif self.state.scores:
            score = mean(self.state.scores[-3:])
        pending = None
        if move.action in (Action.GROW, Action.EXPLORE, Action.SHRINK):
            load = self.view.sample.load_per_s if self.view.sample is not None else NOT_MEASURED
            pending = Pending(self.now_s, self.current, move.chosen, move.action, score, load)
        # A step aside that something else has overtaken is not gone back from.
        aside = self.state.aside if move.chosen == self.state.aside.out else self.state.aside.back()
        self.state = replace(
            self.state,
            pending=pending,
            aside=aside,
            scores=(),
            slack_since_s=None,
            unknown_since_s=None,
            detector=rearm(self.state.detector),
        )

    def _lose_slack(self) -> None:
        """A tick in which nothing could be given back takes away what a tick with slack has gained."""
        since_s = self.state.slack_since_s
        if since_s is not None:
            later_s = since_s + 2.0 * self.snapshot.period_s
            self.state = replace(self.state, slack_since_s=later_s if later_s < self.now_s else None)

    # -- helpers ------------------------------------------------------------------------------------

    def _note_batch(self) -> None:
        """Note since when batch is quiet, or busy."""
        quiet = batch_is_quiet(self.snapshot, self.settings.batch_idle_cores, self.current != self.nothing)
        if self.scene.memory_pressed() and batch_is_there(self.snapshot):
            quiet = False  # it can also be in the way asleep, on the memory that it holds
        quiet_since_s, busy_since_s = self.state.quiet_since_s, self.state.busy_since_s
        if quiet:
            quiet_since_s = self.now_s if quiet_since_s is None else quiet_since_s
        else:
            busy_since_s = self.now_s if busy_since_s is None else busy_since_s
        self.state = replace(
            self.state,
            quiet_since_s=quiet_since_s if quiet else None,
            busy_since_s=None if quiet else busy_since_s,
        )

    def _is_alert(self) -> bool:
        """True while batch has just arrived and nothing is done about it yet."""
        since_s = self.state.busy_since_s
        return self.current == self.nothing and since_s is not None and self.now_s - since_s <= ALERT_S

    def _hold(self, reason: str) -> Move:
        return Move(Action.HOLD, self.current, reason)

    def _record(self, verdict: Verdict, move: Move) -> Decision:
        return Decision(
            at_s=self.now_s,
            workload=self.view.spec.name,
            verdict=verdict,
            action=move.action,
            target_work=self.target.work,
            target_delay=self.target.delay,
            current=self.current,
            chosen=move.chosen,
            candidates=move.candidates,
            reason=move.reason,
            policy="",
        )
