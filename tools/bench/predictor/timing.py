"""pyperf benchmarks of the learner's cost in the resident process. Started by ``cost`` in separate processes.

python -m tools.bench.predictor.timing -o FILE [pyperf's options]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pyperf

from tools.bench.predictor import live
from tools.bench.predictor.contestants import Online, WarmStart
from tools.bench.predictor.streams import DRIFTS, everywhere, sticky, stream

UPDATE, PREDICT = "update of one sample", "prediction of 100 candidates with bounds"
LIVE = ", live model"
SAMPLES: Final = 2000
"""Number of samples of the stream that updates use cyclically."""

Call = Callable[[int], object]


def learner() -> tuple[Online, WarmStart]:
    """The learner of the comparison after its warm start."""
    rng = np.random.default_rng(1)
    x = everywhere(rng, 600)
    warm = WarmStart.of(x, DRIFTS["cache and CPI"][0].log_performance(x) + 0.03 * rng.standard_normal(600), 1)
    return Online(warm), warm


def update(online: Online | None = None) -> Call:
    """Updates of the comparison's learner, along a stream that changes halfway."""
    model, rng = (online or learner()[0]).model, np.random.default_rng(2)
    along = stream(*DRIFTS["cache and CPI"], sticky(rng, SAMPLES, 0.1), SAMPLES // 2, rng)
    return lambda i: model.observe(along.x[i % SAMPLES], float(along.y[i % SAMPLES]))


def predict() -> Call:
    """Predictions of the comparison's learner."""
    model, asked = learner()[0].model, everywhere(np.random.default_rng(3), 100)
    return lambda _: model.predict(asked)


def update_live() -> Call:
    """Updates of one channel of a daemon's model."""
    taught, corrections = live.taught(), live.samples(SAMPLES)
    return lambda i: live.learn(taught, corrections[i % SAMPLES])


def predict_live() -> Call:
    """Predictions of a daemon's model."""
    taught = live.taught()
    return lambda _: taught.predict_work(live.CANDIDATES, live.CONTEXT)


CALLS: Final[dict[str, Callable[[], Call]]] = {
    UPDATE: update,
    PREDICT: predict,
    UPDATE + LIVE: update_live,
    PREDICT + LIVE: predict_live,
}
"""The benchmark by name, created at first use because each process measures only one."""


class Timed:
    """Consecutive calls, for pyperf."""

    def __init__(self, make: Callable[[], Call]) -> None:
        self._make = make
        self._call: Call | None = None
        self._next = 0

    def __call__(self, loops: int) -> float:
        """Seconds taken by this number of calls."""
        if self._call is None:
            self._call = self._make()
        call, first = self._call, self._next
        self._next += loops
        began = time.perf_counter()
        for i in range(first, self._next):
            call(i)
        return time.perf_counter() - began


def main() -> None:
    """Run all benchmarks as pyperf's command line says."""
    runner = pyperf.Runner(min_time=0.05)
    for name, make in CALLS.items():
        runner.bench_time_func(name, Timed(make))


if __name__ == "__main__":
    main()
