"""From runs to figures: pairing within a repetition, spreads over repetitions, time to recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.lab.catalogue import load_of
from tools.lab.records import Run, Window
from tools.lab.schemes import ALONE, NATIVE, SCHEMES, tolerance_pct
from tools.lab.stats import Spread, ratio, recovery_s, share_good, spread

TOLERANCE_PCT = 10.0
"""perphd's default tolerance for a work rate: the share by which the target V* lies below the rate alone."""
RECOVERED_SHARE = 0.95
"""Closed loop: share of V* from which a second counts as recovered."""
OPEN_P95_RATIO = 1.5
"""Open loop: multiple of the run-alone p95 up to which a second's p95 counts as recovered."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """A scheme against its references, each taken within one repetition."""

    rate_to_alone: Spread | None
    rate_to_native: Spread | None
    p95_to_alone: Spread | None
    p95_to_native: Spread | None
    batch_to_native: Spread | None


@dataclass(frozen=True, slots=True)
class Row:
    """One scheme in one cell. ``recovered``: number of repetitions in which it returned to its target."""

    cell: str
    scheme: str
    repetitions: int
    rate: Spread | None
    p50_ms: Spread | None
    p95_ms: Spread | None
    p99_ms: Spread | None
    batch: Spread | None
    whole: Ratios
    settled: Ratios
    recovery_s: Spread | None
    recovered: int
    on_target: Spread | None
    client_cores: Spread | None
    client_stalled: Spread | None
    other_cores: Spread | None


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row per scheme and cell: cells in order of appearance, schemes in their own order."""
    found: list[Row] = []
    for cell in dict.fromkeys(run.cell for run in runs):
        of_cell = [run for run in runs if run.cell == cell]
        for scheme in SCHEMES:
            mine = [run for run in of_cell if run.scheme == scheme.name]
            if mine:
                found.append(_row(mine, of_cell))
    return found


def _row(mine: Sequence[Run], of_cell: Sequence[Run]) -> Row:
    recoveries = [recovery(run, of_cell) for run in mine if run.scheme != ALONE]
    return Row(
        cell=mine[0].cell,
        scheme=mine[0].scheme,
        repetitions=len(mine),
        rate=spread([run.whole.tps for run in mine]),
        p50_ms=spread([run.whole.p50_ms for run in mine]),
        p95_ms=spread([run.whole.p95_ms for run in mine]),
        p99_ms=spread([run.whole.p99_ms for run in mine]),
        batch=spread([run.whole.batch for run in mine]),
        whole=_ratios(mine, of_cell, lambda run: run.whole),
        settled=_ratios(mine, of_cell, lambda run: run.settled),
        recovery_s=spread(recoveries),
        recovered=sum(1 for value in recoveries if value is not None),
        on_target=spread([on_target(run, of_cell) for run in mine]),
        client_cores=spread([run.cores.client for run in mine]),
        client_stalled=spread([run.client_stalled for run in mine]),
        other_cores=spread([run.cores.others for run in mine]),
    )


def _ratios(mine: Sequence[Run], of_cell: Sequence[Run], part: Callable[[Run], Window]) -> Ratios:
    def to(scheme: str, figure: Callable[[Window], float | None]) -> Spread | None:
        return paired(mine, of_cell, scheme, lambda run: figure(part(run)))

    return Ratios(
        rate_to_alone=to(ALONE, lambda window: window.tps),
        rate_to_native=to(NATIVE, lambda window: window.tps),
        p95_to_alone=to(ALONE, lambda window: window.p95_ms),
        p95_to_native=to(NATIVE, lambda window: window.p95_ms),
        batch_to_native=to(NATIVE, lambda window: window.batch),
    )


def paired(
    mine: Sequence[Run], of_cell: Sequence[Run], scheme: str, figure: Callable[[Run], float | None]
) -> Spread | None:
    """Each run's figure divided by that of another scheme in the same repetition; None without pairs."""
    ratios: list[float | None] = []
    for run in mine:
        partner = reference(run, of_cell, scheme)
        ratios.append(ratio(figure(run), figure(partner)) if partner is not None else None)
    return spread(ratios)


def reference(run: Run, runs: Sequence[Run], scheme: str) -> Run | None:
    """The run of another scheme in the same cell and repetition."""
    return next(
        (r for r in runs if (r.cell, r.repetition, r.scheme) == (run.cell, run.repetition, scheme)), None
    )


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an interval: a ``rate`` of at least ``bound`` per second, or a ``p95`` of at most ``bound`` ms."""

    figure: str
    bound: float

    def met(self, value: float) -> bool:
        """True if this value meets it."""
        return value >= self.bound if self.figure == "rate" else value <= self.bound


def target(run: Run, runs: Sequence[Run]) -> Target | None:
    """The target of this run, from its repetition's run-alone; None without one."""
    alone = reference(run, runs, ALONE)
    if alone is None:
        return None
    if load_of(run.cell).open_loop:
        return None if alone.whole.p95_ms is None else Target("p95", OPEN_P95_RATIO * alone.whole.p95_ms)
    return Target("rate", RECOVERED_SHARE * (1 - tolerance_pct(run.scheme) / 100) * alone.whole.tps)


def recovery(run: Run, runs: Sequence[Run]) -> float | None:
    """Seconds from the antagonist's start to the lasting recovery of the target; None: never, or no target."""
    wanted = target(run, runs)
    if wanted is None:
        return None
    return recovery_s([point.end_s for point in run.timeline], _judged(run, wanted), wanted.met)


def on_target(run: Run, runs: Sequence[Run]) -> float | None:
    """Share of the intervals that met the target; None without a target."""
    wanted = target(run, runs)
    return None if wanted is None else share_good(_judged(run, wanted), wanted.met)


def _judged(run: Run, wanted: Target) -> list[float]:
    if wanted.figure == "rate":
        return [point.tps for point in run.timeline]
    # An interval without completed work has no percentile, and missed the target.
    return [point.p95_ms if point.p95_ms is not None else float("inf") for point in run.timeline]


def in_force(runs: Sequence[Run]) -> list[tuple[str, str, float]]:
    """(group, its settings, share of these runs' windows), longest first."""
    spent_s: dict[tuple[str, str], float] = {}
    total_s = 0.0
    for run in runs:
        end_s = run.timeline[-1].end_s if run.timeline else 0.0
        total_s += end_s
        for group in sorted({name for _, name, _ in run.settings}):
            changes = [(at_s, knobs) for at_s, name, knobs in run.settings if name == group and at_s < end_s]
            ends = [max(0.0, at_s) for at_s, _ in changes[1:]] + [end_s]
            for (at_s, knobs), until_s in zip(changes, ends, strict=True):
                text = ", ".join(f"{name} {value}" for name, value in knobs.items())
                spent_s[group, text] = spent_s.get((group, text), 0.0) + until_s - max(0.0, at_s)
    found = [(group, text, spent / total_s) for (group, text), spent in spent_s.items() if spent > 0]
    return sorted(found, key=lambda item: (item[0], -item[2]))
