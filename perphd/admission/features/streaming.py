"""Confines single batch jobs for the benefit of the others: to the smallest cache mask, and to fewer cores.

If several batch jobs share a cache, a job that streams through memory gains nothing from it, but evicts the
data of other jobs and of LRAs. With few cores it does nearly as much, because the memory is its limit, and slows the
others less. Misses alone do not identify it, so confinement is tried: the job that misses most is confined, and the
instruction rates of all busy jobs before and after decide. The confinement stays if the jobs together clearly gain
(mean of logarithms, so that every job has equal weight) and the job itself does not lose too much.

The mask comes first, where it can be set. A cap on the cores of a job that needs no cache then follows in steps, as
long as each step pays. One other busy job always keeps all of batch's cores. Every confinement is lifted from time to
time as a trial, because programs change.

LRAs lose nothing. No trial starts while an LRA is below its target or is being relieved. If this happens later, a
running trial ends, as does a recent confinement. A tick is one pass over values: ``Streaming`` is the only state.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perphd.admission.context import batches
from perphd.admission.features.confinement import (
    Confinement,
    CoreCap,
    bearable_loss,
    caches_and_cores,
    can_cap_cores,
    can_have_least_cache,
    confined_settings,
    core_masks,
    may_begin,
    misses_per_s,
    next_cap,
)
from perphd.admission.inference.domains import domains_of
from perphd.admission.review.batch_rates import Rates, changes, is_busy, rate_of, standard_error
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Settings
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import Outcome
from perphd.domain.policy import Snapshot
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.sample import is_short

BEFORE: Final = 4
"""Number of samples under the same settings, with all LRAs well, required before a trial."""
AFTER_LEAST: Final = 3
AFTER: Final = 5
"""Greatest number of samples that decide about a trial; ``AFTER_LEAST`` suffice if the result is clear."""
PATIENCE: Final = 3
"""Multiple of the needed samples after which an undecided trial ends."""
MOST_RATES: Final = 12
MUCH: Final = 0.1
"""Least share of all batch's cache misses that a job must cause for its confinement to benefit the others."""
CERTAIN: Final = 2.0
"""Number of standard errors that a gain must exceed."""
SOON: Final = 0.25
"""Share of the usual pause after a trial that a change of batch's resources ended."""
CHANGED_MEANWHILE: Final = "batch's resources changed meanwhile"
NOT_MEANWHILE: Final = "an LRA was below its target or being relieved meanwhile"

InForce = tuple[tuple[str, Settings], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial with the job ``name``.

    ``confines``: True: the trial confines the job; False: it lifts the confinement. ``at_s``: start of the trial.
    ``before``: rates before the trial. ``kind``: the kind of confinement. ``cap``: the cap on its cores during the
    trial; ``former``: the one before (None: none).
    """

    name: str
    confines: bool
    at_s: float
    before: tuple[Rates, ...]
    kind: Confinement = Confinement.LEAST_CACHE
    cap: CoreCap | None = None
    former: CoreCap | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A pause of trials of one kind with one job.

    ``times``: consecutive trials with the same result. ``voids``: consecutive trials that could not be evaluated.
    ``step_s``: time from which a further step of its cap may be tried despite the pause.
    """

    name: str
    until_s: float
    times: int = 0
    voids: int = 0
    kind: Confinement = Confinement.LEAST_CACHE
    step_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Streaming:
    """The state of all trials and confinements.

    ``confined``: jobs confined to the smallest mask. ``capped``: jobs confined to fewer cores. ``rates``: rates of
    the samples since the last change.
    ``around``: all settings without confinement. ``since_s``: time since which these and the confinement have
    been in force.
    ``lone_since_s``: time since which there has been no LRA, or no job that could gain. ``last``: the last
    successful trial.
    """

    confined: tuple[str, ...] = ()
    trial: Trial | None = None
    rates: tuple[Rates, ...] = ()
    settled: tuple[Settled, ...] = ()
    around: InForce = ()
    since_s: float = 0.0
    lone_since_s: float | None = None
    last: Trial | None = None
    capped: tuple[CoreCap, ...] = ()

    def cap(self, name: str) -> CoreCap | None:
        """The cap on this job's cores, if any."""
        return next((cap for cap in self.capped if cap.name == name), None)

    def holds(self, name: str, kind: Confinement) -> bool:
        """True if this job is confined in this way."""
        return self.cap(name) is not None if kind is Confinement.FEWER_CORES else name in self.confined


@dataclass(frozen=True, slots=True)
class Lras:
    """Condition of the LRAs.

    ``there``: at least one is present; ``well``: all are on target without action; ``calm``: no LRA has a
    running trial.
    """

    there: bool
    well: bool
    calm: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one tick. ``settings``: all settings, with the confined jobs' masks and CPUs."""

    streaming: Streaming
    settings: Mapping[str, Settings]
    outcomes: tuple[Outcome, ...] = ()


def advance(
    before: Streaming,
    snapshot: Snapshot,
    settings: Mapping[str, Settings],
    lras: Lras,
    policy: PolicySettings,
) -> Step:
    """Process one tick.

    Args:
        before: state before.
        snapshot: the host now.
        settings: settings decided for all workloads.
        lras: condition of the LRAs.
        policy: thresholds and delays.
    """
    if not policy.confine_streaming:
        return Step(Streaming(), settings)
    tick = _Tick(before, snapshot, settings, policy)
    tick.run(lras)
    in_force = dict(settings)
    for name in tick.jobs:
        cap = tick.now.cap(name) if name in tick.cappable else None
        least_cache = name in tick.now.confined and name in tick.cacheable
        if least_cache or cap is not None:
            in_force[name] = confined_settings(
                snapshot.host, settings[name], least_cache=least_cache, cap=cap
            )
    return Step(tick.now, in_force, tuple(tick.outcomes))


class _Tick:
    """Working values of one tick."""

    def __init__(
        self, before: Streaming, snapshot: Snapshot, settings: Mapping[str, Settings], policy: PolicySettings
    ) -> None:
        self.snapshot, self.settings, self.policy, self.at_s = snapshot, settings, policy, snapshot.at_s
        host, views = snapshot.host, {view.spec.name: view for view in batches(snapshot)}
        self.cacheable = {n for n, v in views.items() if can_have_least_cache(v, host, settings[n])}
        self.cappable = {n for n, v in views.items() if can_cap_cores(v, settings[n])}
        self.jobs = {n: v for n, v in views.items() if n in self.cacheable or n in self.cappable}
        self.busy = self._busy()
        self.outcomes: list[Outcome] = []
        # Confinement survives a pause in which it cannot be set; removed jobs are forgotten.
        self.now = replace(
            before,
            confined=tuple(n for n in before.confined if n in views),
            capped=tuple(c for c in before.capped if c.name in views),
            settled=tuple(s for s in before.settled if s.name in views),
            trial=before.trial if before.trial is not None and before.trial.name in views else None,
            last=before.last if before.last is not None and before.last.name in views else None,
        )

    def _busy(self) -> tuple[str, ...]:
        """Busy jobs that share an L3 domain with another busy job, so that one may gain."""
        topology = self.snapshot.host.topology
        homes = {
            name: frozenset(domains_of(topology, view, self.settings[name].cpus))
            for name, view in self.jobs.items()
            if is_busy(view)
        }
        return tuple(
            name
            for name, mine in homes.items()
            if any(mine & other or not mine for n, other in homes.items() if n != name)
        )

    def run(self, lras: Lras) -> None:
        """Process the tick: evaluate or end the running trial, or start one."""
        if self._is_lone(lras):
            return
        around = tuple(sorted((name, caches_and_cores(s)) for name, s in self.settings.items()))
        if around != self.now.around:
            # Batch's resources have changed, so earlier measurements no longer apply.
            self._void(CHANGED_MEANWHILE)
            self.now = replace(self.now, around=around, rates=(), since_s=self.at_s)
        elif not lras.well:
            self._while_unwell()
        else:
            self._note_rates()
            if self.now.trial is not None:
                self._judge(self.now.trial)
            elif lras.calm and len(self.now.rates) >= BEFORE:
                self._try()

    # -- ending ---------------------------------------------------------------------------------------

    def _is_lone(self, lras: Lras) -> bool:
        """True if there is no LRA, or no job that could gain; after a while this lifts all confinement."""
        if lras.there and len(self.busy) >= 2:
            self.now = replace(self.now, lone_since_s=None)
            return False
        since_s = self.now.lone_since_s if self.now.lone_since_s is not None else self.at_s
        self.now = replace(self.now, lone_since_s=since_s, rates=(), since_s=self.at_s)
        self._void("no other busy job was left to compare with")
        if self.at_s - since_s >= self.policy.release_after_s:
            why = "no second batch job is busy" if lras.there else "no LRA is present"
            for name, kind in self._held():
                self._let_go(name, kind, why)
        return True

    def _while_unwell(self) -> None:
        """End a trial and a recent confinement, and lift confinement that is overdue for a trial."""
        self.now = replace(self.now, rates=(), since_s=self.at_s)
        last = self.now.last
        self._void(NOT_MEANWHILE)
        recent = last is not None and self.at_s - last.at_s <= self.policy.release_after_s
        if last is not None and recent and last.confines and self._is_in_force(last):
            self._let_go(last.name, last.kind, NOT_MEANWHILE, last.former)
            self._settle(last.name, last.kind, self.policy.streaming_recheck_s, voids=0)
        for name, kind in self._held():
            known = self._known(name, kind)
            if known is None or known.until_s + self.policy.streaming_recheck_s < self.at_s:
                self._let_go(name, kind, "its benefit could not be verified for too long")

    def _held(self) -> list[tuple[str, Confinement]]:
        """All confinements in force."""
        return [
            *((name, Confinement.LEAST_CACHE) for name in self.now.confined),
            *((cap.name, Confinement.FEWER_CORES) for cap in self.now.capped),
        ]

    def _is_in_force(self, trial: Trial) -> bool:
        if trial.kind is Confinement.FEWER_CORES:
            return self.now.cap(trial.name) == trial.cap
        return trial.name in self.now.confined

    def _let_go(self, name: str, kind: Confinement, why: str, former: CoreCap | None = None) -> None:
        """End a confinement; ``former``: a cap that remains."""
        self._confine(name, kind, confined=False, cap=former)
        what = "its share of the cache is" if kind is Confinement.LEAST_CACHE else "batch's cores are"
        text = f"{what} returned: {why}"
        self.outcomes.append(_outcome(name, self.at_s, self.at_s, True, text))

    def _confine(self, name: str, kind: Confinement, *, confined: bool, cap: CoreCap | None) -> None:
        """Set or end one confinement; later samples are of the new settings."""
        self.now = replace(self.now, rates=(), since_s=self.at_s)
        if kind is Confinement.FEWER_CORES:
            others = tuple(each for each in self.now.capped if each.name != name)
            caps = (*others, cap) if cap is not None else others
            self.now = replace(self.now, capped=tuple(sorted(caps, key=lambda each: each.name)))
        else:
            names = {*self.now.confined, name} if confined else {*self.now.confined} - {name}
            self.now = replace(self.now, confined=tuple(sorted(names)))

    def _void(self, why: str) -> None:
        """Undo a trial that cannot be evaluated, with a pause that doubles."""
        trial = self.now.trial
        if trial is None:
            return
        known = self._known(trial.name, trial.kind)
        voids = known.voids if known is not None else 0
        pause_s = doubled_s(self.policy.release_after_s, voids)
        if why == CHANGED_MEANWHILE:
            # While LRAs settle, batch's resources change often and soon stay.
            pause_s = doubled_s(SOON * self.policy.release_after_s, voids - 1)
        if why == NOT_MEANWHILE and not trial.confines:
            # Perhaps the LRA needs this confinement, so it is not lifted again soon.
            times = known.times if known is not None else 0
            pause_s = doubled_s(self.policy.streaming_recheck_s, max(times, voids))
        self._undo(trial)
        if known is not None and trial.confines and trial.former is not None:
            self._keep_settled(replace(known, voids=voids + 1, step_s=self.at_s + pause_s))
        else:
            self._settle(trial.name, trial.kind, pause_s, voids=voids + 1)
        self.outcomes.append(
            _outcome(trial.name, self.at_s, trial.at_s, False, f"{self._what(trial)}: {why}; undone")
        )

    def _undo(self, trial: Trial) -> None:
        self.now = replace(self.now, trial=None)
        self._confine(trial.name, trial.kind, confined=not trial.confines, cap=trial.former)

    def _known(self, name: str, kind: Confinement) -> Settled | None:
        return next((s for s in self.now.settled if s.name == name and s.kind is kind), None)

    def _settle(
        self, name: str, kind: Confinement, wait_s: float, *, voids: int, times: int | None = None,
        step_s: float = math.inf,
    ) -> None:  # fmt: skip
        known = self._known(name, kind)
        times = times if times is not None else known.times if known is not None else 0
        self._keep_settled(Settled(name, self.at_s + wait_s, times, voids, kind, step_s))

    def _keep_settled(self, pause: Settled) -> None:
        others = (s for s in self.now.settled if s.name != pause.name or s.kind is not pause.kind)
        self.now = replace(self.now, settled=(*others, pause))

    # -- trying ---------------------------------------------------------------------------------------

    def _note_rates(self) -> None:
        """Record the busy jobs' rates once caches have had time to fill; short samples are skipped."""
        period_s = self.snapshot.period_s
        if self.at_s - self.now.since_s <= self.policy.settle_s + period_s * 1.5:
            return
        samples = [self.jobs[name].sample for name in self.busy]
        if any(s is not None and is_short(s, period_s) for s in samples):
            return
        rates = tuple((name, rate_of(self.jobs[name])) for name in self.busy)
        known = (
            self.now.rates if self.now.rates and [n for n, _ in self.now.rates[-1]] == [*self.busy] else ()
        )
        self.now = replace(self.now, rates=(*known, rates)[-MOST_RATES:])

    def _try(self) -> None:
        """Start the next trial: with the job that misses most, the mask before the cores."""
        misses = {name: misses_per_s(self.jobs[name]) for name in self.busy}
        least = MUCH * sum(misses.values())
        for name in sorted(misses, key=lambda n: (-misses[n], n)):
            if misses[name] <= 0.0:
                continue
            for kind in Confinement:
                trial = self._possible(name, kind, misses[name] >= least)
                if trial is not None:
                    self._confine(name, kind, confined=trial.confines, cap=trial.cap)
                    self.now = replace(self.now, trial=trial)
                    return
                if self._repeats_soon(name, kind):
                    return

    def _repeats_soon(self, name: str, kind: Confinement) -> bool:
        """True during a short pause after a trial that could not be evaluated; less likely trials then wait."""
        known = self._known(name, kind)
        if known is None or known.voids == 0 or not self._can_set(name, kind):
            return False
        further = known.step_s if known.step_s < math.inf else known.until_s
        return self.at_s < further <= self.at_s + self.policy.release_after_s

    def _can_set(self, name: str, kind: Confinement) -> bool:
        return name in (self.cappable if kind is Confinement.FEWER_CORES else self.cacheable)

    def _possible(self, name: str, kind: Confinement, much: bool) -> Trial | None:
        """The trial that is due with this job, if any: to lift its confinement, or to confine it (further).

        ``much``: it misses enough for others to gain.
        """
        known, now = self._known(name, kind), self.now
        if not self._can_set(name, kind):
            return None
        due = known is None or known.until_s <= self.at_s
        cap = now.cap(name) if kind is Confinement.FEWER_CORES else None
        if now.holds(name, kind) and due:
            return Trial(name, False, self.at_s, now.rates, kind, None, cap)
        others = [n for n in self.busy if n != name and not now.holds(n, kind)]
        if not much or not others:
            return None
        if kind is Confinement.LEAST_CACHE:
            free = due and name not in now.confined
            return Trial(name, True, self.at_s, now.rates, kind) if free else None
        if not (due or (cap is not None and known is not None and known.step_s <= self.at_s)):
            return None
        if name in self.cacheable and name not in now.confined:
            return None  # it needs its cache, or this is not known yet
        topology, view, wanted = self.snapshot.host.topology, self.jobs[name], self.settings[name]
        cores = next_cap(view, topology, wanted, cap) if may_begin(view, topology, wanted) else None
        if cores is None:
            return None
        change = cap.change if cap is not None else 0.0
        return Trial(name, True, self.at_s, now.rates, kind, CoreCap(name, cores, change), cap)

    def _judge(self, trial: Trial) -> None:
        rates, policy = self.now.rates, self.policy
        changed = changes(trial.before, rates)
        if len(rates) < AFTER_LEAST or not changed:
            most_s = policy.settle_s + PATIENCE * AFTER * self.snapshot.period_s
            if self.at_s - trial.at_s > most_s:
                self._void("batch jobs started or ended meanwhile")
            return
        gain = statistics.fmean(changed.values())
        doubt = CERTAIN * math.hypot(standard_error(trial.before), standard_error(rates))
        wanted = math.log1p(policy.streaming_gain_pct / 100.0)
        if trial.confines:
            good = gain >= max(wanted, doubt)
            least = math.log1p(-bearable_loss(policy, trial.kind))
            good = good and _loss(trial, changed[trial.name]) >= least
            clear = gain - doubt >= wanted or gain + doubt < 0.0
        else:
            good = gain > -max(wanted / 2.0, doubt)
            clear = gain - doubt >= 0.0 or gain + doubt < -wanted
        if not clear and len(rates) < AFTER:
            return
        told = ", ".join(f"{name} {math.expm1(change):+.0%}" for name, change in sorted(changed.items()))
        text = f"{self._what(trial)}: {told}; {'kept' if good else 'undone'}"
        self._settle_judged(trial, good)
        if good:
            # The rates under the new setting are the baseline of the next trial.
            self.now = replace(self.now, trial=None, last=replace(trial, at_s=self.at_s))
            if trial.cap is not None:
                self._count_loss(trial, changed[trial.name])
            elif trial.confines:
                self._spare_users_of_cache(trial, changed)
        else:
            self._undo(trial)
        self.outcomes.append(_outcome(trial.name, self.at_s, trial.at_s, good, text))

    def _settle_judged(self, trial: Trial, good: bool) -> None:
        """Pause after a trial that was evaluated."""
        known = self._known(trial.name, trial.kind)
        if known is not None and trial.confines and trial.former is not None and not good:
            # The former cap is in force again, and the next trial lifts it.
            self._keep_settled(replace(known, voids=0, step_s=math.inf))
            return
        times = known.times + 1 if known is not None and known.voids == 0 and not good else 0
        wait_s = doubled_s(self.policy.streaming_recheck_s, times)
        further_s = self.at_s if trial.confines is good else math.inf
        self._settle(trial.name, trial.kind, wait_s, voids=0, times=times, step_s=further_s)

    def _spare_users_of_cache(self, trial: Trial, changed: Mapping[str, float]) -> None:
        """Try no smaller mask on jobs that clearly gained by more cache: they would lose as much."""
        lost = -math.log1p(-bearable_loss(self.policy, trial.kind))
        least = max(lost, math.log1p(self.policy.streaming_gain_pct / 100.0))
        for name, change in changed.items():
            if change > least and name not in self.now.confined:
                self._settle(name, trial.kind, self.policy.streaming_recheck_s, voids=0, times=0)

    def _count_loss(self, trial: Trial, change: float) -> None:
        """Record the change of a capped job's rate, which counts against its later steps."""
        assert trial.cap is not None
        cap = replace(trial.cap, change=_loss(trial, change))
        others = (each for each in self.now.capped if each.name != trial.name)
        capped = tuple(sorted((*others, cap), key=lambda each: each.name))
        self.now = replace(self.now, capped=capped, last=replace(self.now.last, cap=cap))

    def _what(self, trial: Trial) -> str:
        if trial.kind is Confinement.LEAST_CACHE:
            return f"{'the least of the cache' if trial.confines else 'the whole cache back'} as a trial"
        cores = len(core_masks(self.snapshot.host.topology, self.settings[trial.name].cpus))
        if trial.cap is None:
            return f"all of batch's {cores} cores back as a trial"
        return f"{min(trial.cap.cores, cores)} of batch's {cores} cores as a trial"


def _loss(trial: Trial, change: float) -> float:
    """Change of the logarithm of the job's rate since it was without this kind of confinement."""
    return change + (trial.former.change if trial.former is not None else 0.0)


def _outcome(name: str, at_s: float, decided_at_s: float, kept: bool, text: str) -> Outcome:
    none: Reading = Unavailable("batch has no target")
    return Outcome(at_s, name, decided_at_s, none, none, kept, text)
