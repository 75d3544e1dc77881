"""When to look more often: while something is in flux, a quarter of a second is long; otherwise it is wasted work.

Batch that has just come, a change that is being judged and an LRA that gets worse are worth samples at a faster pace:
what harms is seen, and what has harmed is taken back, sooner. A quiet host is sampled at its usual period.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.context import lras
from perphd.domain.decision import TROUBLED, Action, Decision
from perphd.domain.policy import Snapshot, TargetState, WorkloadView
from perphd.domain.reading import available
from perphd.domain.workload import SLOW_SOURCES

TROUBLE_S: Final = 10.0
"""Trouble that lasts longer is looked at no more often than anything else: what could be done soon has been done."""
LEAST_REQUESTS: Final = 50.0
"""Fewer answers in a sample do not tell a percentile."""


@dataclass(frozen=True, slots=True)
class Attention:
    """``until_s``: samples are taken at the faster pace until then; ``there``: the workloads of the last tick;
    ``why``: what the faster pace is for, of the last such event.
    """

    until_s: float = -math.inf
    there: frozenset[str] = frozenset()
    why: str = ""


def advance(
    before: Attention,
    snapshot: Snapshot,
    target: TargetState,
    fast_period_s: float,
    lasts_s: float,
    *,
    started: Collection[str] = (),
) -> Attention:
    """What follows from a tick: who is there, and what was decided.

    Args:
        before: of the last tick.
        snapshot: what was seen.
        target: what was decided.
        fast_period_s: the faster pace, in seconds between two samples.
        lasts_s: so long after a change, an arrival or a sample in trouble the faster pace is kept.
        started: batch of which the kernel has told that it starts, whether it has a sample yet or not.
    """
    there = frozenset(view.spec.name for view in snapshot.workloads if view.sample is not None)
    guarded = list(_guarded(snapshot))
    if not guarded or not all(_tells_so_often(view, fast_period_s) for view in guarded):
        return Attention(there=there)
    names = {view.spec.name for view in guarded}
    decisions = [decision for decision in target.decisions if decision.workload in names]
    come = {*started, *(there - before.there)}
    why = next(_in_flux(come, decisions, snapshot.at_s), "")
    return Attention(snapshot.at_s + lasts_s, there, why) if why else replace(before, there=there)


def _in_flux(come: Iterable[str], decisions: Iterable[Decision], now_s: float) -> Iterator[str]:
    """What is in flux, most telling first."""
    for name in sorted(come):
        yield f"{name} has come"
    for decision in decisions:
        if decision.action is not Action.HOLD:
            yield f"{decision.workload}: what comes of {decision.action}"
        verdict = decision.verdict
        if verdict.health in TROUBLED and now_s - verdict.since_s <= TROUBLE_S:
            yield f"{decision.workload} is {verdict.health}"


def next_in_s(attention: Attention, now_s: float, period_s: float, fast_period_s: float) -> float:
    """Time from a tick at ``now_s`` to the next, in seconds. ``fast_period_s`` from ``period_s`` on: always that."""
    return min(period_s, fast_period_s) if now_s < attention.until_s else period_s


def _guarded(snapshot: Snapshot) -> Iterator[WorkloadView]:
    """The LRAs that are there and for which something may be written."""
    return (view for view in lras(snapshot) if view.enforced and view.sample is not None)


def _tells_so_often(view: WorkloadView, fast_period_s: float) -> bool:
    """True if each of its samples at the faster pace is news of its own, and of enough requests.

    What an application hands over at its own pace is read again and again, until there is more.
    """
    if view.sample is None or (view.spec.sli is not None and view.spec.sli.source in SLOW_SOURCES):
        return False
    every_s = view.sample.sli_resolution_s
    if available(every_s) and every_s > fast_period_s:
        return False  # between two reports there is nothing to see
    rate = view.sample.work_rate_per_s
    return not available(rate) or rate * fast_period_s >= LEAST_REQUESTS
