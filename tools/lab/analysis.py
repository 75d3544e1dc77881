"""From runs to a table: pairing within a repetition, spreads over repetitions, time to recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.lab.experiment import Run, Window
from tools.lab.load import LOADS
from tools.lab.schemes import ALONE, NATIVE
from tools.lab.stats import Spread, ratio, recovery_s, share_good, spread

TOLERANCE_PCT = 10.0
"""perphd's default objective for a work rate: V* is so much below what the database reaches alone."""
RECOVERED_SHARE = 0.95
"""Closed loop: recovered when a second brings this share of V*."""
OPEN_P95_RATIO = 1.5
"""Open loop: recovered when a second's p95 is below this multiple of the run-alone p95."""


@dataclass(frozen=True, slots=True)
class Row:
    """One scheme in one cell. Ratios are taken within a repetition, then spread over repetitions."""

    cell: str
    scheme: str
    repetitions: int
    tps: Spread | None
    p50_ms: Spread | None
    p95_ms: Spread | None
    p99_ms: Spread | None
    batch: Spread | None
    tps_to_alone: Spread | None
    tps_to_native: Spread | None
    p95_to_alone: Spread | None
    p95_to_native: Spread | None
    batch_to_native: Spread | None
    tps_to_alone_settled: Spread | None
    tps_to_native_settled: Spread | None
    p95_to_alone_settled: Spread | None
    p95_to_native_settled: Spread | None
    batch_to_native_settled: Spread | None
    recovery_s: Spread | None
    recovered: int
    on_target: Spread | None
    client_cores: Spread | None
    client_stalled: Spread | None


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row a scheme and cell, in the order in which they first appear, run-alone first."""
    cells = list(dict.fromkeys(run.cell for run in runs))
    found: list[Row] = []
    for cell in cells:
        of_cell = [run for run in runs if run.cell == cell]
        found += [_row([r for r in of_cell if r.scheme == s], of_cell) for s in _ordered(of_cell)]
    return found


def _ordered(runs: Sequence[Run]) -> list[str]:
    from tools.lab.schemes import SCHEMES

    present = {run.scheme for run in runs}
    return [scheme.name for scheme in SCHEMES if scheme.name in present]


def _row(mine: Sequence[Run], of_cell: Sequence[Run]) -> Row:
    def paired(
        figure: Callable[[Window], float | None], to: str, part: Callable[[Run], Window]
    ) -> Spread | None:
        values: list[float | None] = []
        for run in mine:
            partner = reference(run, of_cell, to)
            values.append(ratio(figure(part(run)), figure(part(partner))) if partner is not None else None)
        return spread(values)

    recoveries = [recovery(run, of_cell) for run in mine] if mine[0].scheme != ALONE else []
    whole, settled = _whole, _settled
    return Row(
        cell=mine[0].cell,
        scheme=mine[0].scheme,
        repetitions=len(mine),
        tps=spread([run.whole.tps for run in mine]),
        p50_ms=spread([run.whole.p50_ms for run in mine]),
        p95_ms=spread([run.whole.p95_ms for run in mine]),
        p99_ms=spread([run.whole.p99_ms for run in mine]),
        batch=spread([run.whole.batch for run in mine]),
        tps_to_alone=paired(_tps, ALONE, whole),
        tps_to_native=paired(_tps, NATIVE, whole),
        p95_to_alone=paired(_p95, ALONE, whole),
        p95_to_native=paired(_p95, NATIVE, whole),
        batch_to_native=paired(_batch, NATIVE, whole),
        tps_to_alone_settled=paired(_tps, ALONE, settled),
        tps_to_native_settled=paired(_tps, NATIVE, settled),
        p95_to_alone_settled=paired(_p95, ALONE, settled),
        p95_to_native_settled=paired(_p95, NATIVE, settled),
        batch_to_native_settled=paired(_batch, NATIVE, settled),
        recovery_s=spread(recoveries),
        recovered=sum(1 for value in recoveries if value is not None),
        on_target=spread([on_target(run, of_cell) for run in mine]),
        client_cores=spread([run.cores.get("client") for run in mine]),
        client_stalled=spread([run.client_stalled for run in mine]),
    )


def reference(run: Run, runs: Sequence[Run], scheme: str) -> Run | None:
    """The run of another scheme in the same cell and repetition."""
    return next(
        (r for r in runs if (r.cell, r.repetition, r.scheme) == (run.cell, run.repetition, scheme)), None
    )


def target(run: Run, runs: Sequence[Run]) -> tuple[str, float] | None:
    """What a second of this run must reach: ("tps", at least) or ("p95", at most); None without a run-alone."""
    alone = reference(run, runs, ALONE)
    if alone is None:
        return None
    if LOADS[run.cell.partition("-")[0]].open_loop:
        return None if alone.whole.p95_ms is None else ("p95", OPEN_P95_RATIO * alone.whole.p95_ms)
    return ("tps", RECOVERED_SHARE * (1 - TOLERANCE_PCT / 100) * alone.whole.tps)


def recovery(run: Run, runs: Sequence[Run]) -> float | None:
    """Seconds from the antagonist's start to the lasting recovery of the target; None: never, or no target."""
    judged = _judged(run, runs)
    if judged is None:
        return None
    values, good = judged
    return recovery_s([point.end_s for point in run.timeline], values, good)


def on_target(run: Run, runs: Sequence[Run]) -> float | None:
    """Share of the seconds that met the target."""
    judged = _judged(run, runs)
    return None if judged is None else share_good(*judged)


def _judged(run: Run, runs: Sequence[Run]) -> tuple[list[float], Callable[[float], bool]] | None:
    wanted = target(run, runs)
    if wanted is None:
        return None
    kind, bound = wanted
    if kind == "tps":
        return [point.tps for point in run.timeline], lambda value: value >= bound
    # A second in which nothing was finished has no percentile: it certainly missed the target.
    p95 = [point.p95_ms if point.p95_ms is not None else float("inf") for point in run.timeline]
    return p95, lambda value: value <= bound


def _whole(run: Run) -> Window:
    return run.whole


def _settled(run: Run) -> Window:
    return run.settled


def _tps(window: Window) -> float | None:
    return window.tps


def _p95(window: Window) -> float | None:
    return window.p95_ms


def _batch(window: Window) -> float | None:
    return window.batch
