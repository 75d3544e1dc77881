"""The results as Markdown: medians over seeds with their spread, and the figures for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tools.bench.predictor.contestants import OURS
from tools.bench.predictor.cost import BYTES_BUDGET, Cost
from tools.bench.predictor.online import Along
from tools.bench.predictor.warm import Score, Warm

R2_TARGET, NEAR_TARGET, RATIO_TARGET = 0.985, 0.15, 1.25
COVERAGE_TARGET = (0.87, 0.93)
_DIVERGED = 50.0
"""log-RMSE from which a figure is meaningless."""

PAPER_TABLE_2 = (
    ("Linear regression", 228.203, 224.675, 183.368, 0.9203),
    ("KNN", 811.536, 539.308, 429.582, 0.3684),
    ("AdaBoost", 254.416, 198.598, 157.454, 0.9379),
    ("ElasticNet", 550.409, 473.549, 462.452, 0.7095),
    ("GBRT", 124.098, 79.322, 51.107, 0.9852),
    ("OGBRT", 114.137, 63.187, 35.79, 0.972),
)
"""The paper's Table II: RMSE, MAE, median absolute error (MIPS) and R2."""


@dataclass(frozen=True, slots=True)
class Study:
    """All learners along one kind of stream: one ``Along`` per learner and seed, and the errors in hindsight."""

    name: str
    results: dict[str, list[Along]]
    hindsight: list[float]


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements. ``repeat``: factor on the number of seeds per stream."""

    seeds: int
    warm: dict[str, list[Warm]]
    table_2: list[Score]
    studies: list[Study]
    costs: list[Cost]
    model_bytes: int
    repeat: int = 1

    def as_dict(self) -> dict[str, Any]:
        """For report.json."""
        return asdict(self)

    def markdown(self) -> str:
        """All tables."""
        medians = (
            f"Medians over {self.seeds} seeds ({self.seeds * self.repeat} along streams, for all but the slow learners "
            "and training in hindsight); in brackets the least and the most."
        )
        lines = [*_INTRODUCTION, medians, "", "## What was asked, and what was found", ""]
        lines += self._verdicts()
        if self.costs:
            lines += ["## Costs", "", *self._costs()]
        if self.warm:
            lines += ["## Warm start", "", *self._warm()]
        if self.table_2:
            lines += [
                "## Model selection: the paper's Table II",
                "",
                *self._table_2(),
                *_table_2_words(self.table_2),
            ]
        if self.studies:
            lines += ["## Along streams", ""]
        for study in self.studies:
            lines += _study(study)
        return "\n".join(lines).rstrip() + "\n"

    def _verdicts(self) -> list[str]:
        lines = ["| figure | stream | measured | target | |", "| --- | --- | ---: | ---: | --- |"]
        for name, found in self.warm.items():
            r2s = [w.r2 for w in found]
            kept = np.median(r2s) >= R2_TARGET
            lines.append(_row("R2 of a tenth of the grid on the rest", name, r2s, f">= {R2_TARGET}", kept, 4))
        for study in self.studies:
            lines += _study_verdicts(study)
        return [*lines, ""]

    def _costs(self) -> list[str]:
        lines = [
            "Live: one LRA's model as the daemon has it, full and with trees, one channel unless it says all. "
            "CPU time is of the calling thread; the steps of a rebuild are held against their longest, the rest "
            "against the median of the wall. For how long a rebuild's thread keeps the interpreter is its whole CPU "
            "time, in all columns: it lets go of it while it waits, for the start of the worker, too.",
            "",
            "| cost | pyperf p50, us | p50, us | p99, us | CPU p50, us | CPU most, us | budget, us | |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        ]
        for c in self.costs:
            budget = c.budget_us
            verdict = "" if budget is None else _verdict(c.kept)
            by_pyperf = "" if c.pyperf_us is None else f"{c.pyperf_us:.0f}"
            lines.append(
                f"| {c.name} | {by_pyperf} | {c.p50_us:.0f} | {c.p99_us:.0f} | {c.cpu_p50_us:.0f} "
                f"| {c.cpu_most_us:.0f} "
                f"| {'' if budget is None else f'{budget:.0f}'} | {verdict} |"
            )
        kib = self.model_bytes / 1024
        lines.append(f"| bytes of one model with its reservoir | | {kib:.0f} KiB | | | | {BYTES_BUDGET // 1024} KiB "
                     f"| {_verdict(self.model_bytes <= BYTES_BUDGET)} |")  # fmt: skip
        return [*lines, ""]

    def _warm(self) -> list[str]:
        lines = ["Warm start with 10 % of the grid, judged on the other 90 %:", ""]
        lines += _head("surface", "R2 (as measured)", "R2 (noise-free)", "log-RMSE")
        for name, found in self.warm.items():
            cells = [_spread([getattr(w, key) for w in found], 4) for key in ("r2", "r2_truth", "log_rmse")]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return [*lines, ""]

    def _table_2(self) -> list[str]:
        lines = ["Model selection by 10-fold cross-validation, all on the same rows and folds (MIPS):", ""]
        lines += _head("model", "RMSE (sd over folds)", "MAE", "median error", "R2")
        lines += [
            f"| {s.name} | {s.rmse:.0f} ({s.rmse_sd:.0f}) | {s.mae:.0f} | {s.median_error:.0f} | {s.r2:.4f} |"
            for s in self.table_2
        ]
        lines += ["", "The paper's Table II (its own MySQL, its own test sets):", ""]
        lines += _head(
            "model", "RMSE", "MAE", "median error", "R2", "sd of the test set, RMSE / sqrt(1 - R2)"
        )
        lines += [
            f"| {name} | {rmse:.0f} | {mae:.0f} | {median:.0f} | {r2:.4f} | {rmse / (1 - r2) ** 0.5:.0f} |"
            for name, rmse, mae, median, r2 in PAPER_TABLE_2
        ]
        return [*lines, ""]


_INTRODUCTION = (
    "# How well the Performance Predictor predicts, follows and doubts",
    "",
    "Written by `python -m tools.bench.predictor`. Streams: 600 profiling samples with 3 % noise as a warm start, then "
    "live samples at allocations that a cautious policy visits (one or two knobs move every 40 samples; *with "
    "probing*: every tenth sample one knob is moved by one step; *exploring*: the policy jumps about), with an abrupt "
    "change of the application at half. *One step* is the error of the next sample, asked before it is learned "
    "(prequential). *Near* is the error against the noise-free truth at 120 allocations within 0.2 of every range "
    "around the current one, load included: what inference asks. *Whole* is the same over the whole space. All are "
    "log-RMSE (0.1 is 10 %). *In hindsight* is training off line on the warm start and the whole stream at once, told "
    "when the application changed, cross-validated. The slow learners ran on the first stream only. The analytic "
    "surface and the node model are synthetic: they rank learners, and their figures are no application's. *Measured "
    "curves* take the effect of cache ways from published measurements of real programs.",
    "",
)


def _table_2_words(scores: Sequence[Score]) -> list[str]:
    """Comparison of our table with the paper's."""
    ours = [s.name for s in sorted(scores, key=lambda s: s.rmse)]
    theirs = [name for name, *_ in sorted(PAPER_TABLE_2, key=lambda row: row[1])]
    by_name = {s.name: s for s in scores}
    online = next(s for s in scores if s.name.startswith("OGBRT"))
    gbrt = by_name["GBRT (perphd: log, monotone)"]
    sds = [rmse / (1 - r2) ** 0.5 for _, rmse, _, _, r2 in PAPER_TABLE_2]
    return [
        f"From least to most RMSE, here: {', '.join(ours)}. In the paper: {', '.join(theirs)}.",
        "",
        "How the two compare, and why they differ:",
        "",
        f"* **One test set or several.** RMSE / sqrt(1 - R2) is the standard deviation of the truth in the test set, "
        f"and the paper's rows imply {min(sds):.0f}, {sorted(sds)[1]:.0f} and {max(sds):.0f}: at least three different "
        "sets. Its OGBRT has a lower RMSE than its GBRT and a lower R2, which no single set allows. Here all models "
        "see the same rows and the same ten folds.",
        f"* **Online against off line.** On one test set the online model ends at {online.rmse / gbrt.rmse:.2f} times "
        f"the RMSE of training on everything at once (R2 {online.r2:.4f} against {gbrt.r2:.4f}): it saw nine tenths of "
        "its rows once and forgets on purpose. The paper's 0.972 against 0.985 says the same; its RMSE the contrary.",
        "* **Linear regression and ElasticNet** are far worse here than in the paper: performance saturates with load, "
        "cores and cache on our surface, load included as a feature; the paper's rows hold one load.",
        "* **KNN** suffers from unscaled features (the paper's KNN, at R2 0.37, most likely had them): scaled, it is "
        "far better, and still behind the trees.",
        "* **Absolute MIPS** cannot be compared: the machines, the applications and the noise are others. Ours is a "
        "simulated MySQL with 3 % noise, whose best possible R2 is below 1.",
        "",
    ]


def _study_verdicts(study: Study) -> list[str]:
    ours = study.results[OURS]
    lines = []
    if not study.name.startswith("none"):
        near = [a.near[2] for a in ours]
        others = {
            name: float(np.median([a.near[2] for a in found]))
            for name, found in study.results.items()
            if not name.startswith(OURS)
        }
        best = min(others, key=lambda name: others[name])
        least, median = others[best], np.median(near)
        what = "near error, 150-250 after drift"
        lines.append(_row(what, study.name, near, f"<= {NEAR_TARGET}", median <= NEAR_TARGET))
        lines.append(
            _row(f"{what}, best other: {best}", study.name, near, f"<= {least:.3f}", median <= least)
        )
    ratio = [a.whole / best_possible for a, best_possible in zip(ours, study.hindsight, strict=False)]
    kept = bool(np.median(ratio) <= RATIO_TARGET)
    what = "one-step error / training off line on all data in hindsight"
    lines.append(_row(what, study.name, ratio, f"<= {RATIO_TARGET}", kept))
    covered, (low, high) = [a.coverage[0] for a in ours], COVERAGE_TARGET
    kept = all(low <= value <= high for value in covered)
    lines.append(_row("coverage of the 90 % band", study.name, covered, f"{low}-{high}", kept))
    broken = [a.violations for a in ours]
    lines.append(_row("monotonicity violations", study.name, broken, "0", max(broken) == 0))
    return lines


def _study(study: Study) -> list[str]:
    columns: dict[str, Callable[[Along], float]] = {
        "one step: before": lambda a: a.prequential[0],
        "0-50": lambda a: a.prequential[1],
        "50-200": lambda a: a.prequential[2],
        "200+": lambda a: a.prequential[3],
        "near: before": lambda a: a.near[0],
        "50-200 ": lambda a: a.near[1],
        "150-250": lambda a: a.near[2],
        "400+": lambda a: a.near[3],
        "whole: before": lambda a: a.grid[0],
        "200 after": lambda a: a.grid[1],
        "end": lambda a: a.grid[2],
    }
    lines = [f"### Stream: {study.name}", "", "log-RMSE; columns count samples after the drift.", ""]
    lines += _head("learner", *columns, "violations")
    for name, found in study.results.items():
        cells = [_cell([pick(a) for a in found]) for pick in columns.values()]
        if np.median([a.near[2] for a in found]) < _DIVERGED:
            cells[6] = _spread([a.near[2] for a in found])
        known = name if len(found) == len(study.results[OURS]) else f"{name} ({len(found)} seeds)"
        lines.append(
            f"| {known} | {' | '.join(cells)} | {100 * np.median([a.violations for a in found]):.1f} % |"
        )
    ours = study.results[OURS]
    cover = [float(np.median([a.coverage[k] for a in ours])) for k in range(4)]
    lower = float(np.median([a.near_lower for a in ours]))
    lines += ["", *_pairs(study)]
    lines += [
        f"Over {len(ours)} seeds the 90 % band of {OURS} held {100 * cover[0]:.1f} % of the samples "
        f"({100 * cover[1]:.1f} % before the drift, {100 * cover[2]:.1f} % in the 200 after it, "
        f"{100 * cover[3]:.1f} % then);",
        f"{100 * lower:.1f} % of the near truths were above its lower bound (wanted: 95 %).",
        "",
    ]
    return lines


def _pairs(study: Study) -> list[str]:
    """Differences by seed, which are due only to the learners, because the stream is the same."""
    ours = study.results[OURS]
    found = []
    for name, other in study.results.items():
        if name.startswith(OURS):
            continue
        wins = sum(a.near[2] < b.near[2] for a, b in zip(ours, other, strict=False))
        found.append(f"{name} {wins} of {min(len(ours), len(other))}")
    if study.name.startswith("none") or not found:
        return []
    return [
        f"Seed by seed {OURS} was nearer 150 to 250 samples after the drift than: {', '.join(found)}.",
        "",
    ]


def _head(first: str, *columns: str) -> list[str]:
    return [f"| {first} | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]


def _row(what: str, stream: str, values: Sequence[float], target: str, kept: object, digits: int = 3) -> str:
    return f"| {what} | {stream} | {_spread(values, digits)} | {target} | {_verdict(bool(kept))} |"


def _cell(values: Sequence[float]) -> str:
    median = float(np.median(values))
    return f"{median:.3f}" if median < _DIVERGED else "diverges"


def _spread(values: Sequence[float], digits: int = 3) -> str:
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def _verdict(kept: bool) -> str:
    return "kept" if kept else "**missed**"
