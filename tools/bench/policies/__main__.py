"""The policy bench.

python -m tools.bench.policies --out out/policies [--quick] [--scenarios paper,mix-1lra-1batch-50] [--policies a,b]
                               [--seeds 2] [--jobs 2] [--grids fig12] [--full-grids] [--agent] [--report-only]

Interrupted, it goes on where it was: results of the same code are kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Several processes compute at once: none of them is to start threads of its own.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from tools.bench.policies import (  # noqa: E402
    agentmode,
    grids,
    knee,
    measure,
    oracle,
    report,
    results,
    scenarios,
)
from tools.bench.policies.catalogue import ENTRANTS  # noqa: E402
from tools.bench.policies.driver import run  # noqa: E402
from tools.bench.policies.oracle import Optimum, Situation  # noqa: E402
from tools.bench.policies.scene import Scenario  # noqa: E402

KNEE_OF = ("perph", "parties")
Task = tuple[str, Callable[..., Any], tuple[Any, ...]]


def main() -> int:
    """Measure what is missing, write the report, print its head."""
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    chosen = _scenarios(options)
    code, physics = results.code_digest(), results.code_digest(physics_only=True)
    runs = results.Lines(out / "results.jsonl", code)
    optima = results.Lines(out / "optima.jsonl", physics)
    knees = results.Lines(out / "knees.jsonl", code)
    cells = results.Lines(out / "grids.jsonl", code)
    agents = results.Lines(out / "agent.jsonl", code)
    if not options.report_only:
        with ProcessPoolExecutor(options.jobs) as pool:
            _work(pool, "optima", optima, _optimum_tasks(chosen, optima))
            _work(pool, "runs", runs, _run_tasks(chosen, options, optima, runs))
            _work(pool, "knees", knees, _knee_tasks(chosen, options, knees))
            for policy in [p for p in grids.POLICIES if p == "oracle" or p in options.policies]:
                _work(pool, f"grids {policy}", cells, _grid_tasks(policy, options, cells))
            if options.agent:
                _work(pool, "agent", agents, _agent_tasks(options, agents))
    wanted = {_run_key(s.name, p, n) for s in chosen for p in options.policies for n in range(options.seeds)}
    kept = [measure.Result.from_dict(v) for k, v in runs.known.items() if k in wanted]
    results.write_csv(out / "results.csv", (item.as_dict() for item in kept))
    head = report.write(
        out, kept, list(cells.known.values()), list(knees.known.values()), list(agents.known.values()),
        {"seconds": time.monotonic() - began, "jobs": options.jobs, "command": _command()},
    )  # fmt: skip
    print(head)
    print(f"Written to {out}/report.md, {out}/report.html and {out}/results.csv")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools.bench.policies", description="Policies beside each other and beside the optimum."
    )
    parser.add_argument("--out", type=Path, default=Path("out/policies"), help="folder of results and report")
    parser.add_argument("--quick", action="store_true", help="a few short scenarios: two minutes")
    parser.add_argument(
        "--scenarios", type=_names, default=[], help="scenarios or families, by name, or none"
    )
    parser.add_argument("--policies", type=_names, default=list(ENTRANTS), help="policies, by name")
    parser.add_argument("--seeds", type=int, default=0, help="runs of each policy in each scenario")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--grids", type=_names, default=None, help=f"of {','.join(grids.GRIDS)}, or none")
    parser.add_argument("--full-grids", action="store_true", help="ten loads on each axis, not five")
    parser.add_argument("--agent", action="store_true", help="also the whole agent on simulated kernel trees")
    parser.add_argument("--report-only", action="store_true", help="compute nothing, write the report anew")
    options = parser.parse_args()
    if unknown := set(options.policies) - set(ENTRANTS):
        parser.error(f"--policies {','.join(sorted(unknown))}: known are {', '.join(ENTRANTS)}")
    if options.grids is None:
        options.grids = [] if options.quick or options.scenarios else list(grids.GRIDS)
    options.grids = [] if options.grids == ["none"] else options.grids
    if unknown := set(options.grids) - set(grids.GRIDS):
        parser.error(f"--grids {','.join(sorted(unknown))}: known are {', '.join(grids.GRIDS)}, none")
    options.seeds = options.seeds or (1 if options.quick else 2)
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _command() -> str:
    return " ".join(["python -m tools.bench.policies", *sys.argv[1:]])


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    known = scenarios.quick() if options.quick else scenarios.standard()
    if not options.scenarios:
        return known
    if options.scenarios == ["none"]:
        return []
    names = {s.name for s in known} | set(scenarios.FAMILIES)
    if unknown := set(options.scenarios) - names:
        raise SystemExit(f"--scenarios {','.join(sorted(unknown))}: known are {', '.join(sorted(names))}")
    return [s for s in known if s.name in options.scenarios or s.family in options.scenarios]


# -- what is to be done ---------------------------------------------------------------------------------


def _run_key(scenario: str, policy: str, seed: int) -> str:
    return f"{scenario}|{policy}|{seed}"


def _optimum_tasks(chosen: list[Scenario], known: results.Lines) -> Iterator[Task]:
    todo: dict[str, tuple[Situation, bool]] = {}
    for scenario in chosen:
        for key, here in measure.situations(scenario).items():
            if key not in known.known:
                todo[key] = here, scenario.partition
    for key, (here, parts) in todo.items():
        yield key, _optimum, (here, parts)


def _optimum(here: Situation, parts: bool) -> dict[str, object]:
    return oracle.best(here, parts=parts).as_dict()


def _run_tasks(
    chosen: list[Scenario], options: argparse.Namespace, optima: results.Lines, known: results.Lines
) -> Iterator[Task]:
    for scenario in chosen:
        own = {
            key: Optimum(**optima.known[key]) for key in measure.situations(scenario) if key in optima.known
        }
        for seed in range(min(options.seeds, scenario.most_seeds)):
            for policy in [p for p in options.policies if not scenario.only or p in scenario.only]:
                key = _run_key(scenario.name, policy, seed)
                if key not in known.known:
                    yield key, one_run, (scenario, policy, seed, own)


def one_run(scenario: Scenario, policy: str, seed: int, optima: dict[str, Optimum]) -> dict[str, object]:
    """One run, measured."""
    entrant = ENTRANTS[policy]
    done = run(scenario, entrant.make(scenario, seed), entrant.period_s, seed, models=entrant.models)
    return measure.measure(done, optima).as_dict()


def _knee_tasks(chosen: list[Scenario], options: argparse.Namespace, known: results.Lines) -> Iterator[Task]:
    for scenario in chosen:
        if scenario.family != "paper":
            continue
        for policy in KNEE_OF:
            key = f"{scenario.name}|{policy}"
            if policy in options.policies and key not in known.known:
                yield key, _knee, (scenario, policy)


def _knee(scenario: Scenario, policy: str) -> list[dict[str, object]]:
    from dataclasses import replace

    entrant = ENTRANTS[policy]
    endless = replace(scenario, actors=tuple(replace(a, job=None) for a in scenario.actors))
    done = run(endless, entrant.make(endless, 0), entrant.period_s, 0, models=entrant.models)
    settings = done.last.settings if done.last is not None else {}
    return [point.as_dict() for point in knee.around(endless, policy, settings)]


def _grid_tasks(policy: str, options: argparse.Namespace, known: results.Lines) -> Iterator[Task]:
    for grid, row, column in grids.cells(options.full_grids):
        if grid not in options.grids:
            continue
        base = f"{grid}|{row}|{column}"
        truth = known.known.get(f"{base}|oracle")
        key = f"{base}|{policy}"
        if key not in known.known:
            reference = float(truth["reference"]) if truth is not None else 0.0
            yield key, _cell, (grid, row, column, policy, reference)


def _cell(grid: str, row: float, column: float, policy: str, reference: float) -> dict[str, object]:
    return grids.compute(grid, row, column, policy, 0, reference).as_dict()


def _agent_tasks(options: argparse.Namespace, known: results.Lines) -> Iterator[Task]:
    for name in agentmode.SCENARIOS:
        for policy in options.policies:
            key = f"{name}|{policy}"
            if policy in agentmode.POLICIES and key not in known.known:
                yield key, agentmode.measure_agent, (name, policy)


def _work(pool: ProcessPoolExecutor, what: str, lines: results.Lines, tasks: Iterable[Task]) -> None:
    """Do all of them, in whatever order they end, and tell how far it is."""
    began = time.monotonic()
    futures: dict[Future[Any], str] = {pool.submit(call, *args): key for key, call, args in tasks}
    for count, future in enumerate(as_completed(futures), 1):
        lines.add(futures[future], future.result())
        seconds = time.monotonic() - began
        left = seconds / count * (len(futures) - count)
        text = f"\r{what}: {count}/{len(futures)}, {seconds:.0f} s, about {left:.0f} s left   "
        print(text, end="", file=sys.stderr, flush=True)
    if futures:
        print(file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
