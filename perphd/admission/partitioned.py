"""Several LRAs on one host: each on cores of its own, batch on the rest in what cache and bandwidth are left to it.

Protecting all of them from batch does not protect them from each other, so each gets cores that nobody else may use.
How many is asked of its model (``core_curve``). An LRA that is short gets enough for its target at once, from batch
first, then from others that can spare it. What is more than enough goes back to batch, one core at a time where that is
a guess (``core_division``). Where more is wanted than there is, priority comes first, then max-min (``max_min``).
Cache and bandwidth are taken from batch in each L3 domain by what the LRAs there need (``domain_caches``).

One tick is one pass over values: ``Partitioning`` and the LRAs' states go in and come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from perphd.admission import decision_records, memory
from perphd.admission.backoff import doubled_s
from perphd.admission.context import batch_demand_cores, batch_is_quiet, batches, total_cores
from perphd.admission.core_curve import CoreCurve, apart
from perphd.admission.core_division import SharedCores, Shares, divide
from perphd.admission.decision_records import Draft
from perphd.admission.domain_caches import DomainCaches
from perphd.admission.inferer import untouched
from perphd.admission.lra_observation import (
    STEPS,
    LraObservation,
    curve_of,
    demand_of,
    found_enough,
    found_too_few,
    hierarchy_is_to_blame,
    is_short,
    judge_pending,
    observe,
    take_in,
)
from perphd.admission.lra_state import LraState
from perphd.admission.origin import nothing_to_give
from perphd.admission.outcomes import Came, Pending
from perphd.admission.partitioned_state import Partitioning, Result, floor_cores, present
from perphd.admission.placement import Cores, lend, place
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import FAIR, LIKELY, SURE
from perphd.domain.allocation import IDLE, Allocation, CpuGrant, Weight
from perphd.domain.decision import Action, Decision, Outcome
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available

WANTS_MORE: Final = 0.9
"""Share of its cores that batch must want, or none are given back to it."""
FAR_SHORT: Final = 0.8
"""Below this score, cores are added beside what is done about the cache: relief first."""


class PartitionedController:
    """One tick of all LRAs together. Holds the working values of a single decision; never outlives it."""

    def __init__(
        self,
        settings: PolicySettings,
        snapshot: Snapshot,
        before: Partitioning | None,
        states: Mapping[str, LraState],
    ) -> None:
        self.settings, self.snapshot, self.now_s = settings, snapshot, snapshot.at_s
        self.new = before is None
        self.partitioning = (
            before if before is not None else Partitioning(trouble_was_quiet=self._is_quiet(False))
        )
        views = present(snapshot)
        self.before = {v.spec.name: _known(states.get(v.spec.name), snapshot.at_s) for v in views}
        self.observations = {v.spec.name: self._observe(v) for v in views}
        self.states: dict[str, LraState] = {}
        self.curves = _Curves(self._curve)
        self.somebody_is_short = False
        self.drafts: dict[str, Draft] = {name: Draft() for name in self.observations}
        self.outcomes: list[Outcome] = []
        self.undone: set[str] = set()
        giving = [v for v in batches(snapshot) if v.enforced and v.sample is not None]
        total = total_cores(snapshot)
        self.cores = SharedCores(
            total,
            threads=max(1, round(len(snapshot.host.topology.usable) / total)),
            floor=floor_cores(snapshot, views[0], settings) if views else 0,
            lras=len(self.observations),
            has_batch=bool(giving),
            can_lend=bool(giving) and all("cpu_weight" in v.enforceable for v in giving),
            now_s=self.now_s,
        )
        self.cache = DomainCaches(
            settings, snapshot, self.partitioning.caches, self.partitioning.placed, giving
        )

    def run(self) -> Result:
        """Learn from the samples, decide, and say what is to be in force."""
        quiet_since_s = self._quiet_since()
        self.partitioning = replace(self.partitioning, quiet_since_s=quiet_since_s)
        if self._is_over():
            return self._released()
        for name, observed in self.observations.items():
            self.states[name] = self._seen(name, observed)
        self._judge_cache()
        self.curves = _Curves(self._curve)
        self.somebody_is_short = any(is_short(s, self.observations[n]) for n, s in self.states.items())
        wanted = {name: self._wanted(name) for name in self.observations}
        shares = divide(self.cores, wanted, self.states, self.observations, self.curves)
        if shares.lacks is not None:
            self._explain_shortage(shares.counts, shares.lacks)
        self._loosen(shares.counts)
        return self._finish(shares)

    # -- looking ------------------------------------------------------------------------------------

    def _observe(self, view: WorkloadView) -> LraObservation:
        known = self.before[view.spec.name]
        apart, target = known.own.cores > 0, known.own.target
        return observe(self.snapshot, view, self.settings, known.detector, is_apart=apart, known=target)

    def _curve(self, name: str) -> CoreCurve:
        cores = self.cores
        cache = self.cache.protection(name)
        return curve_of(self.states[name], self.observations[name], cores.total, cores.most, cache)

    def _seen(self, name: str, observed: LraObservation) -> LraState:
        """The lra with what this sample tells, its trial judged."""
        lra = self.before[name]
        if lra.own.cores == 0:
            demand = demand_of(observed, self._host_busy(), self.cores.threads)
            lra = replace(lra, detector=observed.judged.state)
            lra = lra.with_own(demand=demand if available(demand) else None)
            self.drafts[name].reason = "it is new here"
            return lra
        in_force = observed.view.protection.cpu.own_cores if observed.view.protection is not None else None
        if in_force is not None and in_force != lra.own.cores:
            # What was decided is not what is in force (refused, undone): what is counts.
            lra = replace(lra, pending=None).with_own(cores=in_force)
        sample = observed.view.sample
        usage = sample.cpu_usage_cores if sample is not None else math.nan
        busy = usage / (lra.own.cores * self.cores.threads) if available(usage) else 0.0
        demand = demand_of(observed, busy, self.cores.threads)
        lra = take_in(lra, observed, demand, self.now_s, self.snapshot.period_s)
        if lra.pending is not None:
            lra = self._judged(name, lra, lra.pending, observed)
        return found_enough(lra)

    def _judged(self, name: str, lra: LraState, pending: Pending, observed: LraObservation) -> LraState:
        came = judge_pending(lra, observed)
        if came is Came.OPEN:
            return lra
        after = lra.level if lra.scores else observed.score
        undone = pending.shrinks and came is Came.TOO_LITTLE
        few, many = pending.before.cpu.lra_cores, pending.after.cpu.lra_cores
        text = f"{few} -> {many} cores of its own: {came}"
        self.outcomes.append(
            Outcome(self.now_s, name, pending.at_s, pending.score_before, after, kept=not undone, text=text)
        )
        if undone:
            lra = found_too_few(lra, observed)
        lra = replace(lra, pending=None)
        if undone:
            self.undone.add(name)
            self.drafts[name] = Draft(Action.ROLLBACK, f"{text}: taken back")
        elif came is Came.NO_HELP:
            wait_s = doubled_s(observed.settings.regret_s, lra.own.idle_times)
            lra = lra.with_own(
                idle_cores_until_s=self.now_s + wait_s,
                idle_times=lra.own.idle_times + 1,
                rescues=0,
            )
            if self.cores.is_idle(lra, few):
                # They were not busy, and more of them did not help: it is not for want of cores.
                self.undone.add(name)
                self.drafts[name] = Draft(Action.ROLLBACK, f"{text}: given back, it waits for something else")
        return lra

    # -- what everybody needs -----------------------------------------------------------------------

    def _wanted(self, name: str) -> int:
        """Cores that this LRA is to have if there are enough; says why in its draft."""
        lra, observed, draft = self.states[name], self.observations[name], self.drafts[name]
        if lra.own.cores == 0:
            if lra.own.demand is None:
                return max(1, self.cores.total // (len(self.observations) + 1))
            # Beside everybody else its use is not quite its own: a guess is made again when it is apart.
            return self.curves[name].fewest(SURE)
        if draft.action is Action.ROLLBACK and name not in self.undone:
            return lra.own.cores
        if name in self.undone:
            before = self.before[name].pending
            undo = before is not None and lra.pending is None
            return before.before.cpu.lra_cores if undo and before is not None else lra.own.cores
        if isinstance(observed.score, Unavailable):
            draft.reason = observed.score.reason
            since_s = lra.unknown_since_s if lra.unknown_since_s is not None else self.now_s
            if self.now_s - since_s < observed.settings.unknown_release_s or lra.own.demand is None:
                return lra.own.cores
            fewest = min(lra.own.cores, self.curves[name].fewest(LIKELY))
            if fewest < lra.own.cores:
                draft.action = Action.SHRINK
                draft.reason = f"not to be judged for long; by its use, {fewest} cores are likely enough"
            return fewest
        if not observed.clean:
            draft.reason = "the last change is settling"
            return lra.own.cores
        if is_short(lra, observed):
            return self._rescued(name, lra, observed, draft)
        if observed.score < 1.0:
            draft.reason = "below target, but no further than its samples scatter: watching"
        return self._spared(name, lra, draft)

    def _rescued(self, name: str, lra: LraState, observed: LraObservation, draft: Draft) -> int:
        if why_not := nothing_to_give(observed.judged.verdict.cause, self.snapshot.host.account):
            draft.reason = why_not
            return lra.own.cores
        grown = lra.pending if lra.pending is not None and not lra.pending.shrinks else None
        if grown is not None and self.cores.is_idle(lra, grown.before.cpu.lra_cores):
            # Its cores are not busy: first it is seen whether more of them helped at all.
            draft.reason = f"score {lra.level:.2f}: whether more cores help is being judged"
            return lra.own.cores
        curve = self.curves[name]
        guess = curve.belief(lra.own.cores) if lra.own.cores > curve.barred else 0.0
        if not hierarchy_is_to_blame(observed):
            lra, curve = found_too_few(lra, observed), curve.found_too_few(lra.own.cores)
            self.curves[name] = curve
        doubt = lra.own.idle_cores_until_s > self.now_s
        # Busy cores are believed to be too few, whatever else is slow.
        blame = guess >= FAIR and (hierarchy_is_to_blame(observed) or guess >= LIKELY or doubt)
        why = f"score {lra.level:.2f}"
        if blame and self.cache.tighten(lra, observed):
            draft.action = Action.GROW
            draft.reason = f"{why}: its cores should be enough, so batch gets less cache and bandwidth"
            if doubt or hierarchy_is_to_blame(observed) or lra.level >= FAR_SHORT:
                self.states[name] = replace(lra, scores=()).with_own(calm_since_s=None)
                return lra.own.cores
        if doubt and self.cores.is_idle(lra, lra.own.cores):
            draft.reason = f"{why}: more cores did not help; what it waits for is not found here"
            return lra.own.cores
        step = STEPS[min(lra.own.rescues, len(STEPS) - 1)]
        self.states[name] = lra
        draft.action, draft.reason = Action.GROW, f"{why}: too few cores"
        return curve.step_up(LIKELY, lra.own.cores + step)

    def _spared(self, name: str, lra: LraState, draft: Draft) -> int:
        """Fewer cores where they can be spared and somebody can use them; else those it has."""
        short = self.somebody_is_short
        if not short and self._batch_is_full():
            return lra.own.cores
        # Whoever is short and can take nothing from batch waits for what a neighbour can spare.
        needed = short and sum(m.own.cores for m in self.states.values()) >= self.cores.for_lras
        settings, batch_cores = self.observations[name].settings, self.partitioning.batch_cores
        cores, why = self.cores.spared(
            lra, self.curves[name], settings, needed=needed, batch_cores=batch_cores
        )
        if why:
            draft.reason = why
        if cores < lra.own.cores:
            draft.action = Action.SHRINK
        return cores

    def _explain_shortage(self, counts: Mapping[str, int], lacks: Mapping[str, str]) -> None:
        takers = [n for n in counts if counts[n] > self.states[n].own.cores]
        for name, count in counts.items():
            draft, lra = self.drafts[name], self.states[name]
            if name in lacks:
                observed = self.observations[name]
                waits = lra.own.cores and count == lra.own.cores and is_short(lra, observed)
                if waits and self.cache.tighten(lra, observed):
                    draft.action = Action.GROW
                    self.states[name] = replace(lra, scores=()).with_own(calm_since_s=None)
                    draft.reason += "; batch gets less cache and bandwidth instead"
                draft.reason = f"{draft.reason}; {lacks[name]}"
            if count < lra.own.cores and draft.action is not Action.SHRINK:
                draft.action = Action.SHRINK
                kept = self.curves[name].chance(count)
                draft.reason = (
                    f"gives {lra.own.cores - count} cores to {', '.join(takers)}, which is short; "
                    f"a {kept:.0%} chance that it keeps its target"
                )
            elif count <= lra.own.cores and draft.action is Action.GROW:
                draft.action = Action.GROW if self.cache.moved else Action.HOLD

    # -- cache and bandwidth ------------------------------------------------------------------------

    def _judge_cache(self) -> None:
        """What came of the last change of cache or bandwidth."""
        for name in self.cache.judge_tightened(self.states, self.observations):
            until_s = self.now_s + self.observations[name].settings.regret_s
            self.states[name] = self.states[name].with_own(idle_cache_until_s=until_s)
            text = "less cache and bandwidth for batch did not help it: undone"
            self.drafts[name] = Draft(Action.ROLLBACK, text)
        for name in self.cache.judge_loosened(self.states, self.observations):
            text = "it misses the cache or bandwidth that batch was given back"
            self.drafts[name] = Draft(Action.ROLLBACK, text)
            # What was seen was not for want of cores.
            self.states[name] = replace(self.states[name], scores=(), pending=None).with_own(
                calm_since_s=None
            )

    def _loosen(self, counts: Mapping[str, int]) -> None:
        """A step of cache or bandwidth back to batch, when nothing else moves."""
        if self.new or not self.cores.has_batch:
            return
        if any(counts[n] != m.own.cores or m.pending is not None for n, m in self.states.items()):
            return
        if (name := self.cache.loosen(self.states)) is not None:
            text = "everybody has room: batch gets back some cache or bandwidth"
            self.drafts[name] = Draft(Action.SHRINK, text)

    # -- the end ------------------------------------------------------------------------------------

    def _finish(self, shares: Shares) -> Result:
        topology, counts, floor = self.snapshot.host.topology, shares.counts, self.cores.floor
        placed = place(topology, counts, self.partitioning.placed)
        self.cache.move(placed, self.cores.has_batch)
        left = self.cores.total - sum(counts.values())
        lent = self._lent(floor - left, placed, counts) if shares.lends and left < floor else ()
        left += len(lent)
        weight: Weight = IDLE if lent else 100
        decisions: list[Decision] = []
        protections: dict[str, Allocation] = {}
        for name, count in counts.items():
            lra, observed, draft = self.states[name], self.observations[name], self.drafts[name]
            cache = self.cache.protection(name)
            if count != lra.own.cores:
                pending = None
                if lra.own.cores and draft.action is not Action.ROLLBACK:
                    pending = self._pending(lra, count)
                shown = decision_records.candidates(lra, count, self.cores.total, cache, self.curves[name])
                draft = decision_records.moved(draft, lra, count, left, shown)
                rescues = lra.own.rescues + (count > lra.own.cores > 0)
                lra = replace(lra, scores=(), pending=pending).with_own(
                    cores=count, calm_since_s=None, rescues=rescues
                )
                self.states[name] = lra
            grant = CpuGrant(self.cores.total, left, weight, exclusive=True, own_cores=count)
            chosen = Allocation(grant, self._memory(observed), *cache)
            protections[name] = chosen
            decisions.append(decision_records.record(self.snapshot, observed, draft, chosen))
        partitioning = replace(
            self.partitioning,
            placed=placed,
            batch_cores=left,
            lent=lent,
            caches=self.cache.states,
        )
        decisions += decision_records.waiting(self.snapshot, self.observations)
        return Result(partitioning, self.states, tuple(decisions), tuple(self.outcomes), protections)

    def _pending(self, lra: LraState, count: int) -> Pending:
        """The change to so many cores, to be judged."""
        total, nothing = self.cores.total, untouched(self.cores.total)
        score: Reading = Unavailable("not known")
        if lra.scores:
            score = lra.worst_lately
        return Pending(
            self.now_s,
            apart(total, lra.own.cores, nothing),
            apart(total, count, nothing),
            Action.GROW if count > lra.own.cores else Action.SHRINK,
            score,
            cpus=lra.own.demand if lra.own.demand is not None else NOT_MEASURED,
        )

    def _lent(self, cores: int, placed: Mapping[str, Cores], counts: Mapping[str, int]) -> Cores:
        """Cores on which batch is a guest; whose guests come or go is measured anew."""
        priorities = {name: observed.view.spec.priority for name, observed in self.observations.items()}
        known = {name: m for name, m in self.states.items() if m.scores and m.own.cores == counts[name]}
        levels = {name: lra.room for name, lra in known.items()}
        lent = lend(cores, placed, priorities, levels, self.partitioning.lent)
        for name, own in placed.items():
            if {*lent} & {*own} != {*self.partitioning.lent} & {*own}:
                self.states[name] = replace(self.states[name], scores=()).with_own(calm_since_s=None)
        return lent

    def _memory(self, observed: LraObservation) -> int:
        """Bytes to protect: the working set of who stalls for memory; what is protected stays so."""
        view = observed.view
        has = view.protection.memory_bytes if view.protection is not None else 0
        if not available(observed.score) or observed.score >= 1.0:
            return has
        # From nothing: here nobody waits for what the last step did before the next is asked for.
        return max(has, memory.wanted_bytes(view, 0, observed.settings) or 0)

    def _released(self) -> Result:
        nothing = Allocation(CpuGrant(self.cores.total, self.cores.total))
        reason = "batch is idle or gone, and they did not disturb each other: everything is given back"
        decisions = [
            decision_records.record(self.snapshot, observed, Draft(Action.RELEASE, reason), nothing)
            for observed in self.observations.values()
        ]
        return Result(
            None,
            self.before,
            (*decisions, *decision_records.waiting(self.snapshot, self.observations)),
            (),
            dict.fromkeys(self.observations, nothing),
        )

    def _quiet_since(self) -> float | None:
        if not self._is_quiet(True):
            return None
        known = self.partitioning.quiet_since_s
        return known if known is not None else self.now_s

    def _is_quiet(self, protected: bool) -> bool:
        return batch_is_quiet(self.snapshot, self.settings.batch_idle_cores, protected)

    def _is_over(self) -> bool:
        since_s = self.partitioning.quiet_since_s
        if self.new or self.partitioning.trouble_was_quiet or since_s is None:
            return False
        return self.now_s - since_s >= self.settings.release_after_s

    def _batch_is_full(self) -> bool:
        """True if batch has no use for more cores."""
        if not self.cores.has_batch:
            return True
        return batch_demand_cores(self.snapshot) < WANTS_MORE * self.partitioning.batch_cores

    def _host_busy(self) -> float:
        busy = self.snapshot.host.busy_cores
        return busy / max(1, len(self.snapshot.host.topology.usable)) if available(busy) else 1.0


def _known(state: LraState | None, now_s: float) -> LraState:
    """What is remembered of an LRA here: all that was learned of it, and what is in hand if it has cores of its own."""
    if state is None:
        return LraState.new(now_s)
    return state if state.own.cores > 0 else replace(state.anew(), detector=state.detector)


class _Curves(dict[str, CoreCurve]):
    """Curves by LRA, asked of the model when they are first looked at: many ticks need only some of them."""

    def __init__(self, ask: Callable[[str], CoreCurve]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, name: str) -> CoreCurve:
        self[name] = curve = self._ask(name)
        return curve
