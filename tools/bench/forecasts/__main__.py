"""The forecast report: series forecasters, their ladder, and peak predictors, on generated and public series.

python -m tools.bench.forecasts [--data DIR] [--series 12] [--windows 600] [--longest 2000] [--hosts 4] [--out FILE]
                                [--seed 20] [--skip 0] [--only models|peaks|history|costs] [--seconds 120]

``--data`` (or PERPHD_DATA) names the folder with nab/, alibaba2018/, google2019/ and azure_traces/; without it the
generated families alone are measured. On an idle core the whole report takes about a quarter of an hour. As root, the
job history is asked at a real-time priority, and the costs in a tick and of whole processes are measured as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from perphd.forecast.backtest import BUDGET, score  # noqa: E402
from perphd.forecast.histogram import Floats  # noqa: E402
from perphd.forecast.peaks import PREDICTORS  # noqa: E402
from tools.bench.forecasts import costs, families, history, hosts, models  # noqa: E402
from tools.bench.forecasts.models import K2S, LADDER, Figures  # noqa: E402

THRESHOLDS = (-0.25, -0.10, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Errors at which the distribution function is shown."""


def main() -> int:
    """Measure and write the report."""
    options = _options()
    parts = {"models": _of_models, "peaks": _of_peaks, "history": _of_history, "costs": _of_costs}
    lines = ["# Forecasts, measured", ""]
    for name, part in parts.items():
        lines += part(options) if options.only in (None, name) else []
    text = "\n".join(lines) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    print(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools.bench.forecasts", description="Measure the quality of forecasts."
    )
    data = os.environ.get("PERPHD_DATA")
    parser.add_argument(
        "--data", type=Path, default=Path(data) if data else None, help="folder with the public series"
    )
    parser.add_argument("--series", type=int, default=12, help="series of each generated family")
    parser.add_argument("--windows", type=int, default=600, help="windows of each generated series")
    parser.add_argument("--longest", type=int, default=2000, help="most values used of a public series")
    parser.add_argument(
        "--hosts", type=int, default=4, help="hosts of each kind in the back-test of peak predictors"
    )
    parser.add_argument("--seed", type=int, default=20, help="seed of generated series and hosts")
    parser.add_argument("--skip", type=int, default=0, help="values skipped at the start of a public series")
    parser.add_argument(
        "--only", choices=("models", "peaks", "history", "costs"), help="one part of the report"
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="seconds for which whole processes are measured"
    )
    parser.add_argument("--out", type=Path, help="file of the report")
    options = parser.parse_args()
    if min(options.series, options.hosts) < 1 or min(options.windows, options.longest) <= models.WARM_UP:
        parser.error(
            f"--series and --hosts must be positive, --windows and --longest more than {models.WARM_UP}"
        )
    return options


def _of_models(options: argparse.Namespace) -> list[str]:
    generated = {
        name: families.generated(name, options.series, options.windows, options.seed)
        for name in families.GENERATORS
    }
    public = families.public(options.data, options.longest, options.skip) if options.data else {}
    series: dict[str, list[Floats]] = generated | {
        name: list(found.values()) for name, found in public.items()
    }
    found, started, windows = {}, time.process_time(), 0
    for name, values in series.items():
        found[name] = models.run(values)
        windows += sum(map(len, values))
        print(f"{name}: {models.relative_loss(found[name]):.3f} of the best", file=sys.stderr)
    cost_ms = (time.process_time() - started) / windows * 1e3
    retest = {name: models.run(values, models.PUBLISHED_MODELS) for name, values in generated.items()}
    return [
        "## Series forecasters",
        "",
        f"One window ahead; the first {models.WARM_UP} windows of a series are not scored. The reservation is 1. "
        f"All five models, their scores and calibrations, fits included: {cost_ms:.2f} ms of CPU per window and "
        "series.",
        "",
        "### The calibrated 99 % bound",
        "",
        *_bounds(found),
        "",
        "### Violations and slack of mean + K1 R + K2 spread (K1 = 5 %)",
        "",
        "Each cell: windows whose value exceeds the target / mean slack.",
        "",
        *_targets(found, retest),
        "",
    ]


def _of_history(options: argparse.Namespace) -> list[str]:
    return history.lines(history.measure(seed=options.seed, realtime=os.geteuid() == 0))


def _of_costs(options: argparse.Namespace) -> list[str]:
    worker, tick, processes = costs.worker_cost(seed=options.seed), None, []
    if os.geteuid() == 0:
        tick = costs.tick_cost(realtime=True)
        processes = [costs.process_cost(options.seconds, forecasts=each) for each in (False, True)]
    return costs.lines(worker, tick, processes)


def _bounds(found: dict[str, dict[str, Figures]]) -> list[str]:
    names = list(next(iter(found.values())))
    lines = [
        "| family | windows | "
        + " | ".join(f"{name}: loss, coverage" for name in names)
        + " | ladder / best |",
        "| --- |" + " --- |" * (len(names) + 2),
    ]
    for family, figures in found.items():
        cells = [
            f"{1e3 * each.loss / each.windows:.2f}, {each.covered / each.windows:.1%}"
            for each in figures.values()
        ]
        lines.append(
            f"| {family} | {figures[LADDER].windows} | {' | '.join(cells)} | {models.relative_loss(figures):.3f} |"
        )
    overall = {name: models.mean_over_families(found, name) for name in names}
    windows = sum(figures[LADDER].windows for figures in found.values())
    covered = sum(figures[LADDER].covered for figures in found.values())
    best = min((name for name in names if name != LADDER), key=lambda name: overall[name])
    cells = [f"{1e3 * loss:.2f}" for loss in overall.values()]
    lines += [
        f"| all, equal weights | {windows} | {' | '.join(cells)} | {overall[LADDER] / overall[best]:.3f} |",
        "",
        "Loss: pinball loss of the bound, clipped at the reservation, in thousandths of the reservation. A model that "
        "does not apply to a window leaves the reservation in place. The ladder's bound covers "
        f"{covered / windows:.2%} of all windows.",
    ]
    return lines


def _targets(found: dict[str, dict[str, Figures]], retest: dict[str, dict[str, Figures]]) -> list[str]:
    lines = [
        "| family | model | mean absolute error | " + " | ".join(f"K2 = {k2}" for k2 in K2S) + " |",
        "| --- | --- | --- |" + " --- |" * len(K2S),
    ]
    for family, figures in found.items():
        extra = {name: each for name, each in retest.get(family, {}).items() if name != LADDER}
        for name, each in {**figures, **extra}.items():
            cells = [
                f"{each.violations[k2] / each.windows:.2%} / {each.slack[k2] / each.windows:.3f}"
                for k2 in K2S
            ]
            known = each.windows - each.absent
            error = f"{each.absolute_error / known:.4f}" if known else "no forecast"
            lines.append(f"| {family} | {name} | {error} | {' | '.join(cells)} |")
    return lines


def _of_peaks(options: argparse.Namespace) -> list[str]:
    random = np.random.default_rng(options.seed)
    makers: dict[str, Callable[[], hosts.TracedHost]] = {"synthetic": lambda: hosts.synthetic(random)}
    if options.data:
        makers["nab-aws"] = lambda: hosts.aws(options.data, random)
        makers["alibaba"] = lambda: hosts.alibaba(options.data, random)
    lines = [
        "## Peak predictors",
        "",
        "Errors (predicted - actual) / actual over hosts with 6 to 29 tenants, predicted every six samples after the "
        "first quarter of the trace; the horizon is 12 samples. The choice is the tightest predictor within its "
        f"budget ({BUDGET:.0%} of under-estimates by more than 10 % of the horizon's peak), from the errors known "
        "at the time; it starts from the requests.",
        "",
        "| hosts | predictor | instant: median, p5, p95 | horizon: median, p5, p95 | least, greatest "
        "| under by > 10 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kept, shares = [], []
    for kind, make in makers.items():
        runs = [hosts.errors_of(make()) for _ in range(options.hosts)]
        for name in PREDICTORS:
            instant = np.concatenate([found[name].instant for found, _ in runs])
            horizon = np.concatenate([found[name].horizon for found, _ in runs])
            lines.append(_peak_row(kind, name, instant, horizon))
            shares += [_share_row(kind, name, "instant", instant), _share_row(kind, name, "horizon", horizon)]
        choices = np.concatenate([choice for _, choice in runs])
        lines.append(_peak_row(kind, hosts.CHOICE, None, choices))
        shares.append(_share_row(kind, hosts.CHOICE, "horizon", choices))
        kept += [score(choice).under_ratio <= BUDGET for _, choice in runs]
        print(f"{kind}: peak predictors done", file=sys.stderr)
    return [
        *lines,
        "",
        f"The choice keeps its budget on {sum(kept)} of {len(kept)} hosts.",
        "",
        "### Distribution of the errors",
        "",
        "Share of predictions whose error is at most the column's: what Optum's Fig. 11 draws.",
        "",
        "| hosts | predictor | against | " + " | ".join(f"{at:+.0%}" for at in THRESHOLDS) + " |",
        "| --- | --- | --- |" + " --- |" * len(THRESHOLDS),
        *shares,
    ]


def _peak_row(kind: str, name: str, instant: Floats | None, horizon: Floats) -> str:
    now = "" if instant is None else _spread(instant)
    found = score(horizon)
    extremes = f"{found.least_error:+.2f}, {found.greatest_error:+.2f}"
    return f"| {kind} | {name} | {now} | {_spread(horizon)} | {extremes} | {found.under_ratio:.2%} |"


def _share_row(kind: str, name: str, against: str, errors: Floats) -> str:
    cells = " | ".join(f"{np.mean(errors <= at):.1%}" for at in THRESHOLDS)
    return f"| {kind} | {name} | {against} | {cells} |"


def _spread(errors: Floats) -> str:
    middle, low, high = np.percentile(errors, [50, 5, 95])
    return f"{middle:+.2f}, {low:+.2f}, {high:+.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
