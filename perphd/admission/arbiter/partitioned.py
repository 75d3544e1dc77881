"""Controller of several LRAs: each on exclusive cores, batch on the rest with limited cache and bandwidth.

Protecting LRAs from batch does not protect them from each other, so each gets exclusive cores. The number of cores
is predicted by the LRA's model, with a queue estimate as the prior (``partition_model``), and learned from outcomes
(``partition``). An LRA that is short gets enough for its target at once, first from batch, then from LRAs that can
spare cores. Excess cores go back to batch, one at a time if that is uncertain (``partition_cores``). In each L3 domain,
batch loses cache and bandwidth according to the needs of the LRAs there (``domain_caches``).

One tick is one pass over values: ``PartitionState`` is the only state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from perphd.admission.arbiter import partition_reach, partition_records
from perphd.admission.arbiter.domain_caches import DomainCaches
from perphd.admission.arbiter.member import (
    STEPS,
    Look,
    Member,
    Trial,
    TrialFinding,
    demand_of,
    found_enough,
    found_too_few,
    hierarchy_is_to_blame,
    is_short,
    judge_trial,
    look_at,
    take_in,
)
from perphd.admission.arbiter.partition_cores import CoreShares, SharedCores, divide
from perphd.admission.arbiter.partition_model import CoreModels
from perphd.admission.arbiter.partition_reach import SharedReach
from perphd.admission.arbiter.partition_records import Draft
from perphd.admission.arbiter.partition_state import PartitionResult, PartitionState, floor_cores, present
from perphd.admission.arbiter.placement import Cores, lend, place
from perphd.admission.context import batch_demand_cores, batch_is_quiet, batches, total_cores
from perphd.admission.detector.judge import DetectorState
from perphd.admission.detector.origin import nothing_to_give
from perphd.admission.moves import memory
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import FAIR, LIKELY, SURE
from perphd.domain.allocation import DEFAULT_WEIGHT, IDLE, Allocation, CpuGrant, Weight
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import Action, Decision, Health, Outcome
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import Unavailable, available

WANTS_MORE: Final = 0.9
"""Share of its cores that batch must demand before it gets more."""
FAR_SHORT: Final = 0.8
"""Score below which cores are added along with cache, for fast relief."""


class PartitionedTick:
    """Working values of one tick of all LRAs together."""

    def __init__(
        self,
        settings: PolicySettings,
        snapshot: Snapshot,
        before: PartitionState | None,
        detectors: Mapping[str, DetectorState],
    ) -> None:
        self.settings, self.snapshot, self.now_s = settings, snapshot, snapshot.at_s
        self.new = before is None
        self.partitioned = (
            before if before is not None else PartitionState(trouble_was_quiet=self._is_quiet(False))
        )
        views = present(snapshot)
        self.looks = {v.spec.name: self._look(v, detectors) for v in views}
        self.members: dict[str, Member] = {}
        self.drafts: dict[str, Draft] = {name: Draft() for name in self.looks}
        self.outcomes: list[Outcome] = []
        self.undone: set[str] = set()
        self._short: dict[str, tuple[Member, bool]] = {}
        giving = [v for v in batches(snapshot) if v.enforced and v.sample is not None]
        total = total_cores(snapshot)
        self.cores = SharedCores(
            total,
            threads=max(1, round(len(snapshot.host.topology.usable) / total)),
            floor=floor_cores(snapshot, views[0], settings) if views else 0,
            lras=len(self.looks),
            has_batch=bool(giving),
            can_lend=bool(giving) and all("cpu_weight" in v.enforceable for v in giving),
            now_s=self.now_s,
        )
        weight: Weight = IDLE if self.partitioned.lent else DEFAULT_WEIGHT
        self.cores = replace(self.cores, models=CoreModels(snapshot, total, self.cores.most, weight))
        self.cache = DomainCaches(
            settings, snapshot, self.partitioned.caches, self.partitioned.placed, giving
        )

    def run(self) -> PartitionResult:
        """Process the samples, decide, and return the settings to put in force."""
        quiet_since_s = self._quiet_since()
        self.partitioned = replace(self.partitioned, quiet_since_s=quiet_since_s)
        if self._is_over():
            return self._released()
        for name, look in self.looks.items():
            self.members[name] = self._seen(name, look)
        self._judge_cache()
        all_met = all(m.scores and m.scores[-1] >= 1.0 for m in self.members.values())
        reach = partition_reach.seen(
            self.partitioned.reach, frozenset(self.looks), self.now_s, all_met=all_met
        )
        self.partitioned = replace(self.partitioned, reach=reach)
        if reach.settled_until_s is not None:
            return self._finish(self._held(reach))
        wanted = {name: self._wanted(name) for name in self.looks}
        shares = divide(self.cores, wanted, self.members, self.looks)
        if shares.lacks is not None:
            self._explain_shortage(shares.counts, shares.lacks)
        self._loosen(shares.counts)
        return self._finish(shares)

    def _held(self, reach: SharedReach) -> CoreShares:
        """Hold the division by demand while the LRAs cannot all reach their targets; cache and bandwidth stay."""
        shares = partition_reach.held(reach, self.cores, self.members, self.looks)
        minutes = max(0.0, (reach.settled_until_s or self.now_s) - self.now_s) / 60.0
        text = f"{partition_reach.TOLD}; next attempt in {minutes:.0f} min"
        for name, member in self.members.items():
            # Start no trial, because the effect depends more on the neighbours' cores than on this number of cores.
            self.members[name] = replace(member, trial=None)
            self.drafts[name] = Draft(Action.HOLD, text)
        return shares

    # -- evaluating the samples ---------------------------------------------------------------------

    def _look(self, view: WorkloadView, detectors: Mapping[str, DetectorState]) -> Look:
        known = self.partitioned.members.get(view.spec.name)
        state = known.detector if known is not None else detectors.get(view.spec.name, DetectorState())
        target = known.target if known is not None else None
        return look_at(self.snapshot, view, self.settings, state, is_apart=known is not None, known=target)

    def _seen(self, name: str, look: Look) -> Member:
        """The member after this sample, with its trial evaluated."""
        member = self.partitioned.members.get(name)
        if member is None:
            demand = demand_of(look, self._host_busy(), self.cores.threads)
            member = Member(0, look.judged.state, demand=demand if available(demand) else None)
            self.drafts[name].reason = "the LRA is new here"
            return member
        in_force = look.view.protection.cpu.own_cores if look.view.protection is not None else None
        if in_force is not None and in_force != member.cores:
            # The decision was refused or rolled back, so use the number of cores in force.
            member = replace(member, cores=in_force, trial=None)
        sample = look.view.sample
        usage = sample.cpu_usage_cores if sample is not None else math.nan
        busy = usage / (member.cores * self.cores.threads) if available(usage) else 0.0
        demand = demand_of(look, busy, self.cores.threads)
        member = take_in(member, look, demand, self.cores.threads, self.now_s, self.snapshot.period_s)
        if member.trial is not None:
            member = self._judged(name, member, member.trial, look)
        return found_enough(member, look, self.now_s)

    def _judged(self, name: str, member: Member, trial: Trial, look: Look) -> Member:
        came = judge_trial(member, look)
        if came is TrialFinding.OPEN:
            return member
        after = member.level if member.scores else look.score
        shrunk = trial.after < trial.before
        kept = not (shrunk and came is TrialFinding.TOO_FEW)
        text = f"{trial.before} -> {trial.after} cores of its own: {came}"
        before = trial.score if not math.isnan(trial.score) else Unavailable("not known")
        self.outcomes.append(Outcome(self.now_s, name, trial.at_s, before, after, kept=kept, text=text))
        if shrunk and came is TrialFinding.TOO_FEW:
            member = found_too_few(member, look, self.now_s)
        member = replace(member, trial=None)
        if shrunk and came is TrialFinding.TOO_FEW:
            self.undone.add(name)
            self.drafts[name] = Draft(Action.ROLLBACK, f"{text}: rolled back")
        elif came is TrialFinding.NO_HELP:
            wait_s = doubled_s(look.settings.regret_s, member.idle_times)
            member = replace(
                member,
                idle_cores_until_s=self.now_s + wait_s,
                idle_times=member.idle_times + 1,
                rescues=0,
            )
            if self.cores.is_idle(member, trial.before):
                # Its cores were not busy, and more cores did not help: the LRA does not lack cores.
                self.undone.add(name)
                self.drafts[name] = Draft(
                    Action.ROLLBACK, f"{text}: given back, because the LRA waits for something else"
                )
        return member

    # -- the cores that each LRA needs --------------------------------------------------------------

    def _wanted(self, name: str) -> int:
        """Cores wanted for this LRA if there are enough; records the reason in its draft."""
        member, look, draft = self.members[name], self.looks[name], self.drafts[name]
        if member.cores == 0:
            if member.demand is None:
                return max(1, self.cores.total // (len(self.looks) + 1))
            # Other workloads distort its CPU use. The estimate is repeated once it has its own cores.
            return self.cores.fewest(look, member, SURE)
        if draft.action is Action.ROLLBACK and name not in self.undone:
            return member.cores
        if name in self.undone:
            before = self.partitioned.members[name].trial
            undo = before is not None and member.trial is None
            return before.before if undo and before is not None else member.cores
        if isinstance(look.score, Unavailable):
            draft.reason = look.score.reason
            since_s = member.unknown_since_s if member.unknown_since_s is not None else self.now_s
            if self.now_s - since_s < look.settings.unknown_release_s or member.demand is None:
                return member.cores
            fewest = min(member.cores, self.cores.fewest(look, member, LIKELY))
            if fewest < member.cores:
                draft.action = Action.SHRINK
                draft.reason = (
                    f"without a score for a long time; judging by its use, {fewest} cores are probably enough"
                )
            return fewest
        if not look.clean:
            draft.reason = "the last change is settling"
            return member.cores
        if self._is_short(name, member):
            return self._rescued(name, member, look, draft)
        if look.score < 1.0:
            draft.reason = "below target, but within the scatter of its samples: watching"
        return self._spared(name, member, draft)

    def _rescued(self, name: str, member: Member, look: Look, draft: Draft) -> int:
        if why_not := nothing_to_give(look.judged.verdict.cause, self.snapshot.host.account):
            draft.reason = why_not
            return member.cores
        trial = member.trial
        if trial is not None and trial.after > trial.before and self.cores.is_idle(member, trial.before):
            # Its cores are not busy, so first check whether the last added cores helped.
            draft.reason = f"score {member.level:.2f}: evaluating whether more cores help"
            return member.cores
        # The model has also learned what cache and bandwidth cost here, so it cannot tell that from too few cores.
        guess = self.cores.chance_by_queue(member, member.cores)
        member = found_too_few(member, look, self.now_s) if not hierarchy_is_to_blame(look) else member
        doubt = member.idle_cores_until_s > self.now_s
        # Busy cores are assumed to be too few, whatever else is slow.
        blame = guess >= FAIR and (hierarchy_is_to_blame(look) or guess >= LIKELY or doubt)
        why = f"score {member.level:.2f}"
        if blame and self.cache.tighten(member, look):
            draft.action = Action.GROW
            draft.reason = f"{why}: its cores should be enough, so batch gets less cache and bandwidth"
            if doubt or hierarchy_is_to_blame(look) or member.level >= FAR_SHORT:
                self.members[name] = replace(member, scores=(), calm_since_s=None)
                return member.cores
        if doubt and self.cores.is_idle(member, member.cores):
            draft.reason = f"{why}: more cores did not help; the LRA waits for something else"
            return member.cores
        if hierarchy_is_to_blame(look) and draft.action is Action.HOLD:
            # Batch has no more cache or bandwidth to give, so only more cores can help.
            member = found_too_few(member, look, self.now_s)
        step = STEPS[min(member.rescues, len(STEPS) - 1)]
        self.members[name] = member
        draft.action, draft.reason = Action.GROW, f"{why}: too few cores"
        return self.cores.fewest(look, member, LIKELY, member.cores + step)

    def _spared(self, name: str, member: Member, draft: Draft) -> int:
        """Number of cores for the LRA: fewer if it can spare some that are wanted elsewhere, else its present
        number.
        """
        short = self._somebody_is_short()
        if not short and self._batch_is_full():
            return member.cores
        # An LRA that is short and can take nothing from batch waits for a neighbour's spare cores.
        needed = short and sum(m.cores for m in self.members.values()) >= self.cores.for_lras
        batch_cores = self.partitioned.batch_cores
        cores, why = self.cores.spared(self.looks[name], member, needed=needed, batch_cores=batch_cores)
        if why:
            draft.reason = why
        if cores < member.cores:
            draft.action = Action.SHRINK
        return cores

    def _explain_shortage(self, counts: Mapping[str, int], lacks: Mapping[str, str]) -> None:
        takers = [n for n in counts if counts[n] > self.members[n].cores]
        for name, count in counts.items():
            draft, member = self.drafts[name], self.members[name]
            if name in lacks:
                look = self.looks[name]
                waits = member.cores and count == member.cores and self._is_short(name, member)
                if waits and self.cache.tighten(member, look):
                    draft.action = Action.GROW
                    self.members[name] = replace(member, scores=(), calm_since_s=None)
                    draft.reason += "; batch gets less cache and bandwidth instead"
                draft.reason = f"{draft.reason}; {lacks[name]}"
            if count < member.cores and draft.action is not Action.SHRINK:
                draft.action = Action.SHRINK
                kept = self.cores.chance_of(self.looks[name], member, count)
                lost = f"gives up {member.cores - count} of {member.cores} cores"
                kept_words = f"keeps its target with a chance of {kept:.0%}"
                draft.reason = f"{lost} and {kept_words}; below target: {', '.join(takers)}"
            elif count <= member.cores and draft.action is Action.GROW:
                draft.action = Action.GROW if self.cache.moved else Action.HOLD

    # -- cache and bandwidth ------------------------------------------------------------------------

    def _judge_cache(self) -> None:
        """Evaluate the last change of cache or bandwidth."""
        for name in self.cache.judge_tightened(self.members, self.looks):
            until_s = self.now_s + self.looks[name].settings.regret_s
            self.members[name] = replace(self.members[name], idle_cache_until_s=until_s)
            text = "less cache and bandwidth for batch did not help the LRA: rolled back"
            self.drafts[name] = Draft(Action.ROLLBACK, text)
        for name in self.cache.judge_loosened(self.members, self.looks):
            text = "the LRA needs the cache or bandwidth that batch got back"
            self.drafts[name] = Draft(Action.ROLLBACK, text)
            # The shortfall was not due to too few cores.
            self.members[name] = replace(self.members[name], scores=(), calm_since_s=None, trial=None)

    def _loosen(self, counts: Mapping[str, int]) -> None:
        """Give batch a step of cache or bandwidth back, if nothing else changes."""
        if self.new or not self.cores.has_batch:
            return
        if any(counts[n] != m.cores or m.trial is not None for n, m in self.members.items()):
            return
        if (name := self.cache.loosen(self.members)) is not None:
            text = "all LRAs have slack: batch gets back some cache or bandwidth"
            self.drafts[name] = Draft(Action.SHRINK, text)

    # -- the end ------------------------------------------------------------------------------------

    def _finish(self, shares: CoreShares) -> PartitionResult:
        topology, counts, floor = self.snapshot.host.topology, shares.counts, self.cores.floor
        placed = place(topology, counts, self.partitioned.placed)
        self.cache.move(placed, self.cores.has_batch)
        left = self.cores.total - sum(counts.values())
        lent = self._lent(floor - left, placed, counts) if shares.lends and left < floor else ()
        left += len(lent)
        weight: Weight = IDLE if lent else 100
        decisions: list[Decision] = []
        protections: dict[str, Allocation] = {}
        reach = self.partitioned.reach
        settled = reach.settled_until_s is not None
        if (shares.lacks is not None) and (
            self.cache.moved or any(counts[n] != m.cores for n, m in self.members.items())
        ):
            reach = partition_reach.changed(reach, self.now_s)
        for name, count in counts.items():
            member, look, draft = self.members[name], self.looks[name], self.drafts[name]
            grant = CpuGrant(self.cores.total, left, weight, exclusive=True, own_cores=count)
            chosen = Allocation(grant, self._memory(look), *self.cache.protection(name))
            if count != member.cores or look.judged.verdict.health is Health.DEGRADED:
                draft.candidates = partition_records.candidates(self.cores, look, member, count, chosen)
            if count != member.cores:
                trial = None
                if member.cores and not settled and draft.action is not Action.ROLLBACK:
                    trial = Trial(self.now_s, member.cores, count, member.now, member.demand or 0.0)
                draft = partition_records.moved(draft, member, count, left)
                rescues = member.rescues + (count > member.cores > 0)
                member = replace(
                    member, cores=count, scores=(), calm_since_s=None, trial=trial, rescues=rescues
                )
                self.members[name] = member
            protections[name] = chosen
            decisions.append(partition_records.record(self.snapshot, look, draft, chosen))
        partitioned = replace(
            self.partitioned,
            members=self.members,
            placed=placed,
            batch_cores=left,
            lent=lent,
            caches=self.cache.states,
            reach=reach,
        )
        decisions += partition_records.waiting(self.snapshot, self.looks)
        return PartitionResult(partitioned, tuple(decisions), tuple(self.outcomes), protections)

    def _lent(self, cores: int, placed: Mapping[str, Cores], counts: Mapping[str, int]) -> Cores:
        """Cores on which batch runs in the idle class; LRAs whose lent cores change are measured again."""
        priorities = {name: look.view.spec.priority for name, look in self.looks.items()}
        known = {name: m for name, m in self.members.items() if m.scores and m.cores == counts[name]}
        levels = {name: member.room for name, member in known.items()}
        lent = lend(cores, placed, priorities, levels, self.partitioned.lent)
        for name, own in placed.items():
            if {*lent} & {*own} != {*self.partitioned.lent} & {*own}:
                self.members[name] = replace(self.members[name], scores=(), calm_since_s=None)
        return lent

    def _memory(self, look: Look) -> int:
        """Bytes to protect: the working set of an LRA that stalls on memory; existing protection stays."""
        view = look.view
        has = view.protection.memory_bytes if view.protection is not None else 0
        if not available(look.score) or look.score >= 1.0:
            return has
        # Start from 0, because here the next step does not wait for the outcome of the last one.
        return max(has, memory.wanted_bytes(view, 0, look.settings) or 0)

    def _released(self) -> PartitionResult:
        nothing = Allocation(CpuGrant(self.cores.total, self.cores.total))
        reason = "batch is idle or gone, and the LRAs did not disturb each other: everything is given back"
        decisions = [
            partition_records.record(self.snapshot, look, Draft(Action.RELEASE, reason), nothing)
            for look in self.looks.values()
        ]
        return PartitionResult(
            None,
            (*decisions, *partition_records.waiting(self.snapshot, self.looks)),
            (),
            dict.fromkeys(self.looks, nothing),
        )

    def _quiet_since(self) -> float | None:
        if not self._is_quiet(True):
            return None
        known = self.partitioned.quiet_since_s
        return known if known is not None else self.now_s

    def _is_quiet(self, protected: bool) -> bool:
        return batch_is_quiet(self.snapshot, self.settings.batch_idle_cores, protected)

    def _is_over(self) -> bool:
        since_s = self.partitioned.quiet_since_s
        if self.new or self.partitioned.trouble_was_quiet or since_s is None:
            return False
        return self.now_s - since_s >= self.settings.release_after_s

    def _somebody_is_short(self) -> bool:
        return any(self._is_short(n, m) for n, m in self.members.items())

    def _is_short(self, name: str, member: Member) -> bool:
        known = self._short.get(name)
        if known is None or known[0] is not member:
            known = self._short[name] = member, is_short(member, self.looks[name])
        return known[1]

    def _batch_is_full(self) -> bool:
        """True if batch cannot use more cores."""
        if not self.cores.has_batch:
            return True
        return batch_demand_cores(self.snapshot) < WANTS_MORE * self.partitioned.batch_cores

    def _host_busy(self) -> float:
        busy = self.snapshot.host.busy_cores
        return busy / max(1, len(self.snapshot.host.topology.usable)) if available(busy) else 1.0
