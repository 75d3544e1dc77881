"""The forecast bench: its generators, its figures, and the published re-test on a fixed seed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from perphd.forecast.ladder import MODELS
from perphd.forecast.series import SeriesForecast
from tools.bench.forecasts import families, hosts, models

DATA = os.environ.get("PERPHD_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="PERPHD_DATA names no folder with the public series")


@pytest.mark.parametrize("family", families.GENERATORS)
def test_a_generated_family_is_reproducible_and_within_the_reservation(family: str) -> None:
    series = families.generated(family, 2, 80, seed=5)
    again = families.generated(family, 2, 80, seed=5)
    assert all(np.array_equal(one, other) for one, other in zip(series, again, strict=True))
    assert not np.array_equal(series[0], series[1])
    assert all(values.min() >= 0 and values.max() <= 1 for values in series)


def test_figures_of_windows_worked_out_by_hand() -> None:
    figures = models.Figures()
    figures.add(SeriesForecast(0.4, 0.1), 0.5, 0.55)
    figures.add(None, None, 0.2)
    assert figures.violations == {0: 1, 1: 0, 2: 0, 3: 0}  # the targets are .45, .55, .65, .75
    assert figures.slack[3] == pytest.approx(0.2 + 0.8)
    assert figures.loss == pytest.approx(0.99 * 0.05 + 0.01 * 0.8)
    assert (figures.windows, figures.covered, figures.absent) == (2, 1, 1)


def test_the_published_re_test_on_a_fixed_seed() -> None:
    compared = (*MODELS[1:2], MODELS[3], *models.PUBLISHED_MODELS[2:])
    author = models.run(families.generated("author", 4, 300, seed=1), compared)
    for name, most in (("ses", 0.004), ("gp", 0.004), ("gp-10-10", 0.01)):
        assert author[name].violations[3] / author[name].windows <= most, name
    assert (
        author["ses"].violations[0] > 3 * author["ses"].violations[3]
    )  # the spread is what prevents violations
    sawtooth = models.run(families.generated("saw-tooth", 3, 300, seed=1), compared)
    assert sawtooth["gp"].slack[3] <= 0.5 * sawtooth["ses"].slack[3]
    assert sawtooth["gp"].slack[3] < sawtooth["gp-10-10"].slack[3]


def test_peak_predictors_on_a_synthetic_host_keep_their_budget() -> None:
    errors, choice = hosts.errors_of(hosts.synthetic(np.random.default_rng(2), days=2), every=24)
    assert np.all(errors["ero-matched"].horizon <= errors["ero"].horizon + 1e-9)
    assert np.median(errors["borg"].horizon) > np.median(errors["ero-matched"].horizon)
    assert np.mean(choice < -0.1) <= 0.01


@needs_data
def test_the_public_series_are_there_and_over_their_reservation() -> None:
    found = families.public(Path(str(DATA)), 1000)
    assert {family: len(series) for family, series in found.items()} == {
        "nab-aws": 17, "nab-known-cause": 7, "nab-traffic": 7, "nab-tweets": 10, "fleets": 9, "alibaba-machines": 45,
    }  # fmt: skip
    every = [values for series in found.values() for values in series.values()]
    assert all(np.all(np.isfinite(values)) and np.max(values) <= 0.8 + 1e-9 for values in every)
