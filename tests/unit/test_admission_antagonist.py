"""Who is accused: the batch workload whose use moves with the shortfall, and nobody without evidence."""

from __future__ import annotations

import random

import numpy as np
import pytest

from perphd.admission.detector.antagonist import WINDOW, Moment, correlations, find, use_of
from perphd.domain.decision import Cause
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from tests.unit.admission_world import World


def record(seed: int, guilty: str | None, lag: int = 0, n: int = WINDOW) -> list[Moment]:
    """Five batch workloads with lives of their own; ``guilty``'s use becomes the LRA's shortfall after ``lag``."""
    rng = random.Random(seed)
    names = [f"job{i}" for i in range(5)]
    level = {name: rng.uniform(0.5, 4.0) for name in names}
    past: list[dict[str, float]] = []
    moments = []
    for _ in range(n):
        for name in names:
            if rng.random() < 0.15:
                level[name] = rng.uniform(0.0, 4.0)
        past.append({name: max(0.0, level[name] + rng.gauss(0, 0.1)) for name in names})
        cause = past[-1 - lag][guilty] if guilty is not None and len(past) > lag else 1.0
        samples = (Sample(name, 0.0, 1.0, cpu_usage_cores=used) for name, used in past[-1].items())
        moments.append(Moment(0.15 * cause - 0.2 + rng.gauss(0, 0.08), tuple(map(use_of, samples))))
    return moments


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_guilty_one_is_found_among_five(lag: int) -> None:
    found = [find(record(seed, "job3", lag), Cause.CPU) for seed in range(30)]
    assert found.count("job3") >= 27
    assert len(set(found) - {"job3", None}) <= 1


def test_nobody_is_accused_without_evidence() -> None:
    found = [find(record(seed, None), Cause.CPU) for seed in range(100)]
    assert sum(name is not None for name in found) <= 3
    assert find(record(1, "job3")[:5], Cause.CPU) is None


def test_what_does_not_vary_explains_nothing() -> None:
    rising = np.arange(10.0)
    table = np.column_stack([np.full(10, 2.0), rising, -rising])
    assert correlations(table, rising).tolist() == pytest.approx([0.0, 1.0, -1.0])
    assert correlations(table, np.full(10, 0.3)).tolist() == [0.0, 0.0, 0.0]


def test_the_resource_that_is_contended_is_looked_at() -> None:
    moments = []
    for i in range(30):
        high = i >= 15
        streams = Sample("streams", 0.0, 1.0, cpu_usage_cores=1.0, mbw_bytes_per_s=9e9 if high else 1e8)
        spins = Sample("spins", 0.0, 1.0, cpu_usage_cores=4.0 if i % 2 else 3.9, mbw_bytes_per_s=1e6 + i % 2)
        blind = Sample("blind", 0.0, 1.0, cpu_usage_cores=Unavailable("no cpu.stat"))
        moments.append(Moment(0.3 if high else -0.05, tuple(map(use_of, (streams, spins, blind)))))
    assert find(moments, Cause.MBW) == "streams"
    assert find(moments, Cause.CPU) is None


def test_the_policy_names_the_batch_job_that_arrived() -> None:
    world = World()
    world.step(20)
    world.antagonist(True)
    world.step(3)
    assert "pi" in {decision.verdict.culprit for decision in world.history}
    assert all(d.verdict.culprit is None for d in world.history[:20])
