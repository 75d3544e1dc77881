"""Decides when to sample faster than the usual period.

After batch starts, while a change is evaluated, and while an LRA gets worse, faster samples show harm and its relief
sooner. A quiet host is sampled at the usual period.
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
"""Seconds after which trouble no longer causes faster sampling."""
LEAST_REQUESTS: Final = 50.0
"""Requests per sample below which a latency percentile is meaningless."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The end of and the reason for faster sampling.

    ``until_s``: end of faster sampling. ``there``: workloads present at the last tick. ``why``: the latest reason for
    faster sampling, in words.
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
    """The state after a tick.

    Args:
        before: state after the last tick.
        snapshot: the samples of this tick.
        target: the decisions of this tick.
        fast_period_s: period of faster sampling.
        lasts_s: duration of faster sampling after an arrival, a change or a sample in trouble.
        started: batch that the kernel reported as started, with or without a sample.
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
    """Yield reasons for faster sampling, strongest first."""
    for name in sorted(come):
        yield f"{name} has started"
    for decision in decisions:
        if decision.action is not Action.HOLD:
            yield f"{decision.workload}: effect of {decision.action}"
        verdict = decision.verdict
        if verdict.health in TROUBLED and now_s - verdict.since_s <= TROUBLE_S:
            yield f"{decision.workload} is {verdict.health}"


def next_in_s(attention: Attention, now_s: float, period_s: float, fast_period_s: float) -> float:
    """Seconds from a tick at ``now_s`` to the next. Never more than ``period_s``."""
    return min(period_s, fast_period_s) if now_s < attention.until_s else period_s


def _guarded(snapshot: Snapshot) -> Iterator[WorkloadView]:
    """The LRAs that have a sample and are enforced."""
    return (view for view in lras(snapshot) if view.enforced and view.sample is not None)


def _tells_so_often(view: WorkloadView, fast_period_s: float) -> bool:
    """True if each faster sample of this LRA brings new data, from enough requests.

    An application that reports at its own pace repeats its last figures between reports.
    """
    if view.sample is None or (view.spec.sli is not None and view.spec.sli.source in SLOW_SOURCES):
        return False
    every_s = view.sample.sli_resolution_s
    if available(every_s) and every_s > fast_period_s:
        return False  # no new report within one fast period
    rate = view.sample.work_rate_per_s
    return not available(rate) or rate * fast_period_s >= LEAST_REQUESTS
