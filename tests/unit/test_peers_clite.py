"""CLITE against its paper (HPCA 2020): bootstrap, score, stop, dropout, perturbation."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.unit.peers_world import Play, batch, lra
from tools.bench.policies.peers import clite
from tools.bench.policies.peers.units import Units

TOTAL = Units(8, 11, 10)


def test_bootstrap_is_every_extreme_and_the_equal_split():
    memory = clite.begun(("a", "b", "be"), 2, TOTAL, (0.0, 0.0))
    assert len(memory.todo) == 4
    assert memory.todo[0] == ((6, 9, 8), (1, 1, 1), (1, 1, 1))
    assert memory.todo[2] == ((1, 1, 1), (1, 1, 1), (6, 9, 8))
    assert memory.todo[3] == ((3, 4, 4), (3, 4, 3), (2, 3, 3))


def test_score_is_at_most_half_while_a_target_is_missed():
    assert clite.score((0.5, 2.0, 100.0), 2, (1.0, 1.0, 100.0)) == pytest.approx(0.5 * (0.5 * 1.0) ** 0.5)
    assert clite.score((1.0, 2.0, 25.0), 2, (1.0, 1.0, 100.0)) == pytest.approx(0.5 + 0.5 * 0.25)
    assert clite.score((1.0, 2.0), 2, (2.0, 2.0)) == pytest.approx(0.5 + 0.5 * 0.5**0.5), "LRAs without batch"


def test_performance_in_isolation_is_learned_from_the_extremes():
    memory = clite.CliteMemory(("a", "be"), 1, (clite.Seen(((1, 1, 1), (7, 10, 9)), 0.1, (0.2, 90.0)),))
    assert clite.isolated(memory, (1.5, 10.0)) == (1.5, 90.0)


def test_samples_the_bootstrap_then_searches_then_keeps_the_best_and_stays():
    world = Play(clite.ClitePolicy(1, most_samples=9), period_s=clite.PERIOD_S)
    points: list[clite.Point] = []
    for _ in range(240):
        world.step(*answer(world.memory))
        if world.memory.asked not in points:
            points.append(world.memory.asked)
        if world.memory.kept:
            break
    assert world.memory.kept
    assert len(world.memory.seen) <= 9
    assert points[:3] == list(clite.begun(("a", "be"), 1, TOTAL, (0.0,)).todo)
    best = max(world.memory.seen, key=lambda s: s.score)
    assert world.memory.asked == best.point
    assert best.score > 0.5, "it found a point that meets the target"
    kept = world.step(*answer(world.memory))
    assert world.step(*answer(world.memory)) == kept


def test_a_sample_counts_only_once_it_has_settled():
    world = Play(clite.ClitePolicy(), period_s=clite.PERIOD_S)
    world.step(lra("a", 5.0), batch())
    first = world.memory.asked
    world.step(lra("a", 99.0), batch())
    assert (world.memory.asked, world.memory.seen) == (first, ())
    world.step(lra("a", 8.0), batch())
    assert world.memory.asked != first
    assert world.memory.seen[0].by_job[0] == pytest.approx(10.0 / 8.0)


def test_begins_anew_when_the_load_moves_or_the_kept_point_fails():
    world = Play(clite.ClitePolicy(0, most_samples=6), period_s=clite.PERIOD_S)
    while world.memory is None or not world.memory.kept:
        world.step(*answer(world.memory))
    memory = world.memory
    world.step(lra("a", 5.0, load=130.0), batch())
    assert not world.memory.kept
    assert world.memory.seen == ()
    world.memory = memory
    world.step(lra("a", 11.0), batch())  # still settling: does not count
    for _ in range(clite.MISSES - 1):
        world.step(lra("a", 11.0), batch())
        assert world.memory.kept
    world.step(lra("a", 11.0), batch())
    assert not world.memory.kept


def test_as_published_a_kept_point_that_fails_is_kept_until_the_load_moves():
    world = Play(clite.ClitePolicy(0, most_samples=6, as_published=True), period_s=clite.PERIOD_S)
    while world.memory is None or not world.memory.kept:
        world.step(*answer(world.memory))
    for _ in range(3 * clite.MISSES):
        world.step(lra("a", 11.0), batch())
        assert world.memory.kept
    world.step(lra("a", 11.0, load=130.0), batch())
    assert not world.memory.kept


def test_predictions_are_those_of_the_library():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    random = np.random.default_rng(0)
    x = random.integers(1, 8, (20, 6)).astype(float)
    y = np.sin(x.sum(1) / 9.0)
    process = GaussianProcessRegressor(Matern(1.0, (1.0, 20.0), nu=1.5), alpha=1e-5, normalize_y=True).fit(
        x, y
    )
    asked = np.vstack([random.random((30, 6)) * 8, x[:2]])
    mean, sd = process.predict(asked, return_std=True)
    found = clite.predicted(process, asked)
    assert found[0] == pytest.approx(mean, abs=1e-9)
    assert found[1] == pytest.approx(sd, abs=1e-9)


def test_every_point_uses_all_units_and_gives_everybody_one():
    memory = clite.begun(("a", "b", "be"), 2, TOTAL, (0.0, 0.0))
    seen = tuple(
        clite.Seen(p, s, (1.2, 0.8, 10.0)) for p, s in zip(memory.todo, (0.3, 0.2, 0.1, 0.45), strict=True)
    )
    memory = clite.CliteMemory(memory.jobs, 2, seen)
    for seed in range(3):
        point, gain = clite.propose(memory, TOTAL, Random(seed))
        assert gain >= 0.0
        assert point not in {s.point for s in seen}
        for r, total in enumerate((8, 11, 10)):
            assert sum(part[r] for part in point) == total
            assert min(part[r] for part in point) >= 1


def test_what_was_sampled_already_is_perturbed_from_those_that_can_give():
    best = clite.Seen(((4, 5, 5), (4, 6, 5)), 0.8, (1.3, 10.0))
    point = clite.perturbed(best, 1, TOTAL, Random(3), {best.point})
    assert point != best.point
    assert (
        sum(abs(a - b) for x, y in zip(point, best.point, strict=True) for a, b in zip(x, y, strict=True))
        >= 2
    )


def answer(memory):
    """A made-up host: latency falls with cores and ways, batch gets done what its cores allow."""
    if memory is None or memory.asked is None:
        return lra("a", 5.0), batch()
    mine, theirs = memory.asked
    latency = 10.0 * 5.0 / mine[0] * (1.0 + 0.5 / mine[1])
    return lra("a", latency), batch(mips=1000.0 * theirs[0] * (0.5 + 0.05 * theirs[1]))


def test_what_a_search_has_seen_is_kept_for_when_the_same_jobs_are_back():
    policy = clite.ClitePolicy(0, most_samples=8)
    world = Play(policy, period_s=clite.PERIOD_S)

    def until_kept(*views) -> int:
        for steps in range(1, 200):
            world.step(*views)
            if world.memory.kept:
                return steps
        raise AssertionError("it never ends")

    both = lra("a", 5.0), batch()
    first = until_kept(*both)
    world.step(lra("a", 5.0))
    world.step(lra("a", 5.0))
    again = until_kept(*both)
    assert again < first
    forgetful = Play(clite.ClitePolicy(0, most_samples=8, forgets=True), period_s=clite.PERIOD_S)
    for views in (both, both[:1], both):
        for _ in range(2):
            forgetful.step(*views)
    assert forgetful.memory.seen == ()
    assert len(forgetful.memory.todo) == 2, "two more points of the bootstrap are to come"
