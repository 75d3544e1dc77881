"""Compare the learners and write report.md and report.json.

python -m tools.bench.predictor --out out/bench/predictor [--quick] [--seeds 5] [--data FOLDER] [--only PARTS]
    [--learners A;B] [--cases A;B]
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tools.bench.predictor import cost, curves, node, online, warm
from tools.bench.predictor.contestants import CONTESTANTS, FAST, FEW, OURS, WarmStart
from tools.bench.predictor.report import Report, Study
from tools.bench.predictor.streams import DRIFTS, Surface, everywhere, exploring, sticky, stream

WARM_ROWS = 600
NOISE = 0.03
REPEAT = 3
"""Factor on the number of seeds for fast learners, because five seeds often cannot separate two learners."""
PARTS = ("cost", "warm", "table2", "online")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One kind of stream. ``probing``: some samples have one knob moved; ``explores``: the policy jumps randomly."""

    name: str
    before: Surface
    after: Surface
    learners: Sequence[str]
    probing: float = 0.0
    explores: bool = False


def main() -> int:
    """Measure, write, print. Exit status 2: an option is wrong."""
    options = _options()
    seeds = range(2 if options.quick else options.seeds)
    length, drift_at = (900, 450) if options.quick else (2400, 1200)
    repeat = 1 if options.quick else REPEAT
    try:
        wanted = tuple(options.cases.split(";"))
        cases = [
            replace(case, learners=tuple(name for name in case.learners if name in options.learners))
            for case in _cases(options.data, options.quick)
            if case.name.startswith(wanted)
        ]
    except FileNotFoundError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 2
    costs, size = cost.measure(300 if options.quick else 2000) if "cost" in options.only else ([], 0)
    report = Report(
        len(seeds),
        _warm(seeds, options.quick) if "warm" in options.only else {},
        warm.table_2(node.mysql(), 1, 400 if options.quick else 1760) if "table2" in options.only else [],
        [_study(case, seeds, length, drift_at, repeat) for case in cases] if "online" in options.only else [],
        costs,
        size,
        repeat,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.json").write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    (options.out / "report.md").write_text(report.markdown())
    print(report.markdown())
    print(f"Written to {options.out}/report.md and {options.out}/report.json")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench.predictor", description="Compare the learners.")
    parser.add_argument("--out", type=Path, default=Path("out/bench/predictor"), help="folder of the report")
    parser.add_argument(
        "--quick", action="store_true", help="short streams, two seeds, for a functional check"
    )
    parser.add_argument("--seeds", type=int, default=5, help="repetitions of every stream")
    parser.add_argument(
        "--data", type=Path, help="folder with pbbcache's metrics.csv: streams over real curves"
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS)
    )
    parser.add_argument(
        "--learners", help="only these learners (and OGBRT), divided by semicolons: " + "; ".join(CONTESTANTS)
    )
    parser.add_argument(
        "--cases",
        default="",
        help="only streams whose name begins with one of these, separated by semicolons",
    )
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: unknown (allowed: {', '.join(PARTS)})")
    chosen = [OURS, *options.learners.split(";")] if options.learners else list(CONTESTANTS)
    if unknown := set(chosen) - set(CONTESTANTS):
        parser.error(f"--learners {';'.join(sorted(unknown))}: unknown (allowed: {'; '.join(CONTESTANTS)})")
    options.learners = tuple(chosen)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    return options


def _cases(data: Path | None, quick: bool) -> list[Case]:
    everyone = FEW if quick else tuple(CONTESTANTS)
    cases = [Case("cache and CPI, sticky", *DRIFTS["cache and CPI"], everyone)]
    if quick:
        return cases
    cases.append(Case("cache and CPI, sticky with probing", *DRIFTS["cache and CPI"], FEW, 0.1))
    cases.append(Case("cache and CPI, exploring", *DRIFTS["cache and CPI"], FEW, explores=True))
    cases += [
        Case(f"{name}, sticky with probing", *DRIFTS[name], FEW, 0.1)
        for name in ("memory knee", "scalability", "relief")
    ]
    cases.append(Case("none, sticky with probing", *DRIFTS["none"], FEW, 0.1))
    cases.append(
        Case("simulated MySQL: cache and CPI, sticky with probing", node.mysql(), node.mysql(True), FEW, 0.1)
    )
    if data is not None:
        found = curves.read(data)
        first, second = curves.most_sensitive(found, 2)
        flat = max(found, key=lambda name: float(found[name].log_relative_ipc[0]))
        for old, new in ((flat, first), (first, second)):
            name = f"measured curves: {old} then {new}, sticky with probing"
            cases.append(Case(name, found[old], found[new], FEW, 0.1))
    return cases


def _study(case: Case, seeds: Sequence[int], length: int, drift_at: int, repeat: int) -> Study:
    results: dict[str, list[online.Along]] = {name: [] for name in case.learners}
    hindsight = []
    for seed in range(len(seeds) * repeat):
        rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
        x = everywhere(rng, WARM_ROWS)
        start = WarmStart.of(x, case.before.log_performance(x) + NOISE * rng.standard_normal(len(x)), seed)
        rows = exploring(rng, length) if case.explores else sticky(rng, length, case.probing)
        live = stream(case.before, case.after, rows, drift_at, rng, NOISE)
        if seed < len(seeds):
            hindsight.append(online.hindsight(start, live, drift_at, seed))
        asked = online.questions(live, seed)
        for name in case.learners if seed < len(seeds) else [one for one in FAST if one in case.learners]:
            results[name].append(online.run(CONTESTANTS[name](start), live, asked, drift_at, seed))
        print(f"{case.name}: seed {seed} done", file=sys.stderr, flush=True)
    return Study(case.name, results, hindsight)


def _warm(seeds: Sequence[int], quick: bool) -> dict[str, list[warm.Warm]]:
    x = warm.grid()[:: 10 if quick else 1]
    surfaces: dict[str, Surface] = {"analytic": DRIFTS["none"][0], "simulated MySQL": node.mysql()}
    found = {}
    for name, surface in surfaces.items():
        truth = np.concatenate([surface.log_performance(x[i : i + 1000]) for i in range(0, len(x), 1000)])
        found[name] = [warm.warm_start(x, truth, seed) for seed in seeds]
        if name == "simulated MySQL" and not quick:
            found[f"{name}, by LightGBM"] = [warm.profiled(x, truth, seed) for seed in seeds]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
