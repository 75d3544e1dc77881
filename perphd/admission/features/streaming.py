"""Confines streaming batch jobs, which pollute the cache without benefit, to the smallest cache mask.

If several batch jobs share a cache, a job that streams through memory gains nothing from it, but evicts the
data of other jobs and of LRAs. Misses alone do not identify it, so confinement is tried: the job that misses
most is confined to the smallest mask, and the instruction rates of all busy jobs before and after decide. The
confinement stays if the jobs together clearly gain (mean of logarithms, so that every job has equal weight)
and the job itself loses almost nothing. It is lifted from time to time as a trial, because programs change.

LRAs lose nothing. No trial starts while an LRA is below its target or is being relieved. If this happens later, a
running trial ends, as does a recent confinement. A tick is one pass over values: ``Streaming`` is the only state.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.admission.context import batches
from perphd.admission.inference import way_layout
from perphd.admission.inference.domains import domains_of
from perphd.admission.review.batch_rates import Rates, changes, is_busy, rate_of, standard_error
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import Outcome
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.quick import replace
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality, is_short

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
LEAST_CLASSES: Final = 4
"""Number of CLOSIDs needed for confinement: the default group's, batch's, the confined jobs', and a spare."""
NOT_MEANWHILE: Final = "an LRA was below its target or being relieved meanwhile"

InForce = tuple[tuple[str, Settings], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial with the job ``name``.

    ``confines``: True: the trial confines the job; False: it lifts the confinement. ``at_s``: start of the trial.
    ``before``: rates before the trial.
    """

    name: str
    confines: bool
    at_s: float
    before: tuple[Rates, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """A pause of trials with one job.

    ``times``: consecutive trials with the same result. ``voids``: consecutive trials that could not be evaluated.
    """

    name: str
    until_s: float
    times: int = 0
    voids: int = 0


@dataclass(frozen=True, slots=True)
class Streaming:
    """The state of all trials and confinements.

    ``confined``: jobs confined to the smallest mask. ``rates``: rates of the samples since the last change.
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
    """Result of one tick. ``settings``: all settings, with the confined jobs' masks."""

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
    for name in tick.now.confined:
        if name in tick.jobs:
            in_force[name] = replace(settings[name], llc_masks=_least(snapshot.host, settings[name]))
    return Step(tick.now, in_force, tuple(tick.outcomes))


class _Tick:
    """Working values of one tick."""

    def __init__(
        self, before: Streaming, snapshot: Snapshot, settings: Mapping[str, Settings], policy: PolicySettings
    ) -> None:
        self.snapshot, self.settings, self.policy, self.at_s = snapshot, settings, policy, snapshot.at_s
        there = {view.spec.name for view in batches(snapshot)}
        self.jobs = {v.spec.name: v for v in batches(snapshot) if _can(v, snapshot.host, settings)}
        self.busy = self._busy()
        self.outcomes: list[Outcome] = []
        # Confinement survives a pause in which it cannot be set; removed jobs are forgotten.
        self.now = replace(
            before,
            confined=tuple(n for n in before.confined if n in there),
            settled=tuple(s for s in before.settled if s.name in there),
            trial=before.trial if before.trial is not None and before.trial.name in there else None,
            last=before.last if before.last is not None and before.last.name in there else None,
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
        around = tuple(sorted((name, _caches_and_cores(s)) for name, s in self.settings.items()))
        if around != self.now.around:
            # Batch's resources have changed, so earlier measurements no longer apply.
            self._void("batch's resources changed meanwhile")
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
            for name in self.now.confined:
                self._let_go(name, why)
        return True

    def _while_unwell(self) -> None:
        """End a trial and a recent confinement, and lift confinement that is overdue for a trial."""
        self.now = replace(self.now, rates=(), since_s=self.at_s)
        last = self.now.last
        self._void(NOT_MEANWHILE)
        recent = last is not None and self.at_s - last.at_s <= self.policy.release_after_s
        if last is not None and recent and last.name in self.now.confined:
            self._let_go(last.name, NOT_MEANWHILE)
            self._settle(last.name, self.policy.streaming_recheck_s, voids=0)
        for name in self.now.confined:
            known = self._known(name)
            if known is None or known.until_s + self.policy.streaming_recheck_s < self.at_s:
                self._let_go(name, "its benefit could not be verified for too long")

    def _let_go(self, name: str, why: str) -> None:
        at_s, confined = self.at_s, tuple(n for n in self.now.confined if n != name)
        self.now = replace(self.now, confined=confined, rates=(), since_s=at_s)
        text = f"its share of the cache is returned: {why}"
        self.outcomes.append(_outcome(name, at_s, at_s, True, text))

    def _void(self, why: str) -> None:
        """Undo a trial that cannot be evaluated, with a pause that doubles."""
        trial = self.now.trial
        if trial is None:
            return
        known = self._known(trial.name)
        voids = known.voids if known is not None else 0
        self._undo(trial)
        self._settle(trial.name, doubled_s(self.policy.release_after_s, voids), voids=voids + 1)
        self.outcomes.append(
            _outcome(trial.name, self.at_s, trial.at_s, False, f"{_what(trial)}: {why}; undone")
        )

    def _undo(self, trial: Trial) -> None:
        confined = _toggled(self.now.confined, trial.name)
        self.now = replace(self.now, trial=None, confined=confined, rates=(), since_s=self.at_s)

    def _known(self, name: str) -> Settled | None:
        return next((s for s in self.now.settled if s.name == name), None)

    def _settle(self, name: str, wait_s: float, *, voids: int, times: int | None = None) -> None:
        known = self._known(name)
        times = times if times is not None else known.times if known is not None else 0
        others = tuple(s for s in self.now.settled if s.name != name)
        self.now = replace(self.now, settled=(*others, Settled(name, self.at_s + wait_s, times, voids)))

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
        """Start a trial with the job that misses most, if another busy job remains that may gain."""
        now = self.now
        waiting = {s.name for s in now.settled if s.until_s > self.at_s}
        misses = {name: _misses(self.jobs[name]) for name in self.busy}
        least = MUCH * sum(misses.values())
        free = [name for name in self.busy if name not in now.confined]
        for name in sorted(misses, key=lambda n: (-misses[n], n)):
            if name in waiting or misses[name] <= 0.0:
                continue
            if name in now.confined or (misses[name] >= least and len(free) > 1):
                trial = Trial(name, name not in now.confined, self.at_s, now.rates)
                confined = _toggled(now.confined, name)
                self.now = replace(now, trial=trial, confined=confined, rates=(), since_s=self.at_s)
                return

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
            good = good and changed[trial.name] >= math.log1p(-policy.streaming_loss_pct / 100.0)
            clear = gain - doubt >= wanted or gain + doubt < 0.0
        else:
            good = gain > -max(wanted / 2.0, doubt)
            clear = gain - doubt >= 0.0 or gain + doubt < -wanted
        if not clear and len(rates) < AFTER:
            return
        known = self._known(trial.name)
        times = known.times + 1 if known is not None and known.voids == 0 and not good else 0
        self._settle(trial.name, doubled_s(policy.streaming_recheck_s, times), voids=0, times=times)
        if good:
            # The rates under the new setting are the baseline of the next trial.
            self.now = replace(self.now, trial=None, last=replace(trial, at_s=self.at_s))
        else:
            self._undo(trial)
        told = ", ".join(f"{name} {math.expm1(change):+.0%}" for name, change in sorted(changed.items()))
        text = f"{_what(trial)}: {told}; {'kept' if good else 'undone'}"
        self.outcomes.append(_outcome(trial.name, self.at_s, trial.at_s, good, text))


def _toggled(confined: Sequence[str], name: str) -> tuple[str, ...]:
    if name in confined:
        return tuple(n for n in confined if n != name)
    return tuple(sorted((*confined, name)))


def _what(trial: Trial) -> str:
    return f"{'the least of the cache' if trial.confines else 'the whole cache back'} as a trial"


def _outcome(name: str, at_s: float, decided_at_s: float, kept: bool, text: str) -> Outcome:
    none: Reading = Unavailable("batch has no target")
    return Outcome(at_s, name, decided_at_s, none, none, kept, text)


# -- looking ------------------------------------------------------------------------------------------


def _can(view: WorkloadView, host: HostView, settings: Mapping[str, Settings]) -> bool:
    """True if this job's ways can be set and exceed the minimum."""
    if view.sample is None or view.sample.has(Quality.GONE) or not view.enforced:
        return False
    if "llc_masks" not in view.enforceable or host.llc_ways <= host.min_cbm_bits:
        return False
    if 0 < host.llc_classes < LEAST_CLASSES:
        return False
    masks = settings[view.spec.name].llc_masks
    return masks is KEEP or all(mask.bit_count() > host.min_cbm_bits for _, mask in masks)


def _misses(view: WorkloadView) -> float:
    """Cache misses per second, in an arbitrary unit that is the same for all jobs; 0 if not counted."""
    sample = view.sample
    if sample is None or not available(sample.llc_mpki):
        return 0.0
    return sample.llc_mpki * value_or(sample.mips, 0.0)


def _least(host: HostView, settings: Settings) -> tuple[tuple[int, int], ...]:
    """The smallest mask within the job's mask, at the end that devices do not share (see ``ladder.batch_mask``)."""
    least = (1 << host.min_cbm_bits) - 1
    masks = {} if settings.llc_masks is KEEP else dict(settings.llc_masks)
    domains = (each.domain for each in host.topology.l3_domains)
    whole = (1 << host.llc_ways) - 1
    if way_layout.cache_domain(host).batch_end_is_low:
        return tuple((d, least << (masks.get(d, whole).bit_length() - host.min_cbm_bits)) for d in domains)
    return tuple(
        (d, least << ((masks.get(d, whole) & -masks.get(d, whole)).bit_length() - 1)) for d in domains
    )


def _caches_and_cores(settings: Settings) -> Settings:
    """The part of ``settings`` that affects a job's speed at once: CPUs, cache and bandwidth."""
    return Settings(
        cpus=settings.cpus,
        cpu_weight=settings.cpu_weight,
        cpu_max_cores=settings.cpu_max_cores,
        llc_masks=settings.llc_masks,
        mba_pct=settings.mba_pct,
    )
