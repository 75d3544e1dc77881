"""The controller of one LRA: evaluates its sample and proposes a change, once per tick.

It grows the protection at once after a verdict, but shrinks it only after the model has predicted for some time that
less protection keeps the target. ``lra_state`` carries state between ticks; ``change_review`` decides whether a change
stands.
"""

from __future__ import annotations

import math

from perphd.admission.context import batch_is_quiet, batch_is_there
from perphd.admission.controller import awaited, change_review
from perphd.admission.controller.lra_state import LraState, Settling
from perphd.admission.detector import antagonist, origin
from perphd.admission.detector import cause as causes
from perphd.admission.detector.gathering import Awaiting, gathered_by
from perphd.admission.detector.judge import Judgement, Target, judge, rearm, standing, target_of
from perphd.admission.detector.scatter import mean
from perphd.admission.detector.significance import UNKNOWN_NOISE_SD
from perphd.admission.features import pregrow, probing, quarantine
from perphd.admission.inference import inferer
from perphd.admission.inference.inferer import Assessed
from perphd.admission.moves import blind, memory, reach
from perphd.admission.moves.giveback import GiveBack
from perphd.admission.moves.rescue import AS_GOOD, Move, Shortfall, rescue
from perphd.admission.review import kept, outcomes
from perphd.admission.review.lra_context import LraContext
from perphd.admission.review.outcomes import Pending, alive
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import FAIR
from perphd.domain.allocation import Allocation
from perphd.domain.decision import TROUBLED, Action, Cause, Decision, Health, Outcome, Verdict
from perphd.domain.policy import ResPerfModel, Snapshot, WorkloadView
from perphd.domain.quick import replace
from perphd.domain.reading import Unavailable, available, value_or
from perphd.domain.sample import Sample, is_short
from perphd.domain.signals import Performance, performance
from perphd.domain.workload import Exploration
from perphd.forecast.load import Expected

ALERT_S = 30.0
"""Seconds after batch's arrival in which trouble is expected and needs less evidence."""
ON_TARGET = "on target"
BELOW_UNDISTURBED = "below its objective, but without contention here: taking more from batch would not help"
COME = "batch has started, and the target is expected to be missed beside it: "
PROBABLY = "probably below its target, or below it too often: "
LEAST_SCORES = 30
"""Minimum number of clean scores that are remembered since the last change."""


class LraController:
    """Makes one decision about one LRA. Holds the working values of one tick only."""

    def __init__(
        self, settings: PolicySettings, snapshot: Snapshot, view: WorkloadView, state: LraState
    ) -> None:
        self.lra, self.state = LraContext(settings, snapshot, view), state
        self.settings, self.snapshot, self.view = settings, snapshot, view
        self.nothing, self.current, self.now_s = self.lra.nothing, self.lra.current, self.lra.now_s
        self.outcome: Outcome | None = None
        self.target = Target(Unavailable("not sampled"), Unavailable("not sampled"))

    def run(self) -> Decision:
        """Judge the sample and decide; updates ``state`` and ``outcome``."""
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
            self.lra = LraContext(self.settings, self.snapshot, self.view)
        return self._judged(self.view, found, view.model)

    def _judged(self, view: WorkloadView, sample: Sample, model: ResPerfModel) -> Decision:
        perf = performance(sample, view.spec.objective.latency_percentile)
        self._follow_in_force()
        self.target = target_of(view.spec.objective, model, perf, self.settings)
        self.state = self.state.beside(self._batch_is_quiet(), self.lra.beside(), self.now_s)
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
        clean = self.lra.is_clean()
        whole = not is_short(sample, self.snapshot.period_s)  # early samples between ticks scatter more
        if clean and available(judged.score) and whole:
            most = max(LEAST_SCORES, outcomes.PATIENCE * self.settings.evaluate_ticks)
            state = self.state.scored(judged.score, outcomes.room(perf, self.target, judged.score), most)
            known = kept.noted(state.kept, self.lra, state.loads, state.scores_beside_batch, judged.noise_sd)
            self.state = replace(state, detector=judged.state, kept=known)
        elif not clean:
            # A change by perphd is settling: show the verdict, but keep no evidence from it.
            self.state = replace(self.state, detector=rearm(judged.state))
        else:
            self.state = replace(self.state, detector=judged.state)
        if available(judged.score) and whole:
            shortfall = -math.log(min(max(judged.score, 1e-3), 10.0))
            moment = antagonist.Moment(shortfall, antagonist.uses(self.snapshot))
            self.state = replace(self.state, moments=(*self.state.moments, moment)[-antagonist.WINDOW :])
        foreseen = self._foresee(perf) if self.settings.forecast else None
        move = self._move_within_reach(judged, perf, model, clean)
        if foreseen is not None and judged.verdict.health is Health.HEALTHY and clean:
            move = self._prepare(move, model, perf, foreseen)
        move = awaited.of_cpus(self.lra, self.state.awaited, move)
        if move.chosen != self.current and view.enforced:
            self.state = change_review.decided(self.lra, self.state, move, judged)
        verdict = judged.verdict
        if foreseen is not None:
            told = pregrow.evidence(foreseen, perf.load)
            verdict = replace(verdict, evidence=(*verdict.evidence, told))
        if verdict.health in TROUBLED:
            named, against = antagonist.accuse(self.state.moments, verdict.cause)
            verdict = replace(verdict, culprit=named, evidence=(*verdict.evidence, *against))
        if verdict.health is Health.HEALTHY and self.state.slack_since_s is not None:
            verdict = replace(verdict, health=Health.OVERPROVISIONED, since_s=self.state.slack_since_s)
        held = move.reason if move.action is Action.HOLD else "the last change is settling"
        self.state = replace(self.state, standing=Settling(held, self.target, verdict.culprit))
        return self._record(verdict, move)

    def _stand(self, awaiting: Awaiting, model: ResPerfModel) -> Decision:
        """Decide without a judged sample: the last verdict stands; only batch that starts or stops causes action."""
        self._follow_in_force()
        self.state = self.state.beside(self._batch_is_quiet(), self.lra.beside(), self.now_s)
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
                move = awaited.of_cpus(self.lra, self.state.awaited, move)
                if move.chosen != self.current and self.view.enforced:
                    self.state = change_review.decided(self.lra, self.state, move, judged)
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
        if pending is not None and pending.action is Action.SHRINK and judged.clear:
            # Relieve at once, even while a change is settling: the LRA is far below its target.
            return self._relieved_after(pending, judged, perf, model)
        if pending is not None and (why := change_review.overtaken(self.lra, pending, judged, perf.load)):
            if not pending.unproven:
                self.state = replace(self.state, pending=None)
                return self._rescue(judged, model, why)
            if (step := self._instead_of_undoing(pending)) is not None:
                return step
        if not clean:
            return self._hold("the last change is settling")
        if pending is not None:
            came = change_review.judge(self.lra, self.state, pending, judged.noise_sd)
            if came is None:
                return self._hold("the last change is being judged")
            self.outcome = came.outcome
            if came.undo is not None and (step := self._instead_of_undoing(pending)) is not None:
                return step
            self.state = came.state
            if came.undo is not None:
                return came.undo
        if judged.verdict.health is Health.DEGRADED:
            protected = memory.protect(self.lra, self._regretted)
            if protected is not None:
                return self._with_regret(protected)
        if self._is_alert() and not self._unadvised and self._foresees_trouble(model):
            return self._rescue(judged, model, COME)
        if judged.verdict.health is Health.DEGRADED:
            if judged.score >= 1.0:
                return self._hold("back on target; watching")
            short = outcomes.still_short(self.state.scores, judged.noise_sd, self.settings)
            if not judged.confirmed and not short:
                return self._hold("below target, but within the scatter of its samples: watching")
            if self.current == self.nothing and self._does_as_undisturbed():
                return self._hold(BELOW_UNDISTURBED)
            if why := origin.nothing_to_give(judged.verdict.cause, self.snapshot.host.account):
                return self._hold(why)
            return self._rescue(judged, model)
        if self._grazes(judged):
            known = kept.enough_here(self.state.kept, self.lra, self.state.loads, self._regretted)
            before, move = self.state, self._rescue(judged, model, PROBABLY, known)
            if move.action is Action.HOLD or not inferer.asks_no_more(move.chosen, self.current):
                return move
            self.state = before  # without confirmation, nothing is taken from an LRA
            return self._hold("probably below its target, but nothing stronger is expected to help: watching")
        return self._give_back(judged, model)

    def _instead_of_undoing(self, pending: Pending) -> Move | None:
        """The next step after an unproven one that did not help; None if no further step is left to try.

        If no step helps, all of them are rolled back at once.
        """
        if not pending.unproven:
            return None
        step = blind.relieve(self.lra, self.target, (), self._regretted)
        if step is None or step.action is not Action.GROW:
            return None
        self.state = replace(self.state, pending=None)
        return replace(step, home=pending.origin)

    def _does_as_undisturbed(self) -> bool:
        """True if the objective is out of reach and the LRA performs as well as undisturbed."""
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
        """The move, unless the target is known to be out of reach or the step is not allowed."""
        if not self.view.enforced:
            move = self._move(judged, perf, model, clean)
        else:
            known = reach.having(self.state.reach, reach.instruments(self.lra))
            known = reach.seen(known, self.current, judged.score, self.now_s, clean=clean)
            known, held = reach.standing(known, self.current, self.now_s)
            if held is not None and self.state.quiet_since_s is None:
                self.state = replace(self.state, reach=known, pending=None)
                return held
            move = self._move(judged, perf, model, clean)
            strongest = reach.strongest(self.lra)
            known, move = reach.checked(known, move, self.current, self.now_s, self.state.scores, strongest)
            self.state = replace(self.state, reach=known)
        why_not = reach.may_try(self.view.spec.exploration, move, self.current)
        return self._hold(why_not) if why_not else move

    def _grazes(self, judged: Judgement) -> bool:
        """True if the protection in force is slightly too weak: likely short, or below target repeatedly.

        An LRA with just enough protection, or beside batch that has just started, is often short, and one step too many
        costs less than waiting. This needs less evidence than the verdict, whose rate of false alarms is set for an LRA
        with its whole tolerance to spare.
        """
        theirs = origin.nothing_to_give(judged.verdict.cause, self.snapshot.host.account)
        below = judged.verdict.health is Health.SUSPECT and not theirs
        held = self.current != self.nothing
        if not below or (not held and self._does_as_undisturbed()):
            return False
        often = held and outcomes.is_often_short(self.state.scores, self.settings)
        return often or (judged.likely and (held or self._is_alert()))

    def _relieved_after(
        self, pending: Pending, judged: Judgement, perf: Performance, model: ResPerfModel
    ) -> Move:
        """The move after a reduction that left far too little: stronger protection than before, or a rollback."""
        score = value_or(judged.score, 0.0)
        if why := change_review.beyond(self.lra, self.state, pending, score, perf.load):
            self.state = replace(self.state, pending=None)
            move = self._rescue(judged, model, why)
            acts = move.action in (Action.GROW, Action.EXPLORE)
            if acts and not inferer.asks_no_more(move.chosen, pending.before):
                return move
        why = f"score {score:.2f}: far too little is left"
        self.state, undo = change_review.undone(self.lra, self.state, pending, why)
        return undo

    def _rescue(
        self, judged: Judgement, model: ResPerfModel, why: str = "", known: tuple[Allocation, ...] = ()
    ) -> Move:
        self.state = replace(self.state, slack_since_s=None, stride=1)
        if self._unadvised:
            return self._climb(judged)
        shortfall = Shortfall(judged, self.state.scores, self._regretted, known)
        move = self._with_regret(rescue(self.lra, model, self.target, shortfall))
        return replace(move, reason=why + move.reason)

    def _with_regret(self, move: Move) -> Move:
        if move.cooldown is not None:
            self._regret(move.cooldown)
        return move

    def _foresee(self, perf: Performance) -> Expected | None:
        """The growth of the LRA's load to prepare for; None if none is expected."""
        forecasts = pregrow.observe(self.state.forecasts, perf.load, self.now_s)
        self.state = replace(self.state, forecasts=forecasts)
        settings = self.settings
        return pregrow.spike(forecasts, perf.load, settings.forecast_horizon_s, settings.forecast_growth)

    def _prepare(self, move: Move, model: ResPerfModel, perf: Performance, foreseen: Expected) -> Move:
        """``move``, changed before a load spike: nothing is given back, and the LRA gets idle resources."""
        is_shrink = move.action is Action.SHRINK
        if not (is_shrink or move.action is Action.HOLD) or self.state.quiet_since_s is not None:
            return move
        if self.state.pending is None and not self._quarantined:
            step = pregrow.advise(self.lra, model, self.target, perf.load, foreseen)
            if step is not None and step not in self._regretted:
                return Move(Action.GROW, step, "a load spike is expected: the LRA gets idle resources")
        return self._hold("a load spike is expected: nothing is given back") if is_shrink else move

    @property
    def _quarantined(self) -> bool:
        """True while the model's advice is suspended after repeated failures."""
        return self.state.quarantine.active(self.now_s)

    @property
    def _unadvised(self) -> bool:
        """True while the model is not usable: its advice failed, or the reference is unknown."""
        return self._quarantined or not self.target.has_reference

    @property
    def _why_unadvised(self) -> str:
        return "the model's advice has failed" if self._quarantined else blind.UNREFERENCED

    def _climb(self, judged: Judgement) -> Move:
        """The next move that strengthens the protection without the model."""
        barred = self._regretted
        if (step := blind.relieve(self.lra, self.target, self.state.scores, barred)) is not None:
            return step
        score = mean(self.state.scores[-5:]) if self.state.scores else value_or(judged.score, 1.0)
        cause = judged.hierarchy if judged.hierarchy is not Cause.NONE else judged.verdict.cause
        found = quarantine.climb(self.lra, cause, barred, self.state.quarantine, score)
        if found is None:
            return self._hold(f"best effort: {self._why_unadvised}, and the ladder is at its end")
        rung, why = found
        self._regret(self.current)  # the allocation in force was not enough, so it enters a cooldown
        unproven = not self.target.has_reference
        return Move(Action.GROW, rung, f"{self._why_unadvised}: {why}", unproven=unproven)

    def _descend(self) -> Move:
        """The next reduction without the model, one rung at a time."""
        step = quarantine.descend(self.lra, self._regretted)
        if step is None:
            return self._hold(f"on target; {self._why_unadvised}, and the rungs below are in cooldown")
        patience = outcomes.patience((), self._harmed)
        if self._slack_for_s() < self.settings.shrink_after_s * patience:
            return self._hold("more than enough; waiting before giving back a rung")
        return Move(Action.SHRINK, step, "more than enough for long enough: one rung back, without the model")

    def _foresees_trouble(self, model: ResPerfModel) -> bool:
        """True if the model predicts that the present batch leaves no fair chance of meeting the target."""
        if not (self.settings.precaution and self.view.enforced):
            return False
        here = self.lra.assess_these([self.current], model, self.target)[0]
        # Missing an unreachable target is no harm, but performing worse than undisturbed is.
        need = min(1.0, AS_GOOD * self.target.reach)
        return inferer.chance(here.prediction, need, self.settings.confidence_z) < FAIR

    def _give_back(self, judged: Judgement, model: ResPerfModel) -> Move:
        if judged.verdict.health is not Health.HEALTHY:
            # One sample below target is not significant, so keep the slack accumulated so far.
            return self._hold("watching")
        on_target = ON_TARGET if value_or(judged.score, 1.0) >= 1.0 else BELOW_UNDISTURBED
        if self.current == self.nothing and not self.lra.batch_is_starved():
            return self._hold(on_target)
        if self._unadvised:
            return self._descend()
        stride, regretted = self.state.stride, self._regretted
        back = GiveBack(self.lra, model, self.target, regretted, stride, self._harmed)
        home = self.state.aside.way_home(self.current)
        if home is not None and not back.is_weaker_than_regretted(home):
            self.state = replace(self.state, aside=self.state.aside.back())
            return Move(Action.SHRINK, home, "the exploration step is over: back to the previous allocation")
        assessed = self.lra.assess(model, self.target)
        current = next(a for a in assessed if a.allocation == self.current)
        smaller = back.smaller(assessed, current)
        if smaller is None:
            self._lose_slack()
            if (aside := self._step_aside(judged, assessed, model)) is not None:
                return aside
            text = "just enough: no step back would keep the target and be worth enough to batch"
            return self._hold(text if self.current != self.nothing else on_target)
        return back.move(assessed, current, smaller, self._slack_for_s())

    def _step_aside(
        self, judged: Judgement, assessed: tuple[Assessed, ...], model: ResPerfModel
    ) -> Move | None:
        """Explore when nothing more can be given back; see ``probing``."""
        if self.view.spec.exploration is not Exploration.ALL:
            return None
        barred, since_s = self._regretted, judged.verdict.since_s
        known = self.state.aside, self.state.scores
        found = probing.aside(self.lra, model, self.target, assessed, *known, barred, since_s)
        if found is None:
            return None
        self.state = replace(self.state, aside=found[1], stride=1)
        return found[0]

    def _when_quiet(self) -> Move:
        since_s = self.state.quiet_since_s if self.state.quiet_since_s is not None else self.now_s
        if self.current == self.nothing:
            return self._hold("no batch work is running")
        if self.now_s - since_s < self.settings.release_after_s:
            return self._hold("batch is idle or gone; waiting before giving everything back")
        return Move(Action.RELEASE, self.nothing, "batch is idle or gone: everything is given back")

    def _when_unknown(self, judged: Judgement, perf: Performance) -> Move:
        reason = judged.score.reason if isinstance(judged.score, Unavailable) else ""
        may_probe = not self.target.known and available(perf.work)
        unknown_for_s = self._unknown_for_s()
        move = blind.when_unknown(self.lra, reason, unknown_for_s, may_probe, self._regretted)
        return self._with_regret(move)

    @property
    def _regretted(self) -> tuple[Allocation, ...]:
        """Allocations in cooldown: too little beside this batch at no higher load."""
        return alive(self.state.cooldowns, self.now_s, self.lra.setting())

    @property
    def _harmed(self) -> int:
        """Number of reductions that proved harmful beside this batch at no higher load."""
        return self.state.harmed.here(self.now_s, self.lra.setting(), self.settings.regret_s)

    def _regret(self, allocation: Allocation) -> None:
        self.state, _ = change_review.cool_down(self.lra, self.state, allocation)

    def _unknown_for_s(self) -> float:
        """Seconds without a score, including this tick."""
        since_s = self.state.unknown_since_s if self.state.unknown_since_s is not None else self.now_s
        self.state = replace(self.state, unknown_since_s=since_s)
        return self.now_s - since_s

    def _slack_for_s(self) -> float:
        """Seconds during which the controller could have given something back, including this tick."""
        since_s = self.state.slack_since_s if self.state.slack_since_s is not None else self.now_s
        self.state = replace(self.state, slack_since_s=since_s)
        return self.now_s - since_s

    def _lose_slack(self) -> None:
        """Let this tick without slack cancel one earlier tick with slack."""
        since_s = self.state.slack_since_s
        if since_s is not None:
            later_s = since_s + 2.0 * self.snapshot.period_s
            self.state = replace(self.state, slack_since_s=later_s if later_s < self.now_s else None)

    def _batch_is_quiet(self) -> bool:
        if self.lra.memory_pressed() and batch_is_there(self.snapshot):
            return False  # idle batch can still do harm through the memory that it holds
        return batch_is_quiet(self.snapshot, self.settings.batch_idle_cores, self.current != self.nothing)

    def _is_alert(self) -> bool:
        """True for ``ALERT_S`` after batch's arrival, while the controller has not reacted."""
        since_s = self.state.busy_since_s
        return self.current == self.nothing and since_s is not None and self.now_s - since_s <= ALERT_S

    def _hold(self, reason: str) -> Move:
        return Move(Action.HOLD, self.current, reason)

    def _follow_in_force(self) -> None:
        self.state = change_review.in_force(self.lra, awaited.follow(self.lra, self.state))

    def _record(self, verdict: Verdict, move: Move) -> Decision:
        move = awaited.still_wanted(self.state.awaited, move)
        self.state = replace(self.state, chosen=move.chosen)
        return Decision(
            at_s=self.now_s, workload=self.view.spec.name, verdict=verdict, action=move.action,
            target_work=self.target.work, target_delay=self.target.delay, current=self.current, chosen=move.chosen,
            candidates=move.candidates, reason=move.reason, policy="", to_best=move.to_best,
            target_provisional=self.target.has_provisional_value,
        )  # fmt: skip
