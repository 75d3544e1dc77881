"""Batch that streams: a job that fills the cache with what it never asks for again gets the least of it.

Where several batch jobs share the cache, one that streams through memory wins nothing there and turns the others' data
out, an LRA's as well. Which one that is cannot be told from its misses alone, so it is tried: the job that misses most
is kept to the smallest mask that the kernel takes, everybody else stays as they are, and the instructions per second
of all batch jobs before and after decide. It stays so if batch as a whole clearly gets more done (in the mean of the
logarithms, so that no job's unit counts for more) and the job itself loses next to nothing; it is tried again without
from time to time, because programs change.

Nothing is taken from an LRA, nothing is tried while one of them is below its target, and nothing that was just changed
for an LRA is disturbed. A tick is one pass over values: ``Streaming`` goes in and comes out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.backoff import doubled_s
from perphd.admission.batch_rates import Rates, changes, is_busy, rate_of, standard_error
from perphd.admission.context import batches
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.decision import Outcome
from perphd.domain.policy import HostView, Snapshot, WorkloadView
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import Quality

BEFORE: Final = 4
"""Samples under the same settings, all LRAs well, before anything is tried."""
AFTER_LEAST: Final = 2
AFTER: Final = 5
"""Samples by which a trial is judged: where they are clear, and at most."""
MOST_RATES: Final = 12
MUCH: Final = 0.1
"""Share of batch's cache misses that a job must have to be tried: others have nothing to win from it."""
CERTAIN: Final = 2.0
"""Standard errors that a gain must exceed."""

InForce = tuple[tuple[str, Settings], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """``name``: kept to the least cache since ``at_s`` (let go, if not ``confines``); ``before``: rates until then."""

    name: str
    confines: bool
    at_s: float
    before: tuple[Rates, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """This job is not tried again until then; so many trials in a row have come to the same."""

    name: str
    until_s: float
    times: int = 0


@dataclass(frozen=True, slots=True)
class Streaming:
    """What is remembered. ``confined``: jobs kept to the least cache; ``rates``: of the samples since the last change.

    ``around``: what is in force for everybody, but for this; ``since_s``: since when it is so, and this as well.
    ``lone_since_s``: since when there are not two jobs that could gain.
    """

    confined: tuple[str, ...] = ()
    trial: Trial | None = None
    rates: tuple[Rates, ...] = ()
    settled: tuple[Settled, ...] = ()
    around: InForce = ()
    since_s: float = 0.0
    lone_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one tick came to. ``settings``: everybody's, with the masks of those that are confined."""

    streaming: Streaming
    settings: Mapping[str, Settings]
    outcomes: tuple[Outcome, ...] = ()


def advance(
    before: Streaming,
    snapshot: Snapshot,
    settings: Mapping[str, Settings],
    well: bool,
    policy: PolicySettings,
) -> Step:
    """One tick.

    Args:
        before: what was remembered.
        snapshot: the host now.
        settings: what has been decided for everybody.
        well: every LRA can be judged and is on its target.
        policy: thresholds and delays.
    """
    if not policy.confine_streaming:
        return Step(Streaming(), settings)
    jobs = {v.spec.name: v for v in batches(snapshot) if _can(v, snapshot.host, settings)}
    busy = tuple(name for name, view in jobs.items() if is_busy(view))
    there = {view.spec.name for view in batches(snapshot)}
    now = replace(
        before,
        confined=tuple(n for n in before.confined if n in jobs),
        settled=tuple(s for s in before.settled if s.name in there),
    )
    if now.trial is not None and now.trial.name not in jobs:
        now = replace(now, trial=None, rates=(), since_s=snapshot.at_s)
    now, ended = _work(now, snapshot, jobs, busy, settings, well, policy)
    in_force = dict(settings)
    for name in now.confined:
        in_force[name] = replace(settings[name], llc_masks=_least(snapshot.host, settings[name]))
    return Step(now, in_force, ended)


def _work(
    now: Streaming,
    snapshot: Snapshot,
    jobs: Mapping[str, WorkloadView],
    busy: Sequence[str],
    settings: Mapping[str, Settings],
    well: bool,
    policy: PolicySettings,
) -> tuple[Streaming, tuple[Outcome, ...]]:
    at_s = snapshot.at_s
    if len(busy) < 2:
        since_s = now.lone_since_s if now.lone_since_s is not None else at_s
        if at_s - since_s >= policy.release_after_s:
            return Streaming(settled=now.settled, around=now.around, since_s=at_s, lone_since_s=since_s), ()
        return replace(_void(now, at_s), lone_since_s=since_s), ()
    now = replace(now, lone_since_s=None)
    around = tuple(sorted((name, _caches_and_cores(s)) for name, s in settings.items()))
    if around != now.around:
        # What batch has to share has changed: what was measured is of another host.
        return replace(_void(now, at_s), around=around, since_s=at_s), ()
    if now.trial is not None and not well:
        return _decided(now, now.trial, False, at_s, policy), (
            _outcome(now.trial, at_s, False, "an LRA was not on its target meanwhile"),
        )
    if at_s - now.since_s > policy.settle_s + snapshot.period_s * 1.5:  # caches fill for a moment
        rates = tuple((name, rate_of(jobs[name])) for name in busy)
        known = now.rates if now.rates and [n for n, _ in now.rates[-1]] == [n for n, _ in rates] else ()
        now = replace(now, rates=(*known, rates)[-MOST_RATES:])
    if now.trial is not None:
        return _judged(now, now.trial, at_s, policy)
    if not well or len(now.rates) < BEFORE:
        return now, ()
    found = _candidate(now, jobs, busy, at_s)
    if found is None:
        return now, ()
    trial = Trial(found, found not in now.confined, at_s, now.rates)
    return replace(now, trial=trial, confined=_toggled(now, trial), rates=(), since_s=at_s), ()


def _candidate(
    now: Streaming, jobs: Mapping[str, WorkloadView], busy: Sequence[str], at_s: float
) -> str | None:
    """Who is tried next: of those that miss much, who misses most; somebody must be left to gain."""
    waiting = {s.name for s in now.settled if s.until_s > at_s}
    misses = {name: _misses(jobs[name]) for name in busy}
    total = sum(misses.values())
    if total <= 0.0:
        return None
    free = [name for name in busy if name not in now.confined]
    open_to = [n for n in busy if n not in waiting and (n in now.confined or misses[n] >= MUCH * total)]
    open_to = [n for n in open_to if n in now.confined or len(free) > 1]
    return max(open_to, key=lambda n: (misses[n], n), default=None)


def _judged(
    now: Streaming, trial: Trial, at_s: float, policy: PolicySettings
) -> tuple[Streaming, tuple[Outcome, ...]]:
    if len(now.rates) < AFTER_LEAST:
        return now, ()
    changed = changes(trial.before, now.rates)
    if not changed:
        return _void(now, at_s), ()
    gain = statistics.fmean(changed.values())
    doubt = CERTAIN * math.hypot(standard_error(trial.before), standard_error(now.rates))
    wanted = math.log1p(policy.streaming_gain_pct / 100.0)
    if trial.confines:
        good = gain >= max(wanted, doubt)
        good = good and changed[trial.name] >= math.log1p(-policy.streaming_loss_pct / 100.0)
        clear = gain - doubt >= wanted or gain + doubt < 0.0
    else:
        good = gain > -max(wanted / 2.0, doubt)
        clear = gain - doubt >= 0.0 or gain + doubt < -wanted
    if not clear and len(now.rates) < AFTER:
        return now, ()
    told = ", ".join(f"{name} {math.expm1(change):+.0%}" for name, change in sorted(changed.items()))
    return _decided(now, trial, good, at_s, policy), (_outcome(trial, at_s, good, told),)


def _decided(now: Streaming, trial: Trial, good: bool, at_s: float, policy: PolicySettings) -> Streaming:
    """After a trial: it stands or is undone, and is not made again for a while."""
    known = next((s for s in now.settled if s.name == trial.name), None)
    times = known.times + 1 if known is not None and not good else 0
    wait_s = doubled_s(policy.streaming_recheck_s, times)
    settled = (*(s for s in now.settled if s.name != trial.name), Settled(trial.name, at_s + wait_s, times))
    undone = replace(now, trial=None, settled=settled)
    if good:
        # What was measured under it is what the next trial is compared with.
        return undone
    return replace(undone, confined=_toggled(now, trial), rates=(), since_s=at_s)


def _void(now: Streaming, at_s: float) -> Streaming:
    """A trial that cannot be judged is undone, and nothing is held against it."""
    confined = now.confined if now.trial is None else _toggled(now, now.trial)
    return replace(now, trial=None, confined=confined, rates=(), since_s=at_s)


def _toggled(now: Streaming, trial: Trial) -> tuple[str, ...]:
    if trial.name in now.confined:
        return tuple(n for n in now.confined if n != trial.name)
    return tuple(sorted((*now.confined, trial.name)))


def _outcome(trial: Trial, at_s: float, kept: bool, told: str) -> Outcome:
    what = "the least of the cache" if trial.confines else "its share of the cache back"
    text = f"{what} as a trial: {told}; {'kept' if kept else 'undone'}"
    none: Reading = Unavailable("batch has no target")
    return Outcome(at_s, trial.name, trial.at_s, none, none, kept, text)


# -- looking ------------------------------------------------------------------------------------------


def _can(view: WorkloadView, host: HostView, settings: Mapping[str, Settings]) -> bool:
    """True if this job's ways can be set, and are more than the least."""
    if view.sample is None or view.sample.has(Quality.GONE) or not view.enforced:
        return False
    if "llc_masks" not in view.enforceable or host.llc_ways <= host.min_cbm_bits:
        return False
    masks = settings[view.spec.name].llc_masks
    return masks is KEEP or all(mask.bit_count() > host.min_cbm_bits for _, mask in masks)


def _misses(view: WorkloadView) -> float:
    """Cache misses a second, in some unit that is the same for all; 0 where they are not counted."""
    sample = view.sample
    if sample is None or not available(sample.llc_mpki):
        return 0.0
    return sample.llc_mpki * value_or(sample.mips, 0.0)


def _least(host: HostView, settings: Settings) -> tuple[tuple[int, int], ...]:
    """The smallest mask inside of what it has, at the end that devices do not share (see ``ladder.batch_mask``)."""
    least = (1 << host.min_cbm_bits) - 1
    if settings.llc_masks is KEEP:
        return tuple((domain.domain, least) for domain in host.topology.l3_domains)
    return tuple((domain, least << ((mask & -mask).bit_length() - 1)) for domain, mask in settings.llc_masks)


def _caches_and_cores(settings: Settings) -> Settings:
    """Of what is in force, what a job's speed depends on at once."""
    return Settings(
        cpus=settings.cpus,
        cpu_weight=settings.cpu_weight,
        cpu_max_cores=settings.cpu_max_cores,
        llc_masks=settings.llc_masks,
        mba_pct=settings.mba_pct,
    )
