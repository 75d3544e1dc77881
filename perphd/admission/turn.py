"""One LRA's turn in one tick: look at the sample, decide what follows.

Fast to relieve, slow to take back: growth follows a verdict at once, shrinking waits until the bound has stayed
above target. What is carried from tick to tick is a value (``lra_state``); what comes of a change is told by
``sequel``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perphd.admission import (
    awaited,
    blind,
    culprit,
    inferer,
    memory,
    origin,
    outcomes,
    pregrow,
    probing,
    quarantine,
    reach,
    sequel,
)
from perphd.admission import cause as causes
from perphd.admission.context import batch_is_quiet, batch_is_there
from perphd.admission.detector import Judgement, Target, judge, rearm, standing, target_of
from perphd.admission.gathering import Awaiting, gathered_by
from perphd.admission.giveback import GiveBack
from perphd.admission.inferer import Assessed
from perphd.admission.lra_state import LraState, Standing
from perphd.admission.outcomes import Pending, alive
from perphd.admission.rescue import AS_GOOD, Move, Plight, rescue
from perphd.admission.scatter import mean
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings
from perphd.admission.significance import UNKNOWN_NOISE_SD
from perphd.admission.thresholds import FAIR
from perphd.domain.allocation import Allocation
from perphd.domain.decision import TROUBLED, Action, Cause, Decision, Health, Outcome, Verdict
from perphd.domain.policy import ResPerfModel, Snapshot, WorkloadView
from perphd.domain.reading import Unavailable, available, value_or
from perphd.domain.sample import Sample, is_short
from perphd.domain.signals import Performance, performance
from perphd.domain.workload import Exploration
from perphd.forecast.load import Expected

ALERT_S = 30.0
"""For so long after batch arrived, trouble is expected and believed sooner."""
ON_TARGET = "on target"
BELOW_UNDISTURBED = "below its objective, but nothing here contends with it: more of batch's would not help"
COME = "batch has come, and beside it the target is expected to be missed: "
LEAST_SCORES = 30
"""Clean scores since the last change that are remembered, at least."""


class Turn:
    """One LRA's turn in one tick. Holds the working values of a single decision; never outlives it."""

    def __init__(
        self, settings: PolicySettings, snapshot: Snapshot, view: WorkloadView, state: LraState
    ) -> None:
        self.scene, self.state = Scene(settings, snapshot, view), state
        self.settings, self.snapshot, self.view = settings, snapshot, view
        self.nothing, self.current, self.now_s = self.scene.nothing, self.scene.current, self.scene.now_s
        self.outcome: Outcome | None = None
        self.target = Target(Unavailable("not sampled"), Unavailable("not sampled"))

    def run(self) -> Decision:
        """Judge, then decide; updates ``state`` and ``outcome``."""
        view = self.view
        if view.sample is None or view.model is None:
            self.state = self.state.gone()
            reason = f"waiting for cgroup {view.spec.cgroup}: it does not exist"
            verdict = Verdict(Health.UNKNOWN, Cause.NONE, self.now_s, ())
            return self._record(verdict, Move(Action.RELEASE, self.nothing, reason))
        gathered, found = gathered_by(
            self.state.detector.gathered, view, self.settings, self.snapshot.period_s
        )
        if gathered is not self.state.detector.gathered:
            self.state = replace(self.state, detector=replace(self.state.detector, gathered=gathered))
        if isinstance(found, Awaiting):
            return self._stand(found, view.model)
        if found is not view.sample:
            self.view = replace(view, sample=found)
            self.scene = Scene(self.settings, self.snapshot, self.view)
        return self._judged(self.view, found, view.model)

    def _judged(self, view: WorkloadView, sample: Sample, model: ResPerfModel) -> Decision:
        perf = performance(sample, view.spec.objective.latency_percentile)
        self._follow_in_force()
        self.target = target_of(view.spec.objective, model, perf, self.settings)
        self.state = self.state.beside(self._batch_is_quiet(), self.now_s)
        rising = self.state.is_rising(perf.load)
        self.state = self.state.asked(perf.load)
        judged = judge(
            self.state.detector,
            sample,
            perf,
            self.target,
            model,
            self.settings,
            alert=self._is_alert(),
            protected=self.current != self.nothing,
            around=causes.surroundings(self.snapshot),
            period_s=self.snapshot.period_s,
            rising=rising,
            beside_batch=self.state.quiet_since_s is None,
        )
        clean = self.scene.is_clean()
        whole = not is_short(sample, self.snapshot.period_s)  # a glance between two ticks scatters more
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
        move = self._move_within_reach(judged, perf, model, clean)
        if foreseen is not None and judged.verdict.health is Health.HEALTHY and clean:
            move = self._prepare(move, model, perf, foreseen)
        move = awaited.of_cpus(self.scene, self.state.awaited, move)
        if move.chosen != self.current and view.enforced:
            self.state = sequel.decided(self.scene, self.state, move, judged)
        verdict = judged.verdict
        if foreseen is not None:
            told = pregrow.evidence(foreseen, perf.load)
            verdict = replace(verdict, evidence=(*verdict.evidence, told))
        if verdict.health in TROUBLED:
            named, against = culprit.accuse(self.state.moments, verdict.cause)
            verdict = replace(verdict, culprit=named, evidence=(*verdict.evidence, *against))
        if verdict.health is Health.HEALTHY and self.state.slack_since_s is not None:
            verdict = replace(verdict, health=Health.OVERPROVISIONED, since_s=self.state.slack_since_s)
        held = move.reason if move.action is Action.HOLD else "the last change is settling"
        self.state = replace(self.state, standing=Standing(held, self.target, verdict.culprit))
        return self._record(verdict, move)

    def _stand(self, awaiting: Awaiting, model: ResPerfModel) -> Decision:
        """A tick whose sample cannot be judged yet: the last verdict stands, and only batch that came is acted on."""
        self._follow_in_force()
        self.state = self.state.beside(self._batch_is_quiet(), self.now_s)
        known, verdict = self.state.standing, standing(self.state.detector, awaiting)
        if known is not None:
            self.target = known.target
            verdict = replace(verdict, culprit=known.culprit)
        move = self._hold(known.reason if known is not None else awaiting.text)
        if self.state.quiet_since_s is not None:
            move = self._when_quiet()
        elif self._is_alert() and self.state.pending is None and self.state.scores:
            score = mean(self.state.scores[-3:])
            sd = self.state.detector.scatter.sd
            judged = Judgement(verdict, self.state.detector, score, UNKNOWN_NOISE_SD if sd is None else sd)
            if not self._unadvised and self._foresees_trouble(model):
                move = self._rescue(judged, model, COME)
                move = awaited.of_cpus(self.scene, self.state.awaited, move)
                if move.chosen != self.current and self.view.enforced:
                    self.state = sequel.decided(self.scene, self.state, move, judged)
        if verdict.health is Health.HEALTHY and self.state.slack_since_s is not None:
            verdict = replace(verdict, health=Health.OVERPROVISIONED, since_s=self.state.slack_since_s)
        return self._record(verdict, move)

    # -- what to do ---------------------------------------------------------------------------------

    def _move(self, judged: Judgement, perf: Performance, model: ResPerfModel, clean: bool) -> Move:
        if self.state.quiet_since_s is not None:
            return self._when_quiet()
        if not available(judged.score):
            return self._when_unknown(judged, perf)
        self.state = replace(self.state, unknown_since_s=None)
        pending = self.state.pending
        if pending is not None and pending.action is Action.SHRINK and judged.blatant:
            # Taking back does not wait: whatever is still settling, this is far too little.
            return self._relieved_after(pending, judged, perf, model)
        if pending is not None and (why := sequel.overtaken(self.scene, pending, judged, perf.load)):
            if not pending.unproven:
                self.state = replace(self.state, pending=None)
                return self._rescue(judged, model, why)
            if (step := self._instead_of_undoing(pending)) is not None:
                return step
        if not clean:
            return self._hold("the last change is settling")
        if pending is not None:
            came = sequel.judge(self.scene, self.state, pending, judged.noise_sd)
            if came is None:
                return self._hold("the last change is being judged")
            self.outcome = came.outcome
            if came.undo is not None and (step := self._instead_of_undoing(pending)) is not None:
                return step
            self.state = came.state
            if came.undo is not None:
                return came.undo
        if judged.verdict.health is Health.DEGRADED:
            protected = memory.protect(self.scene, self._regretted)
            if protected is not None:
                return self._with_regret(protected)
        if self._is_alert() and not self._unadvised and self._foresees_trouble(model):
            return self._rescue(judged, model, COME)
        if judged.verdict.health is Health.DEGRADED:
            if judged.score >= 1.0:
                return self._hold("back on target; watching")
            short = outcomes.still_short(self.state.scores, judged.noise_sd, self.settings)
            if not judged.confirmed and not short:
                return self._hold("below target, but no further than its samples scatter: watching")
            if self.current == self.nothing and self._does_as_undisturbed():
                return self._hold(BELOW_UNDISTURBED)
            if why := origin.nothing_to_give(judged.verdict.cause, self.snapshot.host.account):
                return self._hold(why)
            return self._rescue(judged, model)
        if self._grazes(judged):
            before, move = self.state, self._rescue(judged, model, "likely below its target, or too often: ")
            if move.action is Action.HOLD or not inferer.asks_no_more(move.chosen, self.current):
                return move
            self.state = before  # on a suspicion nothing is taken from an LRA
            return self._hold("likely below its target, and nothing stronger is expected to help: watching")
        return self._give_back(judged, model)

    def _instead_of_undoing(self, pending: Pending) -> Move | None:
        """What is tried after a step that nothing spoke for and that has not helped; None: it was the last of them.

        If that does not help either, all of them are taken back at once.
        """
        if not pending.unproven:
            return None
        step = blind.relieve(self.scene, self.target, (), self._regretted)
        if step is None or step.action is not Action.GROW:
            return None
        self.state = replace(self.state, pending=None)
        return replace(step, home=pending.origin)

    def _does_as_undisturbed(self) -> bool:
        """True if its objective is out of reach, and it does as well as it surely does undisturbed."""
        reach = self.target.reach
        return (
            not self.target.is_provisional
            and reach < 1.0
            and bool(self.state.scores)
            and mean(self.state.scores[-3:]) >= AS_GOOD * reach
        )

    def _move_within_reach(
        self, judged: Judgement, perf: Performance, model: ResPerfModel, clean: bool
    ) -> Move:
        """The move, unless the target was found to be out of reach, or what is to be tried may not be."""
        exploration = self.view.spec.exploration
        if exploration is Exploration.ALL or not self.view.enforced:
            move = self._move(judged, perf, model, clean)
        else:
            known = reach.having(self.state.reach, reach.instruments(self.scene))
            known = reach.seen(known, self.current, judged.score, self.now_s, clean=clean)
            known, held = reach.standing(known, self.current, self.now_s)
            if held is not None and self.state.quiet_since_s is None:
                self.state = replace(self.state, reach=known, pending=None)
                return held
            move = self._move(judged, perf, model, clean)
            strongest = reach.strongest(self.scene)
            known, move = reach.checked(known, move, self.current, self.now_s, self.state.scores, strongest)
            self.state = replace(self.state, reach=known)
        why_not = reach.may_try(exploration, move, self.current)
        return self._hold(why_not) if why_not else move

    def _grazes(self, judged: Judgement) -> bool:
        """True if what is in force is just too little: likely short, or below target again and again.

        At just enough, or as batch has come, an LRA is often short, and a step too many costs less than waiting. Less
        evidence is enough than for the verdict, whose rate of false alarms is that of an LRA with tolerance to spare.
        """
        below = judged.verdict.health is Health.SUSPECT and not origin.nothing_to_give(
            judged.verdict.cause, self.snapshot.host.account
        )
        held = self.current != self.nothing
        if not below or (not held and self._does_as_undisturbed()):
            return False
        often = held and outcomes.is_often_short(self.state.scores, self.settings)
        return often or (judged.likely and (held or self._is_alert()))

    def _relieved_after(
        self, pending: Pending, judged: Judgement, perf: Performance, model: ResPerfModel
    ) -> Move:
        """What follows a step back that left far too little: more than there was before, or that again."""
        score = value_or(judged.score, 0.0)
        if why := sequel.beyond(self.scene, self.state, pending, score, perf.load):
            self.state = replace(self.state, pending=None)
            move = self._rescue(judged, model, why)
            acts = move.action in (Action.GROW, Action.EXPLORE)
            if acts and not inferer.asks_no_more(move.chosen, pending.before):
                return move
        why = f"score {score:.2f}: far too little is left"
        self.state, undo = sequel.undone(self.scene, self.state, pending, why)
        return undo

    def _rescue(self, judged: Judgement, model: ResPerfModel, why: str = "") -> Move:
        self.state = replace(self.state, slack_since_s=None, stride=1)
        if self._unadvised:
            return self._climb(judged)
        plight = Plight(judged, self.state.scores, self._regretted)
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
            if step is not None and step not in self._regretted:
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

    @property
    def _unadvised(self) -> bool:
        """True while no model can be asked: its advice failed, or what the LRA does undisturbed is not known."""
        return self._quarantined or not self.target.has_reference

    @property
    def _why_unadvised(self) -> str:
        return "the model's advice has failed" if self._quarantined else blind.UNREFERENCED

    def _climb(self, judged: Judgement) -> Move:
        """A rescue without the model."""
        barred = self._regretted
        if (step := blind.relieve(self.scene, self.target, self.state.scores, barred)) is not None:
            return step
        score = mean(self.state.scores[-5:]) if self.state.scores else value_or(judged.score, 1.0)
        cause = judged.hierarchy if judged.hierarchy is not Cause.NONE else judged.verdict.cause
        found = quarantine.climb(self.scene, cause, barred, self.state.quarantine, score)
        if found is None:
            return self._hold(f"best effort: {self._why_unadvised}, and the ladder is at its end")
        rung, why = found
        self._regret(self.current)  # it did not do: not again soon
        unproven = not self.target.has_reference
        return Move(Action.GROW, rung, f"{self._why_unadvised}: {why}", unproven=unproven)

    def _descend(self) -> Move:
        """A step back without the model, one rung at a time."""
        step = quarantine.descend(self.scene, self._regretted)
        if step is None:
            return self._hold(f"on target; {self._why_unadvised}, and no rung below is to be tried now")
        patience = outcomes.patience((), self._harmed)
        if self._slack_for_s() < self.settings.shrink_after_s * patience:
            return self._hold("more than enough; waiting before a rung is given back")
        return Move(Action.SHRINK, step, "more than enough for long enough: one rung back, without the model")

    def _foresees_trouble(self, model: ResPerfModel) -> bool:
        """True if beside so much batch the target has no fair chance: harm is not waited for, only proven absent."""
        if not (self.settings.precaution and self.view.enforced):
            return False
        here = self.scene.assess_these([self.current], model, self.target)[0]
        # What is out of reach is no harm: that is to do worse than undisturbed.
        need = min(1.0, AS_GOOD * self.target.reach)
        return inferer.chance(here.prediction, need, self.settings.confidence_z) < FAIR

    def _give_back(self, judged: Judgement, model: ResPerfModel) -> Move:
        if judged.verdict.health is not Health.HEALTHY:
            # One sample below target is no news where samples scatter: what was gathered about slack stays.
            return self._hold("watching")
        on_target = ON_TARGET if value_or(judged.score, 1.0) >= 1.0 else BELOW_UNDISTURBED
        if self.current == self.nothing and not self.scene.batch_is_starved():
            return self._hold(on_target)
        if self._unadvised:
            return self._descend()
        stride, regretted = self.state.stride, self._regretted
        back = GiveBack(self.scene, model, self.target, regretted, stride, self._harmed)
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
        return back.move(assessed, current, smaller, self._slack_for_s())

    def _step_aside(
        self, judged: Judgement, assessed: tuple[Assessed, ...], model: ResPerfModel
    ) -> Move | None:
        """Where all that could be given back is: see ``probing``."""
        if self.view.spec.exploration is not Exploration.ALL:
            return None
        barred, since_s = self._regretted, judged.verdict.since_s
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
        regretted = self._regretted
        return self._with_regret(
            blind.when_unknown(self.scene, reason, self._unknown_for_s(), may_probe, regretted)
        )

    @property
    def _regretted(self) -> tuple[Allocation, ...]:
        """What has shown not to be enough beside this batch, at no higher load, and is not to be tried yet."""
        return alive(self.state.regrets, self.now_s, self.scene.setting())

    @property
    def _harmed(self) -> int:
        """Steps back to batch that proved too much beside this batch, at no higher load."""
        return self.state.harmed.here(self.now_s, self.scene.setting(), self.settings.regret_s)

    # -- what is remembered -------------------------------------------------------------------------

    def _regret(self, allocation: Allocation) -> None:
        self.state, _ = sequel.regret(self.scene, self.state, allocation)

    def _unknown_for_s(self) -> float:
        """For how long it could not be judged, or what it does undisturbed is not known."""
        since_s = self.state.unknown_since_s if self.state.unknown_since_s is not None else self.now_s
        self.state = replace(self.state, unknown_since_s=since_s)
        return self.now_s - since_s

    def _slack_for_s(self) -> float:
        """For how long something could have been given back, now included."""
        since_s = self.state.slack_since_s if self.state.slack_since_s is not None else self.now_s
        self.state = replace(self.state, slack_since_s=since_s)
        return self.now_s - since_s

    def _lose_slack(self) -> None:
        """A tick in which nothing could be given back takes away what a tick with slack has gained."""
        since_s = self.state.slack_since_s
        if since_s is not None:
            later_s = since_s + 2.0 * self.snapshot.period_s
            self.state = replace(self.state, slack_since_s=later_s if later_s < self.now_s else None)

    # -- helpers ------------------------------------------------------------------------------------

    def _batch_is_quiet(self) -> bool:
        if self.scene.memory_pressed() and batch_is_there(self.snapshot):
            return False  # it can also be in the way asleep, on the memory that it holds
        return batch_is_quiet(self.snapshot, self.settings.batch_idle_cores, self.current != self.nothing)

    def _is_alert(self) -> bool:
        """True while batch has just arrived and nothing is done about it yet."""
        since_s = self.state.busy_since_s
        return self.current == self.nothing and since_s is not None and self.now_s - since_s <= ALERT_S

    def _hold(self, reason: str) -> Move:
        return Move(Action.HOLD, self.current, reason)

    def _follow_in_force(self) -> None:
        self.state = sequel.in_force(self.scene, awaited.follow(self.scene, self.state))

    def _record(self, verdict: Verdict, move: Move) -> Decision:
        move = awaited.still_wanted(self.state.awaited, move)
        self.state = replace(self.state, chosen=move.chosen)
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
