"""Cost of the learner in the resident process: time of one call, bytes of one model.

Two models are measured: the learner of the comparison (100 trees of depth 4, 5 replicas, 5 features), and the model
that a running daemon has of every LRA (``LraModel``: three channels, trees below local cells), full, on the features of
a real host. Wall time on a shared machine includes other processes' load, so the report also gives the CPU time of the
calling thread. Calls with a budget are also measured by pyperf, in separate processes (``timing``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyperf

from perphd.predictor.ogbrt import Forest
from tools.bench.predictor import live, timing
from tools.bench.predictor.streams import everywhere
from tools.bench.predictor.timing import LIVE, PREDICT, UPDATE

HELD = "rebuild, kept from the loop: the interpreter, by the rebuild's thread, all told"
"""CPU time, in all columns; see ``live.rebuild_steps``."""
BUDGETS_US = {UPDATE: 300.0, PREDICT: 500.0, UPDATE + LIVE: 300.0, PREDICT + LIVE: 500.0}
BYTES_BUDGET = 1 << 20
BLOCK_BUDGET_US = 5000.0
"""Budget of the loop for one step of a rebuild: making the job, taking its result, waiting for the interpreter."""
_ROOT = Path(__file__).parents[3]  # pyperf starts its workers by path, not as modules


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one call: median and 99th percentile of wall time over ``calls``; median and maximum of CPU time;
    and the median over pyperf's processes, if pyperf measured it.
    """

    name: str
    p50_us: float
    p99_us: float
    calls: int
    cpu_p50_us: float = 0.0
    cpu_most_us: float = 0.0
    pyperf_us: float | None = None

    @property
    def in_loop(self) -> bool:
        """True for a step of a rebuild in the daemon's loop, for which the CPU time of the longest call counts."""
        return "the loop:" in self.name

    @property
    def budget_us(self) -> float | None:
        """Its budget; None if there is none."""
        return BLOCK_BUDGET_US if self.in_loop else BUDGETS_US.get(self.name)

    @property
    def kept(self) -> bool:
        """True if the budget is kept: by the median wall time (pyperf's, if measured); by the longest step of a
        rebuild.
        """
        budget, median = self.budget_us, self.p50_us if self.pyperf_us is None else self.pyperf_us
        return budget is None or (self.cpu_most_us if self.in_loop else median) <= budget


def measure(calls: int = 2000) -> tuple[list[Cost], int]:
    """Costs of both, and the bytes of the learner with its reservoir."""
    online, warm = timing.learner()
    model, asked = online.model, everywhere(np.random.default_rng(3), 100)
    found = [
        _time(UPDATE, timing.update(online), calls),
        _time(PREDICT, lambda _: model.predict(asked), calls),
        _time("prediction of 1 candidate with bounds", lambda _: model.predict(asked[:1]), calls),
    ]
    bytes_idle = model.nbytes
    found.append(_time("rebuild, in the loop: make the job", lambda _: model.rebuild_job(), 50))
    job = model.rebuild_job()
    found.append(_time("rebuild, in the worker: train", lambda _: job.run(), 5))
    rebuilt = job.run()
    found.append(_time("rebuild, in the loop: take the result", lambda _: model.offer(rebuilt), 50))
    found.append(_time("compile a forest (at start)", lambda _: Forest.compile(warm.trees), 50))
    medians = by_pyperf(quick=calls < timing.SAMPLES)
    costs = [replace(cost, pyperf_us=medians.get(cost.name)) for cost in found + _live(calls)]
    return costs, bytes_idle


def by_pyperf(quick: bool) -> Mapping[str, float]:
    """Microseconds of one call by name: the median over the values of all of pyperf's processes.

    Raises:
        CalledProcessError: a benchmark failed; its output states the reason.
    """
    effort = ["--processes=1", "--values=3"] if quick else ["--processes=7", "--values=3"]
    environment = {"PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="perphd-bench-") as folder:
        results = Path(folder) / "timing.json"
        subprocess.run(
            [sys.executable, "-m", "tools.bench.predictor.timing", *effort, "--warmups=1", "--quiet",
             f"--inherit-environ={','.join(environment)}", "-o", str(results)],
            env={**os.environ, **environment},
            stdout=sys.stderr,
            check=True,
        )  # fmt: skip
        found = pyperf.BenchmarkSuite.load(str(results)).get_benchmarks()
    return {bench.get_name(): bench.median() * 1e6 for bench in found}


def _live(calls: int) -> list[Cost]:
    taught = live.taught()
    corrections = live.samples(calls)
    found = [
        _time(UPDATE + LIVE, lambda i: live.learn(taught, corrections[i]), calls),
        _time(PREDICT + LIVE, lambda _: taught.predict_work(live.CANDIDATES, live.CONTEXT), calls),
        _time("all channels of one sample" + LIVE, lambda i: taught.observe(live.observation(i)), calls),
        _time(
            "take part in a trial: all channels of one sample" + LIVE, live.on_trial(taught), min(calls, 100)
        ),
    ]
    started, taken, held = live.rebuild_steps(20)
    found.append(_cost("rebuild, in the loop: start one" + LIVE, started))
    found.append(_cost("rebuild, in the loop: take one" + LIVE, taken))
    found.append(_cost(HELD + LIVE, np.column_stack([held, held])))
    return found


def _time(name: str, call: Callable[[int], object], calls: int) -> Cost:
    for i in range(min(20, calls)):
        call(i)
    spent = np.empty((calls, 2))
    for i in range(calls):
        began, cpu = time.perf_counter(), time.thread_time()
        call(i)
        spent[i] = time.perf_counter() - began, time.thread_time() - cpu
    return _cost(name, spent)


def _cost(name: str, spent: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Cost:
    """The cost from wall and CPU seconds of every call, (calls, 2)."""
    p50, p99 = np.percentile(spent[:, 0], [50, 99]) * 1e6
    cpu = spent[:, 1] * 1e6
    return Cost(name, float(p50), float(p99), len(spent), float(np.median(cpu)), float(cpu.max()))
