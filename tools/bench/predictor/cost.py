"""What the learner costs the resident process: time of one call, bytes of one model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perphd.predictor.ogbrt import Forest
from tools.bench.predictor.contestants import Online, WarmStart
from tools.bench.predictor.streams import DRIFTS, everywhere, sticky, stream

BUDGETS_US = {"update of one sample": 300.0, "prediction of 100 candidates with bounds": 500.0}
BYTES_BUDGET = 1 << 20
BLOCK_BUDGET_US = 5000.0
"""What a rebuild may take from the loop: to make the job, and to take its result."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one call: median and 99th percentile over ``calls``."""

    name: str
    p50_us: float
    p99_us: float
    calls: int


def measure(calls: int = 2000) -> tuple[list[Cost], int]:
    """Costs of a model with 100 trees of depth 4 and 5 replicas on 5 features, and its bytes."""
    rng = np.random.default_rng(1)
    before, after = DRIFTS["cache and CPI"]
    x = everywhere(rng, 600)
    warm = WarmStart.of(x, before.log_performance(x) + 0.03 * rng.standard_normal(600), 1)
    model = Online(warm).model
    live = stream(before, after, sticky(rng, calls, 0.1), calls // 2, rng)
    asked = everywhere(rng, 100)
    found = [
        _time("update of one sample", lambda i: model.observe(live.x[i], float(live.y[i])), calls),
        _time("prediction of 100 candidates with bounds", lambda _: model.predict(asked), calls),
        _time("prediction of 1 candidate with bounds", lambda _: model.predict(asked[:1]), calls),
    ]
    bytes_idle = model.nbytes
    found.append(_time("rebuild, in the loop: make the job", lambda _: model.rebuild_job(), 50))
    job = model.rebuild_job()
    found.append(_time("rebuild, in the worker: train", lambda _: job.run(), 5))
    rebuilt = job.run()
    found.append(_time("rebuild, in the loop: take the result", lambda _: model.offer(rebuilt), 50))
    found.append(_time("compile a forest (at start)", lambda _: Forest.compile(warm.trees), 50))
    return found, bytes_idle


def _time(name: str, call: Callable[[int], object], calls: int) -> Cost:
    for i in range(min(20, calls)):
        call(i)
    spent = np.empty(calls)
    for i in range(calls):
        began = time.perf_counter()
        call(i)
        spent[i] = time.perf_counter() - began
    p50, p99 = np.percentile(spent, [50, 99]) * 1e6
    return Cost(name, float(p50), float(p99), calls)
