"""The history of jobs: features, experts, drift, and the file that keeps them."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.forecast.histogram import quantile
from perphd.forecast.history.experts import (
    LAST,
    RECENT,
    ROLLING_GAIN,
    SCORED,
    Estimator,
    FeatureRecord,
    best_estimator,
    completed,
    drifted,
    estimate,
    nmae,
)
from perphd.forecast.history.features import GREATEST_LENGTH, JobDescription, argv_shape, feature_values
from perphd.forecast.history.store import HistoryRefused, JobHistory, Quantity

RUN = Quantity.RUN_TIME_S


def _record(values: list[float]) -> FeatureRecord:
    record = FeatureRecord()
    for value in values:
        record = completed(record, value)
    return record


# --- features ---------------------------------------------------------------------------------------------------


def test_each_known_fact_and_each_pair_is_a_feature_value() -> None:
    facts = JobDescription(user="ada", name="nightly", requested_bytes=2**31, hour=3)
    assert feature_values(facts) == (
        "user=ada", "name=nightly", "memory=2^31", "hour=3",
        "user=ada & name=nightly", "user=ada & memory=2^31", "user=ada & hour=3",
        "name=nightly & memory=2^31", "name=nightly & hour=3", "memory=2^31 & hour=3",
    )  # fmt: skip
    assert feature_values(JobDescription()) == ()
    assert all(
        len(value) <= GREATEST_LENGTH for value in feature_values(JobDescription(argv=("x" * 10_000,)))
    )


def test_the_shape_of_a_command_line_leaves_out_what_differs_between_runs() -> None:
    first = [
        "/usr/bin/python3",
        "/srv/a/train.py",
        "--seed=17",
        "--out=/tmp/run-2024",
        "0x1f",
        "deadbeefcafe00",
    ]
    second = ["/opt/bin/python3", "/srv/b/train.py", "--seed=4", "--out=/var/run-7", "0xff", "00deadbeefcafe"]
    assert argv_shape(first) == argv_shape(second) == "python# train.py --seed=# --out=run-# # #"
    assert argv_shape(["sort", "-k2"]) != argv_shape(["sort", "-n2"])


# --- experts ----------------------------------------------------------------------------------------------------


def test_the_four_estimators() -> None:
    record = _record([10, 20, 60, 20, 30, 40])
    rolling = 10.0
    for value in (20, 60, 20, 30, 40):
        rolling = ROLLING_GAIN * value + (1 - ROLLING_GAIN) * rolling
    expected = {Estimator.MEAN: 30, Estimator.MEDIAN: 25, Estimator.ROLLING: rolling, Estimator.LAST: 34}
    assert {each: estimate(record, each) for each in Estimator} == pytest.approx(expected)
    assert math.isnan(estimate(FeatureRecord(), Estimator.MEAN))


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=2 * RECENT - 1))
def test_errors_kept_while_streaming_are_those_of_the_last_jobs(values: list[float]) -> None:
    record = _record(values)
    scored = range(max(1, len(values) - SCORED), len(values))
    mean_errors = [abs(sum(values[:i]) / i - values[i]) for i in scored]
    last_errors = [abs(sum(values[max(0, i - LAST) : i]) / min(i, LAST) - values[i]) for i in scored]
    actual = sum(values[i] for i in scored)
    pseudo = actual / len(scored)
    for estimator, errors in ((Estimator.MEAN, mean_errors), (Estimator.LAST, last_errors)):
        batch = (sum(errors) + pseudo) / (actual + pseudo)
        assert nmae(record, estimator) == pytest.approx(batch, rel=1e-6)


def test_one_lucky_hit_does_not_win_against_a_long_good_record() -> None:
    assert best_estimator(_record([5.0, 5.0]))[1] > best_estimator(_record([5.0, 5.2] * 15))[1]
    assert best_estimator(FeatureRecord()) == (Estimator.MEDIAN, math.inf)


def test_a_step_is_followed_within_ten_jobs_and_splits_the_history() -> None:
    random = np.random.default_rng(1)
    before, after = random.lognormal(4, 0.1, 100), random.lognormal(4, 0.1, 40) * 2
    record = _record(before.tolist())
    assert record.drifts == 0
    for value in after[:10]:
        record = completed(record, float(value))
    estimator, _ = best_estimator(record)
    truth = 2 * math.exp(4)
    assert estimate(record, estimator) == pytest.approx(truth, rel=0.15)
    assert estimate(record, Estimator.MEAN) < 0.7 * truth  # the mean of all jobs is still at the old level
    for value in after[10:]:
        record = completed(record, float(value))
    assert record.drifts == 1
    assert quantile(record.distribution, 0.5) == pytest.approx(truth, rel=0.1)


def test_a_stationary_history_does_not_split() -> None:
    random = np.random.default_rng(2)
    splits = [_record(random.lognormal(0, 1, 400).tolist()).drifts for _ in range(10)]
    assert sum(splits) <= 2  # 10 histories, each tested 360 times on windows that overlap
    assert not drifted((1.0,) * 2 * RECENT)


def test_twenty_five_samples_bring_the_quantiles_within_ten_percent() -> None:
    """In nine groups of ten, for the median, the third quartile and p90 of lognormal groups of unlike spread."""
    random = np.random.default_rng(3)
    within = {0.5: 0, 0.75: 0, 0.9: 0}
    groups = 200
    for _ in range(groups):
        scale, spread = random.lognormal(4, 1), random.uniform(0.05, 0.3)
        record = _record((scale * random.lognormal(0, spread, 25)).tolist())
        for share in within:
            exact = scale * math.exp(spread * NormalDist().inv_cdf(share))
            within[share] += abs(quantile(record.distribution, share) / exact - 1) < 0.1
    assert min(within.values()) >= 0.9 * groups


def test_what_a_record_refuses() -> None:
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="must be a non-negative number"):
            completed(FeatureRecord(), value)


# --- the file ---------------------------------------------------------------------------------------------------


def _jobs(random: np.random.Generator, count: int, by: str) -> list[tuple[JobDescription, float]]:
    """Jobs of 4 users and 4 names in all combinations, whose run time follows from ``by`` alone."""
    found = []
    for _ in range(count):
        user, name = int(random.integers(4)), int(random.integers(4))
        level = 10.0 * 4 ** (user if by == "user" else name)
        found.append((JobDescription(user=f"u{user}", name=f"n{name}"), level * random.lognormal(0, 0.1)))
    return found


def test_the_feature_that_predicts_is_chosen_and_gives_way_within_twenty_jobs() -> None:
    random = np.random.default_rng(4)
    with JobHistory(":memory:") as history:
        for facts, took in _jobs(random, 300, "name"):
            history.complete(facts, {RUN: took}, 0.0)
        found = history.predict(JobDescription(user="u1", name="n2"), RUN)
        assert found is not None
        assert "name=n2" in found.feature
        assert found.estimate == pytest.approx(160, rel=0.2)
        assert quantile(found.distribution, 0.5) == pytest.approx(160, rel=0.2)
        fixed = JobDescription(user="u3", name="n0")  # the name said 10 s, the user now says 640 s
        for _ in range(20):
            history.complete(fixed, {RUN: 640 * random.lognormal(0, 0.1)}, 1.0)
            history.complete(JobDescription(user="u0", name="n0"), {RUN: 10 * random.lognormal(0, 0.1)}, 1.0)
        switched = history.predict(fixed, RUN)
        assert switched is not None
        assert "user=u3" in switched.feature
        assert switched.estimate == pytest.approx(640, rel=0.2)


def test_another_feature_takes_over_within_twenty_jobs_with_the_same_facts() -> None:
    """Half of them suffice, for every one of 16 groups, 12 of which change their run time by a factor of 4 to 64."""
    kinds = [(user, name) for user in range(4) for name in range(4)]
    for seed in range(3):
        random = np.random.default_rng(seed)
        with JobHistory(":memory:") as history:
            for facts, took in _jobs(random, 300, "name"):
                history.complete(facts, {RUN: took}, 0.0)
            for _ in range(10):
                for user, name in random.permutation(kinds).tolist():
                    facts = JobDescription(user=f"u{user}", name=f"n{name}")
                    history.complete(facts, {RUN: 10.0 * 4**user * random.lognormal(0, 0.1)}, 1.0)
            for user, name in kinds:
                found = history.predict(JobDescription(user=f"u{user}", name=f"n{name}"), RUN)
                assert found is not None
                assert found.estimate == pytest.approx(10.0 * 4**user, rel=0.25)


@pytest.mark.parametrize("seed", range(4))
def test_another_feature_takes_over_within_twenty_jobs_with_that_feature(seed: int) -> None:
    """Jobs of 16 kinds in random order: after 20 of one user, every prediction for one of this user's jobs is right."""
    random = np.random.default_rng(seed)
    with JobHistory(":memory:") as history:
        for facts, took in _jobs(random, 300, "name"):
            history.complete(facts, {RUN: took}, 0.0)
        jobs = dict.fromkeys(range(4), 0)
        for now_s, (facts, took) in enumerate(_jobs(random, 200, "user")):
            user = int(facts.user[1:])
            history.complete(facts, {RUN: took}, 1.0 + now_s)
            jobs[user] += 1
            if jobs[user] < 20:
                continue
            for name in range(4):
                found = history.predict(JobDescription(user=f"u{user}", name=f"n{name}"), RUN)
                assert found is not None
                # Levels are a factor of 4 apart.
                assert 0.5 < found.estimate / (10.0 * 4**user) < 2, (user, name, jobs, found.feature)
            if min(jobs.values()) >= 24:
                break


def test_rows_that_were_not_used_for_long_are_forgotten_first() -> None:
    with JobHistory(":memory:") as history:
        for at_s, user in enumerate(("ada", "eve", "bob", "ada")):
            history.complete(JobDescription(user=user), {RUN: 7.0, Quantity.MEMORY_BYTES: 1e9}, float(at_s))
        assert history.prune(6) == 0
        assert history.prune(4) == 2
        assert history.predict(JobDescription(user="eve"), RUN) is None
        assert history.predict(JobDescription(user="ada"), RUN) is not None
        assert history.prune(0) == 4


def test_a_new_job_falls_back_to_what_it_shares_with_others() -> None:
    with JobHistory(":memory:") as history:
        for _ in range(5):
            history.complete(
                JobDescription(user="ada", name="old"), {RUN: 7.0, Quantity.MEMORY_BYTES: 1e9}, 0.0
            )
        found = history.predict(JobDescription(user="ada", name="new"), RUN)
        assert found is not None
        assert found.feature == "user=ada"
        assert found.estimate == pytest.approx(7.0)
        assert history.predict(JobDescription(user="eve"), RUN) is None
        assert history.predict(JobDescription(), RUN) is None
        assert history.predict(JobDescription(user="ada"), Quantity.INSTRUCTIONS) is None


def test_the_file_outlives_the_process_and_can_be_cleared(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with JobHistory(path) as history:
        for _ in range(4):
            history.complete(JobDescription(user="ada", name="x"), {RUN: 7.0}, 0.0)
    with JobHistory(path) as history:
        assert len(history) == 3
        assert history.clear("user=ada") == 2
        assert history.predict(JobDescription(user="ada"), RUN) is None
        assert history.predict(JobDescription(name="x"), RUN) is not None
        assert history.clear() == 1


def _filled(seed: int, count: int = 40) -> JobHistory:
    history = JobHistory(":memory:")
    for facts, took in _jobs(np.random.default_rng(seed), count, "name"):
        history.complete(facts, {RUN: took}, float(seed))
    return history


def test_an_export_is_imported_whole_once_and_adds_to_what_is_known() -> None:
    with (
        _filled(1) as one,
        _filled(2) as two,
        JobHistory(":memory:") as both,
        JobHistory(":memory:") as swapped,
    ):
        exports = [list(one.exported()), list(two.exported())]
        assert [both.merge(lines, "test") for lines in exports] == [len(one), len(two)]
        assert [swapped.merge(lines, "test") for lines in reversed(exports)] == [len(two), len(one)]
        assert both.merge(exports[0], "test") == 0  # the same export again changes nothing
        assert list(both.exported()) == list(both.exported())
        for facts in (JobDescription(name="n2"), JobDescription(user="u1", name="n0")):
            found, other = both.predict(facts, RUN), swapped.predict(facts, RUN)
            assert found is not None
            assert other is not None
            assert found.distribution.count == other.distribution.count
            assert found.estimate == pytest.approx(other.estimate)
        copy = JobHistory(":memory:")
        copy.merge(exports[0], "test")
        assert list(copy.exported())[1:] == exports[0][1:]


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "other"])
def test_a_damaged_export_is_refused_and_changes_nothing(damage: str) -> None:
    with _filled(1) as source, JobHistory(":memory:") as history:
        lines = list(source.exported())
        damaged = {
            "empty": [],
            "cut": lines[:-1],
            "changed": [lines[0], lines[1].replace("0", "1"), *lines[2:]],
            "other": [json.dumps({"format": "something"})],
        }[damage]
        with pytest.raises(HistoryRefused, match=r"export\.jsonl"):
            history.merge(damaged, "export.jsonl")
        assert len(history) == 0


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    path.write_text("not a database, and long enough to have a header of one" * 5)
    with pytest.raises(HistoryRefused, match=r"jobs\.sqlite"):
        JobHistory(path)


def test_a_record_has_a_constant_size(tmp_path: Path) -> None:
    path, sizes = tmp_path / "jobs.sqlite", []
    random = np.random.default_rng(5)
    with JobHistory(path) as history:
        for count in (400, 800):
            for value in random.lognormal(3, 1, count):
                history.complete(JobDescription(user="ada"), {RUN: float(value)}, 0.0)
            with sqlite3.connect(path) as database:
                row = database.execute("SELECT length(state), length(distribution) FROM records").fetchone()
            sizes.append(row)
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] < 1.1 * sizes[0][1] < 4000
