"""The policy bench.

python -m tools.bench.policies --out out/policies [--quick] [--scenarios paper,mix-1lra-1batch-50] [--policies a,b]
                               [--seeds 10] [--cadence 0.25] [--told all|none] [--counted] [--jobs 2]
                               [--grids fig12] [--full-grids] [--no-agent] [--report-only]

Runs every scenario with every policy and seed, CLITE's grids, the knees around the chosen settings, and the whole agent
on simulated kernel trees: a night on two cores. ``--seeds 2`` gives a first impression; ``--quick`` runs a few short
scenarios. An interrupted run continues seed by seed, because results of the same code are kept as JSON lines. The exit
status is 1 if a computation failed; the report then covers the rest.

A policy's name may end in ``@0.25`` (called every quarter of a second, regardless of its paper or daemon), in ``+told``
or ``+untold`` (called as soon as batch starts, or not). ``--cadence`` and ``--told`` apply to all policies.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

# No threads of numeric libraries, because several processes compute at once.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from perphd.domain.policy import Policy  # noqa: E402
from tools.bench.policies import (  # noqa: E402
    agentmode,
    enough,
    grids,
    held,
    knee,
    measure,
    oracle,
    report,
    results,
    scenarios,
)
from tools.bench.policies.catalogue import ENTRANTS, VARIANTS, entrant  # noqa: E402
from tools.bench.policies.oracle import Optimum, Situation  # noqa: E402
from tools.bench.policies.pool import Progress, Task, work  # noqa: E402
from tools.bench.policies.scene import Noise, Scenario  # noqa: E402

KNEE_OF = ("perph", "parties")
_COSTS = {"clite": 4.0, "perph": 2.0, "perph-literal": 1.5}
"""Relative cost of a policy's virtual second, compared with a policy that does nothing."""
SEEDS = 10
"""Runs of each policy in each scenario."""
MOST_JOBS = 2
"""Default number of processes, which leaves the machine usable for others."""


def main() -> int:
    """Compute missing results, write the report, print its head."""
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    chosen = _scenarios(options)
    code, physics = results.code_digest(), results.code_digest(physics_only=True)
    any_code = options.report_only
    runs = results.Lines(out / "results.jsonl", code, any_code=any_code)
    optima = results.Lines(out / "optima.jsonl", physics)
    knees = results.Lines(out / "knees.jsonl", code, any_code=any_code)
    cells = results.Lines(out / "grids.jsonl", code, any_code=any_code)
    agents = results.Lines(out / "agent.jsonl", code, any_code=any_code)
    progress = Progress()
    if not options.report_only:
        _load_all()
        with ProcessPoolExecutor(options.jobs) as pool:
            try:
                work(pool, "optima", optima, _optimum_tasks(chosen, options.policies, optima), progress)
                work(pool, "runs", runs, _run_tasks(chosen, options, optima, runs), progress)
                work(pool, "knees", knees, _knee_tasks(chosen, options, knees), progress)
                work(pool, "grids: optima", cells, _grid_tasks(["oracle"], options, cells), progress)
                others = grids.policies(options.policies)
                work(pool, "grids", cells, _grid_tasks(others, options, cells), progress)
                if options.agent:
                    work(pool, "agent", agents, _agent_tasks(options, agents), progress)
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                print("\nInterrupted; the same command goes on from here.", file=sys.stderr)
                return 130
    wanted = {
        _run_key(s.name, p, n) for s in chosen for p in options.policies for n in range(_seeds(s, options))
    }
    kept = [measure.Result.from_dict(v) for k, v in runs.known.items() if k in wanted]
    results.write_csv(out / "results.csv", (item.as_dict() for item in kept))
    steps = [
        enough.Neighbour.from_dict(s)
        for k, v in runs.known.items()
        if k in wanted
        for s in v.get("steps", ())
    ]
    about = report.About(
        command=_command(), wall_s=time.monotonic() - began, worker_s=progress.worker_s, jobs=options.jobs,
        computed=progress.done, failed=tuple(progress.failed), cut=_cut(options),
    )  # fmt: skip
    head = report.write(
        out,
        kept,
        list(cells.known.values()),
        list(knees.known.values()),
        list(agents.known.values()),
        about,
        steps,
    )
    print(head)
    print(f"Written to {out}/report.md, report.html, headline.md and results.csv")
    for key, why in progress.failed:
        print(f"could not be computed: {key}: {why}", file=sys.stderr)
    return 1 if progress.failed else 0


def _load_all() -> None:
    """Import late imports of policies once, before the workers are forked."""
    from scipy import optimize  # type: ignore[import-untyped]
    from sklearn import gaussian_process

    del optimize, gaussian_process


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools.bench.policies", description="Compare policies with each other and with the optimum."
    )
    parser.add_argument("--out", type=Path, default=Path("out/policies"), help="folder of results and report")
    parser.add_argument("--quick", action="store_true", help="a few short scenarios: two minutes")
    parser.add_argument(
        "--scenarios", type=_names, default=[], help="names of scenarios or families, or none"
    )
    parser.add_argument("--policies", type=_names, default=list(ENTRANTS), help="names of policies")
    parser.add_argument("--seeds", type=int, default=0, help="runs of each policy in each scenario")
    parser.add_argument("--cadence", type=float, help="the same decision period for every policy, in seconds")
    parser.add_argument(
        "--told", choices=("all", "none"), help="policies that decide at once when batch starts"
    )
    parser.add_argument(
        "--counted",
        action="store_true",
        help="counting noise on every channel, and no events on the grid of ticks",
    )
    parser.add_argument(
        "--jobs", type=int, default=min(MOST_JOBS, os.cpu_count() or 1), help="number of processes"
    )
    parser.add_argument("--grids", type=_names, default=None, help=f"of {','.join(grids.GRIDS)}, or none")
    parser.add_argument("--full-grids", action="store_true", help="ten loads on each axis, not five")
    parser.add_argument(
        "--no-agent",
        dest="agent",
        action="store_false",
        help="leave out the whole agent on simulated kernel trees",
    )
    parser.add_argument("--report-only", action="store_true", help="only write the report again")
    options = parser.parse_args()
    options.policies = [_paced(name, options, parser) for name in options.policies]
    if options.grids is None:
        options.grids = [] if options.quick or options.scenarios else list(grids.GRIDS)
    options.grids = [] if options.grids == ["none"] else options.grids
    if unknown := set(options.grids) - set(grids.GRIDS):
        parser.error(
            f"--grids {','.join(sorted(unknown))}: unknown (allowed: {', '.join(grids.GRIDS)}, none)"
        )
    options.seeds = options.seeds or (1 if options.quick else SEEDS)
    if options.scenarios or options.quick:
        options.agent = False
    return options


def _paced(name: str, options: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """The policy's name with the requested pace and notification suffixes."""
    if options.cadence is not None and "@" not in name and not name.startswith("oracle"):
        base, plus, told = name.partition("+")
        name = f"{base}@{options.cadence:g}{plus}{told}"
    if options.told is not None and "+" not in name and not name.startswith("oracle"):
        name += "+told" if options.told == "all" else "+untold"
    try:
        entrant(name)
    except KeyError:
        parser.error(f"--policies {name}: unknown (allowed: {', '.join((*ENTRANTS, *VARIANTS))})")
    return name


def _seeds(scenario: Scenario, options: argparse.Namespace) -> int:
    """Number of runs of a policy."""
    wanted: int = options.seeds
    return min(wanted, scenario.most_seeds)


def _cut(options: argparse.Namespace) -> str:
    """Omissions of a short run, in a sentence."""
    text = f"{options.seeds} seed{'s' if options.seeds > 1 else ''} a scenario and policy"
    if options.grids and not options.full_grids:
        text += (
            "; five of the ten loads on each axis of the grids, one seed, four loads of memcached by halving"
        )
    return text + "."


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _command() -> str:
    return " ".join(["python -m tools.bench.policies", *sys.argv[1:]])


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    chosen = _named(options)
    return [s.counted() if s.noise is Noise.PLAIN else s for s in chosen] if options.counted else chosen


def _named(options: argparse.Namespace) -> list[Scenario]:
    known = scenarios.quick() if options.quick else scenarios.standard()
    if not options.scenarios:
        return known
    if options.scenarios == ["none"]:
        return []
    names = {s.name for s in known} | set(scenarios.FAMILIES)
    if unknown := set(options.scenarios) - names:
        raise SystemExit(
            f"--scenarios {','.join(sorted(unknown))}: unknown (allowed: {', '.join(sorted(names))})"
        )
    return [s for s in known if s.name in options.scenarios or s.family in options.scenarios]


# -- what is to be done ---------------------------------------------------------------------------------


def _run_key(scenario: str, policy: str, seed: int) -> str:
    return f"{scenario}|{policy}|{seed}"


def _wanted_optima(scenario: Scenario, policies: list[str]) -> dict[str, Situation]:
    """Every situation whose optimum is needed."""
    margins = held.MARGINS if held.CLAIRVOYANT in policies else (0.0,)
    found: dict[str, Situation] = {}
    for margin in margins:
        found |= measure.situations(scenario.tightened(margin) if margin else scenario)
    return found


def _optimum_tasks(chosen: list[Scenario], policies: list[str], known: results.Lines) -> Iterator[Task]:
    todo: dict[str, tuple[Situation, bool]] = {}
    for scenario in chosen:
        for key, here in _wanted_optima(scenario, policies).items():
            if key not in known.known:
                todo[key] = here, scenario.partition
    for key, (here, parts) in todo.items():
        yield Task(key, _optimum, (here, parts), cost=float(len(here.works) ** 2 * (2 if parts else 1)))


def _optimum(here: Situation, parts: bool) -> dict[str, object]:
    return oracle.best(here, parts=parts).as_dict()


def _run_tasks(
    chosen: list[Scenario], options: argparse.Namespace, optima: results.Lines, known: results.Lines
) -> Iterator[Task]:
    for scenario in chosen:
        wanted = _wanted_optima(scenario, options.policies)
        own = {key: Optimum(**optima.known[key]) for key in wanted if key in optima.known}
        seconds = scenario.duration_s * len(scenario.actors) ** 0.5
        for policy in [p for p in options.policies if not scenario.only or p in scenario.only]:
            for seed in range(_seeds(scenario, options)):
                key = _run_key(scenario.name, policy, seed)
                if key not in known.known:
                    cost = seconds * _COSTS.get(re.split("[@+]", policy)[0], 1.0)
                    yield Task(key, one_run, (scenario, policy, seed, own), cost, seed)


def one_run(scenario: Scenario, policy: str, seed: int, optima: dict[str, Optimum]) -> dict[str, object]:
    """One measured run; for the policies of ``KNEE_OF`` also every step away from their final settings.

    The clairvoyant is the run with the margin that missed least in this same world.
    """
    scenario = scenario.drawn(seed)
    if policy == held.CLAIRVOYANT:
        tried = []
        for margin in held.MARGINS:
            ruler = held.HeldPolicy(scenario, optima, margin=margin)
            tried.append(measure.measure(entrant(policy).run(scenario, ruler, seed), optima))
        least = min(tried, key=lambda r: (r.excess_s, r.violation_s))
        return replace(least, policy=policy).as_dict() | {"steps": []}
    stepped = scenario.family not in scenarios.LATER and scenario.family != "quiet"
    who, judged = entrant(policy), policy in KNEE_OF and stepped
    if policy in (held.NAME, held.LATE):
        decides: Policy = held.HeldPolicy(scenario, optima, late=policy == held.LATE)
    else:
        decides = who.make(scenario, seed)
    watcher = enough.Watcher() if judged else None
    done = who.run(scenario, decides, seed, watch=watcher)
    steps = enough.steps_of(done, watcher) if watcher is not None else []
    found = replace(measure.measure(done, optima), policy=policy)
    return found.as_dict() | {"steps": [step.as_dict() for step in steps]}


def _knee_tasks(chosen: list[Scenario], options: argparse.Namespace, known: results.Lines) -> Iterator[Task]:
    for scenario in chosen:
        if scenario.family != "paper":
            continue
        for policy in KNEE_OF:
            key = f"{scenario.name}|{policy}"
            if policy in options.policies and key not in known.known:
                yield Task(key, _knee, (scenario, policy))


def _knee(scenario: Scenario, policy: str) -> list[dict[str, object]]:
    who = entrant(policy)
    endless = replace(scenario, actors=tuple(replace(a, job=None) for a in scenario.actors))
    done = who.run(endless, who.make(endless, 0), 0)
    settings = done.last.settings if done.last is not None else {}
    return [point.as_dict() for point in knee.around(endless, policy, settings)]


def _grid_tasks(policies: list[str], options: argparse.Namespace, known: results.Lines) -> Iterator[Task]:
    for grid, row, column in grids.cells(options.full_grids):
        if grid not in options.grids:
            continue
        base = f"{grid}|{row}|{column}"
        truth = known.known.get(f"{base}|oracle")
        for policy in policies:
            key = f"{base}|{policy}"
            if key not in known.known:
                reference = float(truth["reference"]) if truth is not None else 0.0
                yield Task(key, _cell, (grid, row, column, policy, reference), _COSTS.get(policy, 1.0))


def _cell(grid: str, row: float, column: float, policy: str, reference: float) -> dict[str, object]:
    return grids.compute(grid, row, column, policy, 0, reference).as_dict()


def _agent_tasks(options: argparse.Namespace, known: results.Lines) -> Iterator[Task]:
    for name in agentmode.SCENARIOS:
        for policy in options.policies:
            key = f"{name}|{policy}"
            if policy in agentmode.POLICIES and key not in known.known:
                yield Task(key, agentmode.measure_agent, (name, policy))


if __name__ == "__main__":
    raise SystemExit(main())
