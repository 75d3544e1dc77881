"""Computes the figures of a report.

Problem: in observe, perphd changes nothing, so its effect can only be predicted.

Approach: time is divided into windows of ten seconds. A window is *on target* if the LRA's delay (without one, its
work) met the target of the decision in force. perphd would have recovered most of the windows that missed it, and batch
would have given way in its runs in which an LRA needed protection. The shares come from simulated weeks, run in observe
and in enforce from the same seed, and the bands are as wide as the errors there (``calibration``,
docs/how-to/report.md). Less than ``LEAST_S`` of judged time is too little for a prediction.

In enforce there is no prediction: the same figures are measurements.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.domain.decision import Action, Cause, Health
from perphd.domain.reading import Reading, available
from perphd.domain.workload import Mode
from perphd.report.calibration import Banded, predicted_batch_kept, predicted_on_target
from perphd.report.rows import WINDOW_S, Decided, ReportHistory, ReportWindow

STALE_S: Final = 300.0
"""Maximum age in seconds of a decision's target; unchanged decisions are stored once a minute."""
LEAST_S: Final = 600.0
"""Minimum judged time in observe for a prediction, in seconds."""
RUNNING_CORES: Final = 0.05
"""CPU use of all batch, in cores, below which batch counts as not running."""
SAME_LOAD: Final = 0.15
"""Relative difference of work within which windows count as having the same load."""
PLACES: Final = 84
"""Number of points of a plot; for a week, each covers two hours."""


@dataclass(frozen=True, slots=True)
class MetShare:
    """Number of windows with a known target, and the percentage of them that met it."""

    windows: int
    pct: float

    @property
    def hours(self) -> float:
        """Time covered by the windows, in hours."""
        return self.windows * WINDOW_S / 3600.0


@dataclass(frozen=True, slots=True)
class ReportPlace:
    """One point of a plot: hours since the start, and share of time on target in % by mode (None: no data)."""

    hours: float
    observe_pct: float | None
    enforce_pct: float | None


@dataclass(frozen=True, slots=True)
class LraSummary:
    """Figures for one LRA.

    ``observed``, ``enforced``: share on target in these modes. ``predicted``: the share predicted for the
    observed time with perphd. ``too_short_s``: the judged time in observe while it is too short for that; None: it is
    not, or the LRA is not in observe now.
    ``inherent_pct``: share of the observed time missed at such a load even without batch. ``acted``: decisions that
    changed something, or would have for the first time, by mode, action and cause. ``degraded``: hours by cause.
    ``kept``, ``rolled_back``: numbers of changes that stood at their review, and that were rolled back by it.
    """

    lra: str
    observed: MetShare | None
    enforced: MetShare | None
    predicted: Banded | None
    inherent_pct: float
    acted: tuple[tuple[Mode, Action, Cause, int], ...]
    degraded: tuple[tuple[Cause, float], ...]
    kept: int
    rolled_back: int
    places: tuple[ReportPlace, ...]
    too_short_s: float | None = None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Figures for all batch together: mean CPU use in cores, by mode.

    ``touched_pct``: share of its observed CPU time in runs in which an LRA needed protection. ``predicted_pct``: share
    of its CPU time that perphd would have left to it.
    """

    observed_cores: float | None
    enforced_cores: float | None
    touched_pct: float
    predicted_pct: Banded | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All figures. Times are seconds since the epoch."""

    since_s: float
    until_s: float
    lras: tuple[LraSummary, ...]
    batch: BatchSummary

    @property
    def is_predicted(self) -> bool:
        """True if any time was observed."""
        return any(lra.predicted is not None for lra in self.lras)


@dataclass(frozen=True, slots=True)
class _Judged:
    """One window of an LRA with the decision in force; ``met``: None if unknown."""

    at_s: float
    decided: Decided
    met: bool | None
    work: Reading


def summarise(history: ReportHistory) -> Report:
    """The figures of the whole history."""
    judged = {lra: _judge(history.windows.get(lra, ()), history.decisions[lra]) for lra in history.lras}
    used = _used(history)
    lras = tuple(_lra(history, lra, judged[lra], used) for lra in history.lras)
    return Report(history.since_s, history.until_s, lras, _batch(history, judged, used))


def _judge(windows: Sequence[ReportWindow], decisions: Sequence[Decided]) -> list[_Judged]:
    found, i = [], -1
    for window in windows:
        while i + 1 < len(decisions) and decisions[i + 1].at_s <= window.at_s:
            i += 1
        if i >= 0 and window.at_s - decisions[i].at_s <= STALE_S:
            found.append(_Judged(window.at_s, decisions[i], _met(window, decisions[i]), window.work))
    return found


def _met(window: ReportWindow, decided: Decided) -> bool | None:
    """True if the target was met: the LRA was not degraded, and its delay was within the target. None: unknown."""
    if decided.health is Health.UNKNOWN:
        return None
    if decided.health is Health.DEGRADED:
        return False
    if available(decided.target_delay) and available(window.delay):
        return window.delay <= decided.target_delay
    return True if available(window.work) else None


def _lra(
    history: ReportHistory, lra: str, judged: Sequence[_Judged], used: Mapping[float, float]
) -> LraSummary:
    observed, enforced = (_share(judged, mode) for mode in Mode)
    inherent_pct = _inherent_pct(judged, used)
    acted = _acted(history.decisions[lra])
    degraded: Counter[Cause] = Counter()
    for one in judged:
        if one.decided.health is Health.DEGRADED:
            degraded[one.decided.cause] += 1
    outcomes = [outcome.kept for outcome in history.outcomes if outcome.lra == lra]
    judged_s = 0.0 if observed is None else observed.windows * WINDOW_S
    too_short = history.decisions[lra][-1].mode is Mode.OBSERVE and judged_s < LEAST_S
    return LraSummary(
        lra,
        observed,
        enforced,
        predicted_on_target(observed.pct, inherent_pct)
        if observed is not None and judged_s >= LEAST_S
        else None,
        inherent_pct,
        tuple((*key, count) for key, count in acted.most_common()),
        tuple((cause, count * WINDOW_S / 3600.0) for cause, count in degraded.most_common()),
        sum(outcomes),
        len(outcomes) - sum(outcomes),
        _places(history, judged),
        judged_s if too_short else None,
    )


def _acted(decisions: Sequence[Decided]) -> Counter[tuple[Mode, Action, Cause]]:
    """Number of changes by mode, action and cause. A change that observe repeats counts once, as in enforce."""
    acted: Counter[tuple[Mode, Action, Cause]] = Counter()
    before = None
    for decided in decisions:
        change = (decided.mode, decided.action, decided.cause)
        if decided.action is not Action.HOLD and not (decided.mode is Mode.OBSERVE and change == before):
            acted[change] += 1
        before = change
    return acted


def _share(judged: Sequence[_Judged], mode: Mode) -> MetShare | None:
    known = [one.met for one in judged if one.met is not None and one.decided.mode is mode]
    return MetShare(len(known), 100.0 * sum(known) / len(known)) if known else None


def _places(history: ReportHistory, judged: Sequence[_Judged]) -> tuple[ReportPlace, ...]:
    size_s = max((history.until_s - history.since_s) / PLACES, WINDOW_S)
    by_place: dict[int, list[_Judged]] = {}
    for one in judged:
        by_place.setdefault(int((one.at_s - history.since_s) // size_s), []).append(one)
    found = []
    for place in sorted(by_place):
        shares = [_share(by_place[place], mode) for mode in Mode]
        pcts = [None if share is None else share.pct for share in shares]
        found.append(ReportPlace((place + 0.5) * size_s / 3600.0, *pcts))
    return tuple(found)


def _batch(
    history: ReportHistory, judged: Mapping[str, Sequence[_Judged]], used: Mapping[float, float]
) -> BatchSummary:
    modes = {one.at_s: one.decided.mode for ones in judged.values() for one in ones}
    totals, times = dict.fromkeys(Mode, 0.0), Counter(modes.values())
    for at_s, mode in modes.items():
        totals[mode] += used.get(at_s, 0.0)
    cores = {mode: totals[mode] / times[mode] if times[mode] else None for mode in Mode}
    predicted, touched_pct = None, 0.0
    if totals[Mode.OBSERVE] > 0:
        given = sum(used[at_s] for at_s in _touched(judged, used) if modes[at_s] is Mode.OBSERVE)
        touched_pct = 100.0 * given / totals[Mode.OBSERVE]
        known = {one.at_s for ones in judged.values() for one in ones if one.met is not None}
        if sum(modes[at_s] is Mode.OBSERVE for at_s in known) * WINDOW_S >= LEAST_S:
            predicted = predicted_batch_kept(touched_pct)
    return BatchSummary(cores[Mode.OBSERVE], cores[Mode.ENFORCE], touched_pct, predicted, history.batch)


def _used(history: ReportHistory) -> Mapping[float, float]:
    """CPU use of all batch in every window, in cores."""
    used: dict[float, float] = defaultdict(float)
    for name in history.batch:
        for window in history.windows[name]:
            if available(window.cores):
                used[window.at_s] += window.cores * window.covered_s / WINDOW_S
    return used


def _inherent_pct(judged: Sequence[_Judged], used: Mapping[float, float]) -> float:
    """Time in observe (%) missed even without batch, judged by windows of the same load in which no batch ran.

    Protection from batch does not help an LRA that its own load overloads. The load is taken from its work.
    """
    known = [one for one in judged if one.met is not None and one.decided.mode is Mode.OBSERVE]
    alone = sorted(
        (one.work, one.met is True)
        for one in known
        if available(one.work) and used.get(one.at_s, 0.0) < RUNNING_CORES
    )
    works = [work for work, _ in alone]
    inherent = 0.0
    for one in known:
        if one.met:
            continue
        if used.get(one.at_s, 0.0) < RUNNING_CORES:
            inherent += 1.0
        elif available(one.work):
            low = bisect.bisect_left(works, one.work * (1.0 - SAME_LOAD))
            high = bisect.bisect_right(works, one.work * (1.0 + SAME_LOAD))
            alike = [met for _, met in alone[low:high]]
            inherent += alike.count(False) / len(alike) if alike else 0.0
    return 100.0 * inherent / len(known) if known else 0.0


def _touched(judged: Mapping[str, Sequence[_Judged]], used: Mapping[float, float]) -> set[float]:
    """Windows in which batch would have given way.

    Protection stays while batch runs, so one window in which an LRA needed protection affects the rest of that run of
    batch. Windows without running batch separate the runs.
    """
    needed = {
        one.at_s
        for ones in judged.values()
        for one in ones
        if one.met is False or one.decided.action in (Action.GROW, Action.EXPLORE)
    }
    found: set[float] = set()
    giving = False
    for at_s in sorted({one.at_s for ones in judged.values() for one in ones}):
        if used.get(at_s, 0.0) < RUNNING_CORES:
            giving = False
            continue
        giving = giving or at_s in needed
        if giving:
            found.add(at_s)
    return found
