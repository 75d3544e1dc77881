"""Cost of ``rdt``: reading 50 groups, and laying out 16 groups on 20 ways, compared with budgets.

    python -m tools.bench.resctrl [--out FILE.json] [--fast]

Reading is measured over files in memory with the layout of mon_data, through the same system calls as on resctrl.
The kernel's own time there depends on the machine (it asks a CPU of the domain to read the counter) and is not
included. Times are CPU time of the process with system calls, without waits for a CPU.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyperf

from rdt import FrozenDict, GroupRef, Info, MonitoringInfo, Mount, RealFs
from rdt.access import Access
from rdt.cbm import Cbm
from rdt.masks import CacheDomain, Demand, Layout, Use, solve
from rdt.monitor import EVENTS, Monitor

READ_BUDGET_S, LAYOUT_BUDGET_S = 2e-3, 1e-3
GROUPS, DOMAINS = 50, (0, 1)
LAID_OUT, WAYS = 16, 20
INSTANCES = 40
_READING = f"read occupancy and bandwidth of {GROUPS} groups x {len(DOMAINS)} domains"
_CACHES = {0: CacheDomain(Cbm.span(0, WAYS), 1, shareable=Cbm(0xC0000))}


class Tree:
    """In-memory files with the layout of /sys/fs/resctrl."""

    def __init__(self) -> None:
        above = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="rdt-bench-", dir=above))
        self.groups = [GroupRef(f"group{number:02}") for number in range(GROUPS)]
        for group in self.groups:
            (self.path / group.relative / "mon_groups").mkdir(parents=True)
            for domain in DOMAINS:
                place = self.path / group.relative / "mon_data" / f"mon_L3_{domain:02}"
                place.mkdir(parents=True)
                for event in EVENTS:
                    (place / event).write_text("123456789012\n")
        monitoring = MonitoringInfo(EVENTS, 256, None, DOMAINS, FrozenDict())
        info = Info(Mount(str(self.path)), FrozenDict(), FrozenDict(), monitoring)
        self.monitor = Monitor(Access(RealFs(), str(self.path)), info, self.groups)
        self.monitor.read()

    def close(self) -> None:
        self.monitor.close()
        shutil.rmtree(self.path)


class Reading:
    """The benchmark of reading; its tree is made in the process that measures."""

    def __init__(self) -> None:
        self.tree: Tree | None = None

    def __call__(self, loops: int) -> float:
        self.tree = self.tree or Tree()
        read = self.tree.monitor.read
        began = time.process_time()
        for _ in range(loops):
            read()
        return time.process_time() - began

    def close(self) -> None:
        if self.tree is not None:
            self.tree.close()


def layouts() -> dict[str, list[Callable[[], Layout]]]:
    """Layouts to compute, by kind: demands and present masks."""
    kinds: dict[str, list[Callable[[], Layout]]] = {
        name: [] for name in ("new", "unchanged", "one demand changes by a way", "every demand is another")
    }
    chance = random.Random(20)
    for _ in range(INSTANCES):
        ways = _some_ways(chance)
        present = solve(_demands(ways), _CACHES, closids=LAID_OUT)
        for _ in range(8):  # fragmented, as after a while of running
            ways = _one_changed(ways, chance)
            present = solve(_demands(ways), _CACHES, closids=LAID_OUT, present=present)
        kinds["new"].append(_task(ways, Layout()))
        kinds["unchanged"].append(_task(ways, present))
        kinds["one demand changes by a way"].append(_task(_one_changed(ways, chance), present))
        kinds["every demand is another"].append(_task(_some_ways(chance), present))
    return kinds


def _task(ways: list[int], present: Layout) -> Callable[[], Layout]:
    demands = _demands(ways)
    return lambda: solve(demands, _CACHES, closids=LAID_OUT, present=present)


def _some_ways(chance: random.Random) -> list[int]:
    """Demands of all groups but batch, which has the two ways shared with I/O."""
    ways = [1] * (LAID_OUT - 1)
    for _ in range(chance.randint(1, WAYS - 2 - len(ways))):
        ways[chance.randrange(len(ways))] += 1
    return ways


def _one_changed(ways: list[int], chance: random.Random) -> list[int]:
    changed = list(ways)
    number = chance.randrange(len(ways))
    if changed[number] > 1 and (chance.random() < 0.5 or sum(changed) == WAYS - 2):
        changed[number] -= 1
    elif sum(changed) < WAYS - 2:
        changed[number] += 1
    return changed


def _demands(ways: list[int]) -> list[Demand]:
    own = [Demand.of(f"lra{number:02}", {0: each}, Use.EXCLUSIVE) for number, each in enumerate(ways)]
    return [*own, Demand.of("batch", {0: 2}, Use.BATCH)]


def _timed(tasks: list[Callable[[], Layout]]) -> Callable[[int], float]:
    def run(loops: int) -> float:
        began = time.process_time()
        for _ in range(loops):
            for task in tasks:
                task()
        return time.process_time() - began

    return run


def _slowest_s(tasks: list[Callable[[], Layout]]) -> float:
    """The slowest single layout, the best of five tries of each."""
    run = [min(_timed([task])(1) for _ in range(5)) for task in tasks]
    return max(run)


def main() -> int:
    """Measure and compare; exit status 1 if a mean is over its budget."""
    runner = pyperf.Runner(program_args=("-m", "tools.bench.resctrl"), processes=3, values=3, min_time=0.05)
    runner.parse_args()
    reading = Reading()
    kinds = layouts()
    first = runner.bench_time_func(_READING, reading)
    measured: list[tuple[str, float, Any, list[Callable[[], Layout]]]] = [
        (_READING, READ_BUDGET_S, first, [])
    ]
    for kind, tasks in kinds.items():
        name = f"lay out {LAID_OUT} groups on {WAYS} ways: {kind}"
        bench = runner.bench_time_func(name, _timed(tasks), inner_loops=len(tasks))
        measured.append((name, LAYOUT_BUDGET_S, bench, tasks))
    reading.close()
    if runner.args.worker:
        return 0
    over = False
    sys.stdout.write("\n")
    for name, budget_s, bench, tasks in measured:
        if bench is None:
            continue
        mean_s, worst = bench.mean(), ""
        if tasks:
            proven = sum(all(each.proven for each in task().domains.values()) for task in tasks)
            worst = f"; slowest instance {_slowest_s(tasks) * 1e3:.2f} ms; {proven} of {len(tasks)} proven minimal"
        over = over or mean_s > budget_s
        verdict = "over" if mean_s > budget_s else "within"
        sys.stdout.write(f"{name}: {mean_s * 1e3:.2f} ms, {verdict} {budget_s * 1e3:g} ms{worst}\n")
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
