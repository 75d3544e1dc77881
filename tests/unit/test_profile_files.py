"""Profiles as values: the lattice and its sample, training made resident exactly, files, merging, drawing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.commands.cli import cli
from perphd.domain.errors import PerphError
from perphd.predictor.features import COLUMNS
from perphd.predictor.ogbrt import Forest
from perphd.predictor.profile import (
    Axis,
    FileError,
    Lattice,
    Profile,
    ProfileOrigin,
    from_text,
    lightgbm_trees,
    to_text,
    training,
)
from perphd.predictor.profile.classes import CLASSES, beginning, class_prior
from perphd.predictor.profile.lattice import is_within
from perphd.predictor.profile.merge import evaluate, merge
from perphd.predictor.profile.warm import corrections, ratio
from perphd.predictor.profile.worker import train_apart

NAMES, SIGNS = ("cpu_share", "llc_share"), (0, 1)


def surface(x: np.ndarray) -> np.ndarray:
    """A little application: Amdahl in CPU, an exponential in cache."""
    cpu, llc = x[:, 0], x[:, 1]
    return np.asarray(np.log(cpu / (0.2 + 0.8 * cpu)) - 0.4 * np.exp(-4 * llc))


def a_profile(seed: int = 0, host: str = "a", rows: int = 120, shift: float = 0.0) -> Profile:
    rng = np.random.default_rng(seed)
    x = rng.uniform((0.1, 0.1), (1.0, 1.0), (rows, 2))
    y = surface(x) * (1 + shift) + 0.02 * rng.standard_normal(rows)
    trained = training.train(x, y, NAMES, SIGNS, engine="numpy")
    origin = ProfileOrigin("db", (host,), "1", 0.0, "sli", "numpy", trained.rounds, seed, 1000, rows)
    return Profile(origin, trained.metrics, NAMES, (8.0, 11.0), (0.1, 0.1), (1.0, 1.0), trained.trees, x, y)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Shorter training: these tests are about what becomes of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "MOST_ROUNDS", 40)
        patch.setattr(training, "_NUMPY_ROUNDS", (20, 40))
        patch.setattr(training, "FOLDS", 4)
        yield


@pytest.fixture(scope="module")
def profile(_small: None) -> Profile:
    return a_profile()


# -- the sample -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(1, 60), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_sample_is_of_different_cells_with_the_most_generous_one_among_them(
    shape: list[int], count: int, seed: int
) -> None:
    lattice = Lattice(tuple(Axis(f"k{i}", "", tuple(map(float, range(n)))) for i, n in enumerate(shape)))
    points = lattice.sample(count, seed)
    assert len(points) == len(set(points)) == min(count, lattice.size)
    assert lattice.most in points
    assert points == lattice.sample(count, seed)


def test_a_sample_covers_every_step_evenly_and_goes_from_generous_to_tight() -> None:
    lattice = Lattice(
        (Axis("cpus", "cores", tuple(map(float, range(8)))), Axis("ways", "", tuple(map(float, range(11)))))
    )
    points = lattice.sample(44)
    counts = np.bincount([p[0] for p in points], minlength=8)
    assert counts.min() >= 4
    assert counts.max() <= 7
    assert points[0] == lattice.most
    tightest = [min(a / m for a, m in zip(p, lattice.most, strict=True)) for p in points]
    assert np.mean(tightest[:11]) > np.mean(tightest[-11:]) + 0.4


def test_what_is_slow_goes_down_once() -> None:
    lattice = Lattice((Axis("cpus", "", (1.0, 2.0, 3.0)), Axis("memory", "", (1.0, 2.0, 3.0), slow=True)))
    memory = [point[1] for point in lattice.sample(9)]
    assert memory == sorted(memory, reverse=True)
    assert lattice.anchor((0, 1)) == (2, 1)


def test_what_grants_no_more_is_within() -> None:
    assert is_within((1, 2), (1, 3))
    assert not is_within((2, 2), (1, 3))


# -- training -------------------------------------------------------------------------------------------------


def test_lightgbms_trees_are_made_resident_exactly_also_for_what_is_missing() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (300, 2))
    x[rng.random(300) < 0.1, 0] = np.nan
    y = np.nan_to_num(x[:, 0]) * 2 + np.exp(x[:, 1])
    asked = np.concatenate([x, rng.uniform(-2, 2, (200, 2)), [[np.nan, 0.1], [0.1, np.nan]]])
    for rows in (x, np.nan_to_num(x)):  # with a missing type of its own, and without
        booster = lightgbm.train(training._parameters((0, 1), 3, len(rows)), lightgbm.Dataset(rows, y), 40)
        trees = lightgbm_trees.from_lightgbm(booster, ("a", "b"), (0, 1))
        found = Forest.compile(trees).predict(asked)
        assert np.abs(found - booster.predict(asked)).max() < 1e-9
        up = asked[~np.isnan(asked).any(axis=1)]
        more = Forest.compile(trees).predict(up + np.array([0.0, 0.3]))
        assert (more - Forest.compile(trees).predict(up) >= -1e-12).all()


def test_the_numpy_engine_cross_validates_and_stays_monotone(profile: Profile) -> None:
    assert profile.metrics.r2 > 0.9
    assert profile.is_signed_off
    forest = Forest.compile(profile.trees)
    up = profile.x + np.array([0.0, 0.2])
    assert (forest.predict(up) - forest.predict(profile.x) >= -1e-12).all()


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 20 rows"):
        training.train(np.zeros((5, 2)), np.zeros(5), NAMES, SIGNS)


def test_a_worker_that_fails_says_why() -> None:
    with pytest.raises(PerphError, match=r"training failed: ValueError: .*at least 20"):
        train_apart(np.zeros((5, 2)), np.zeros(5), NAMES, SIGNS, engine="numpy")


# -- files ----------------------------------------------------------------------------------------------------


def test_a_file_is_the_same_profile_again(profile: Profile) -> None:
    again = from_text(to_text(profile))
    assert again.origin == profile.origin
    assert again.metrics == profile.metrics
    assert np.array_equal(again.x, profile.x)
    assert np.array_equal(again.y, profile.y)
    asked = np.random.default_rng(1).uniform(0, 1, (50, 2))
    assert np.array_equal(
        Forest.compile(again.trees).predict(asked), Forest.compile(profile.trees).predict(asked)
    )
    assert to_text(again) == to_text(profile)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t[: len(t) // 2], "not JSON"),
        (lambda t: t.replace('"version": 1', '"version": 7'), "its version is 7"),
        (lambda t: t.replace("perphd-profile", "perphd-model"), "not a perphd profile"),
        (lambda t: t.replace('"seed":0', '"seed":1'), "checksum is wrong"),
        (lambda t: "[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_profile_is_refused_with_a_sentence(profile: Profile, edit, says: str) -> None:
    with pytest.raises(FileError, match=says):
        from_text(edit(to_text(profile)))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("y", ["a"], r"y\[0\] is 'a', not a number from"),
        ("scale", [0.0, 1.0], "positive"),
        ("features", ["x"], "one value for each of the 1 features|trees.features"),
        ("trees", {}, "trees.features is missing"),
        ("low", [1.0], "must match features in length"),
    ],
)
def test_values_that_fit_nothing_are_refused_although_the_checksum_is_right(
    profile: Profile, key: str, value: object, says: str
) -> None:
    from perphd.predictor import sealed
    from perphd.predictor.profile import file

    body = json.loads(to_text(profile))["body"] | {key: value}
    text = json.dumps(
        {"format": file.FORMAT, "version": 1, "sha256": sealed._digest(sealed._canonical(body)), "body": body}
    )
    with pytest.raises(FileError, match=says):
        from_text(text)


def test_a_number_that_is_not_finite_is_not_written(profile: Profile) -> None:
    with pytest.raises(FileError, match="not finite"):
        to_text(replace(profile, y=np.full(len(profile.y), np.nan)))


# -- merging --------------------------------------------------------------------------------------------------


def test_hosts_that_agree_are_merged_and_those_that_do_not_are_refused() -> None:
    def train(*args, **kwargs):
        return training.train(*args, **(kwargs | {"engine": "numpy"}))

    alike = merge([a_profile(1, "a"), a_profile(2, "b")], "db", training=train)
    assert alike.accepted
    assert alike.profile.origin.hosts == ("a", "b")
    assert len(alike.profile.y) == 240
    other = merge([a_profile(1, "a"), a_profile(2, "b", shift=-0.9)], "db", training=train)
    assert not other.accepted
    with pytest.raises(PerphError, match="given twice"):
        merge([a_profile(1), a_profile(1)], "db")
    mips = a_profile(2)
    with pytest.raises(PerphError, match="different performance signals"):
        merge([a_profile(1), replace(mips, origin=replace(mips.origin, work_source="mips"))], "db")


def test_a_profile_is_judged_on_the_samples_of_another(profile: Profile) -> None:
    same, other = a_profile(3), a_profile(3, shift=-0.9)
    assert evaluate(profile, same.x, same.y, same.features).r2 > 0.9
    assert evaluate(profile, other.x, other.y, other.features).r2 < 0.5


# -- beginning ------------------------------------------------------------------------------------------------


def test_a_profile_says_nothing_at_the_reference_and_less_below_it(profile: Profile) -> None:
    found = ratio(profile, np.array([1.0, 0.5, 0.25]), np.array([1.0, 1.0, 0.2]))
    assert found[0] == pytest.approx(0.0, abs=1e-9)
    assert found[0] > found[1] > found[2]


def test_corrections_are_rows_of_the_models_features(profile: Profile) -> None:
    x, prior, y = corrections(profile, 8, 11)
    assert x.shape == (len(y), len(COLUMNS))
    assert prior.shape == y.shape
    assert np.all(prior <= 0.0)
    assert len(y) > 100
    assert np.isfinite(y).all()
    assert np.abs(y).max() <= 1.0


@pytest.mark.parametrize("name", CLASSES)
def test_the_priors_that_ship_can_be_begun_from(name: str) -> None:
    prior = class_prior(name)
    assert prior.origin.app == name
    assert prior.is_signed_off, prior.metrics
    assert "cpu_share" in prior.features


def test_a_profile_of_its_own_comes_before_the_class_and_a_damaged_one_is_told(
    tmp_path: Path, profile: Profile
) -> None:
    assert beginning(tmp_path, "db", "none").profile is None
    assert beginning(tmp_path, "db", "database").source == "the class database"
    path = tmp_path / "profiles" / "db.json"
    path.parent.mkdir()
    path.write_text(to_text(profile))
    assert beginning(tmp_path, "db", "database").source == "its profile of a"
    path.write_text("{")
    found = beginning(tmp_path, "db", "database")
    assert found.source == "the class database"
    assert "not JSON" in found.problems[0]
    bad = replace(profile, metrics=replace(profile.metrics, r2=0.5))
    path.write_text(to_text(bad))
    assert "R2 on held-out samples is 0.500" in beginning(tmp_path, "db", "none").problems[0]


# -- perphctl model -------------------------------------------------------------------------------------------


def test_perphctl_evaluates_draws_and_merges_files(tmp_path: Path, profile: Profile) -> None:
    pytest.importorskip("matplotlib")
    one, two, png = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "a.png"
    one.write_text(to_text(profile))
    two.write_text(to_text(a_profile(4, "b")))
    run = CliRunner().invoke
    done = run(cli, ["model", "evaluate", str(one), "--on", str(two), "--json"])
    data = json.loads(done.output)
    assert data["signed_off"]
    assert [m["on"] for m in data["metrics"]] == ["held out, 10-fold", f"on {two}"]
    done = run(cli, ["model", "show", str(one), "--png", str(png)])
    assert done.exit_code == 0, done.output
    assert "work by cpu_share" in done.output
    assert "●" in done.output
    assert png.read_bytes().startswith(b"\x89PNG")
    refused = run(cli, ["model", "evaluate", str(png)])
    assert refused.exit_code == 1
    assert "not JSON" in refused.output
    same = run(cli, ["model", "merge", str(tmp_path / "m.json"), str(one), str(one)])
    assert same.exit_code == 1
    assert "given twice" in same.output
    assert not (tmp_path / "m.json").exists()
