"""The harness: its streams are what they say, its report shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tools.bench.predictor import curves, node, online, streams
from tools.bench.predictor.contestants import OURS, REFIT, WarmStart
from tools.bench.predictor.cost import Cost
from tools.bench.predictor.report import Report, Study
from tools.bench.predictor.streams import DRIFTS, HIGH, LOW, MONOTONE, STEP, Database
from tools.bench.predictor.warm import Warm, grid, r2


@pytest.mark.parametrize("surface", [Database(), DRIFTS["scalability"][1], node.mysql(), node.mysql(True)])
def test_surfaces_are_as_monotone_as_the_learner_is_told(surface: streams.Surface) -> None:
    x = streams.everywhere(np.random.default_rng(0), 150)
    here = surface.log_performance(x)
    for column, sign in enumerate(MONOTONE):
        up = x.copy()
        up[:, column] = np.minimum(up[:, column] + STEP[column], HIGH[column])
        if sign:
            moved = sign * (surface.log_performance(up) - here)
            assert (
                np.mean(moved < -2e-3) <= 0.02
            )  # a balance of the node model may tip at a saturated channel
    assert here.std() > 0.2


def test_drifts_change_what_they_are_named_for() -> None:
    x = streams.everywhere(np.random.default_rng(0), 300)
    for name, (before, after) in DRIFTS.items():
        moved = np.abs(before.log_performance(x) - after.log_performance(x)).mean()
        assert (moved == 0) == (name == "none"), name


def test_streams_are_on_the_lattice_repeatable_and_change_when_told() -> None:
    def made(seed: int) -> streams.Stream:
        rng = np.random.default_rng(seed)
        return streams.stream(*DRIFTS["base CPI"], streams.sticky(rng, 200, 0.1), 100, rng, noise=0.0)

    one, same = made(1), made(1)
    assert np.array_equal(one.x, same.x)
    assert np.array_equal(one.y, same.y)
    assert np.all((one.x >= LOW) & (one.x <= HIGH))
    assert np.allclose(streams.snap(one.x.copy()), one.x)
    for i in (99, 100):
        assert one.truth[i].log_performance(one.x[i : i + 1])[0] == pytest.approx(one.y[i])
    assert one.truth[99] != one.truth[100]
    near = one.near(50, np.random.default_rng(0), 40)
    assert np.all(np.abs(near - one.x[50]) <= streams.NEAR * (HIGH - LOW) + STEP)


def test_measured_curves_are_read_from_a_folder(tmp_path: Path) -> None:
    rows = ["BENCH,NR_WAYS,ipc"] + [f"prog,{w},{1 - 0.5 / w}" for w in range(1, 12)]
    (tmp_path / "metrics.csv").write_text("\n".join(rows) + "\n")
    curve = curves.read(tmp_path)["prog"]
    x = np.array([[4.0, 0.5, w, 100.0, 1.0] for w in range(1, 12)])
    assert np.all(np.diff(curve.log_performance(x)) > 0)
    with pytest.raises(FileNotFoundError, match="metrics"):
        curves.read(tmp_path / "none")


class Perfect:
    """Knows the truth of a stream that does not drift."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        return Database().log_performance(x)

    def learn(self, x: np.ndarray, y: float) -> None:
        pass


def test_a_perfect_learner_has_only_the_noise_as_error() -> None:
    rng = np.random.default_rng(0)
    live = streams.stream(*DRIFTS["none"], streams.sticky(rng, 300), 250, rng, noise=0.03)
    found = online.run(Perfect(), live, online.questions(live, 0), 250, 0)
    assert found.whole == pytest.approx(0.03, rel=0.3)
    assert found.grid[0] == found.grid[2] == 0
    assert found.near[0] == 0
    assert np.isnan(found.coverage[0])


def test_the_papers_grid_and_r2() -> None:
    cells = grid()
    assert len(cells) == 16 * 10 * 11 * 10 == len(np.unique(cells, axis=0))
    assert r2(np.array([1.0, 2, 3]), np.array([1.0, 2, 3])) == 1
    assert r2(np.array([1.0, 2, 3]), np.array([2.0, 2, 2])) == 0


def test_warm_start_is_made_of_its_samples() -> None:
    x = streams.everywhere(np.random.default_rng(0), 200)
    start = WarmStart.of(x, Database().log_performance(x), 0)
    assert start.trees.features == streams.FEATURES


def test_the_report_says_what_was_kept_and_what_was_missed() -> None:
    def along(near: float, whole: float) -> online.Along:
        four = (0.1, 0.1, 0.1, 0.1)
        return online.Along(
            four, whole, (0.1, 0.1, near, 0.1), (0.2, 0.2, 0.2), 0.0, (0.9, 0.9, 0.9, 0.9), 0.95
        )

    study = Study("abrupt", {OURS: [along(0.2, 0.1)], REFIT: [along(0.3, 0.2)]}, [0.09])
    report = Report(
        1,
        {"grid": [Warm(0.99, 0.99, 0.05)]},
        [],
        [study],
        [Cost("update of one sample", 200, 300, 9, 190, 210, 150)],
        500,
    )
    text = report.markdown()
    assert "near error, 150-250 after drift | abrupt | 0.200 (0.200..0.200) | <= 0.15 | **missed**" in text
    assert f"best other: {REFIT} | abrupt | 0.200 (0.200..0.200) | <= 0.300 | kept" in text
    assert "in hindsight | abrupt | 1.111 (1.111..1.111) | <= 1.25 | kept" in text
    assert "0.9900 (0.9900..0.9900) | >= 0.985 | kept" in text
    assert "| update of one sample | 150 | 200 | 300 | 190 | 210 | 300 | kept |" in text
    json.dumps(report.as_dict())


def test_hindsight_knows_of_the_change_and_is_left_with_little_more_than_noise() -> None:
    rng = np.random.default_rng(0)
    before, after = DRIFTS["cache and CPI"]
    x = streams.everywhere(rng, 300)
    start = WarmStart.of(x, before.log_performance(x), 0)
    live = streams.stream(before, after, streams.sticky(rng, 600, 0.1), 400, rng, noise=0.03)
    assert 0.025 < online.hindsight(start, live, 400, 0, folds=2) < 0.09
