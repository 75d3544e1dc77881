"""``make bench``: all measurements of perphd's own cost, and the report.

python -m tools.bench --out out/bench [--seconds 60] [--changes 300] [--quick] [--only tick,process,reaction,monitoring]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyperf

from tools.bench import micro, monitoring, reaction, report, whole
from tools.bench.groups import BenchError, BenchGroups

ROOT = Path(__file__).parents[2]
TICK_SIZES = (1, 50, 200)
REACTION_SIZES = (2, 10, 50)
LOOPS = 25
"""Ticks per value. The number is fixed, because a calibration by a phase of microseconds would take minutes of whole
ticks.
"""
PARTS = ("tick", "process", "reaction", "monitoring")


def main() -> int:
    """Measure, write the report, print it. Exit status 1: the bench cannot run here."""
    options = _options()
    try:
        layout, ticks = _ticks(options.quick) if "tick" in options.only else (_layout(), [])
        found = whole.measure(options.seconds).as_dict() if "process" in options.only else None
        reactions = (
            [asyncio.run(reaction.measure(size, options.changes)).as_dict() for size in REACTION_SIZES]
            if "reaction" in options.only
            else []
        )
        counted = monitoring.measure().as_dict() if "monitoring" in options.only else None
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    print(report.write(options.out, layout, ticks, found, reactions, counted))
    print(f"Written to {options.out}/report.md and {options.out}/report.json")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.bench", description="Measure perphd's own cost.")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the report")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds for which the process is measured"
    )
    parser.add_argument(
        "--changes", type=int, default=300, help="enforced changes at each number of workloads"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a functional check")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(PARTS), help=f"parts: {','.join(PARTS)}"
    )
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: unknown (allowed: {', '.join(PARTS)})")
    if options.seconds <= 0 or options.changes < 1:
        parser.error("--seconds and --changes must be positive")
    return options


def _layout() -> str:
    with BenchGroups(0, 0) as groups:
        return groups.layout


def _ticks(quick: bool) -> tuple[str, list[report.Tick]]:
    """Run pyperf in separate processes, on groups that are created once."""
    effort = ["--processes=1", "--values=3"] if quick else ["--processes=3", "--values=5"]
    with (
        BenchGroups(max(TICK_SIZES), max(TICK_SIZES)) as groups,
        tempfile.TemporaryDirectory(prefix="perphd-bench-") as folder,
    ):
        results = Path(folder) / "micro.json"
        environment = {
            micro.GROUPS: ":".join(groups.paths),
            micro.SIZES: ",".join(map(str, TICK_SIZES)),
            "PYTHONPATH": str(ROOT),  # pyperf starts its workers by path, not as modules
        }
        done = subprocess.run(
            [sys.executable, "-m", "tools.bench.micro", *effort, "--warmups=1", f"--loops={LOOPS}", "--quiet",
             f"--inherit-environ={','.join(environment)}", "-o", str(results)],
            env={**os.environ, **environment},
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchError("the benchmarks of one tick failed; see above")
        suite = {
            bench.get_name(): bench for bench in pyperf.BenchmarkSuite.load(str(results)).get_benchmarks()
        }
        ticks = [
            report.Tick(
                size,
                {phase or "whole": _mean(suite[micro.name_of(size, phase)]) for phase in ("", *micro.PHASES)},
            )
            for size in TICK_SIZES
        ]
        return groups.layout, ticks


def _mean(benchmark: pyperf.Benchmark) -> tuple[float, float]:
    return benchmark.mean(), benchmark.stdev() if benchmark.get_nvalue() > 1 else 0.0


if __name__ == "__main__":
    raise SystemExit(main())
