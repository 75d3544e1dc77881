"""Scores of forecasters that hosts tell each other: the prior for a series' first hour, and its bounds."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perphd.agent.contribution_folder import ContributionFolder
from perphd.agent.forecast_scores import (
    ORIGINS,
    SCORES,
    Reader,
    read_origins,
    read_scores,
    reader_from,
    reader_text,
    write_scores,
)
from perphd.agent.forecasts import ForecastProcess, Message
from perphd.agent.records import Records
from perphd.commands.render_model import origin_parts
from perphd.control import forecast_files as files
from perphd.control.forecast_exchange import Exchange
from perphd.control.forecast_worker import ForecastWorker, Listed
from perphd.control.table import plain
from perphd.domain.belief import ModelOrigin
from perphd.domain.errors import PerphError
from perphd.domain.forecast import PUBLISHED_FILE, Forecasts
from perphd.domain.reading import Unavailable
from perphd.domain.wire import decode, encode
from perphd.federated.contribution import MOST_EVIDENCE, Contribution, Statistic
from perphd.federated.ledger import of_documents
from perphd.forecast.fleet_scores import (
    LEAST_SCORES,
    LOSS,
    MISSES,
    MOST_SERIES,
    NAMES,
    contributed,
    prior,
    topic_of,
)
from perphd.forecast.following import (
    EARLY_WINDOWS,
    LEAST_WINDOWS,
    Followed,
    continued,
    next_window,
    started,
)
from perphd.forecast.ladder import LOSSES, PRIOR_SCORES, forecast
from tests.unit.sizing_store import START_S
from tests.unit.test_federated import ASKING, NOW, XEON
from tests.unit.test_forecast_worker import same, store_of
from tools.bench.forecasts.families import generated

KEY = ("db", "cpu_usage_cores")
HERE = {"db": "db", "other": "other"}
LONG = {family: generated(family, 7, 400, 3) for family in ("bursts", "sine")}


def followed(values: np.ndarray, scored: int = LOSSES) -> Followed:
    series = started(range(len(values)), values.tolist(), scored)
    assert series is not None
    return series


def host(name: str, series: Followed, made: float = NOW) -> Contribution:
    return Contribution(name, 1, made, XEON, contributed({KEY: series}))


def said(name: str, losses: dict[str, float], misses: float = 0.01, evidence: float = 300.0) -> Contribution:
    """A host that claims these losses, and nothing about other models."""
    known = tuple(evidence if each in losses else 0.0 for each in NAMES)
    return Contribution(
        name, 1, NOW, XEON,
        (
            Statistic(topic_of(KEY, LOSS), tuple(float(losses.get(each, 0.0)) for each in NAMES), known),
            Statistic(topic_of(KEY, MISSES), (misses,) * len(NAMES), known),
        ),
    )  # fmt: skip


HONEST = {"last": 1.0, "ses": 0.5, "arima": 0.8}


@pytest.fixture(scope="module")
def fleet() -> list[Contribution]:
    """Six hosts that have followed a sine for hours."""
    return [host(f"h{i}", followed(values)) for i, values in enumerate(LONG["sine"][:6])]


# --- what a host says -------------------------------------------------------------------------------------------


def test_scores_are_losses_over_the_scale_with_their_number() -> None:
    values = LONG["sine"][0]
    series = followed(values)
    loss, misses = contributed({KEY: series})
    track = series.ladder.tracks["ses"]
    at, scale = NAMES.index("ses"), float(np.mean(np.abs(np.diff(series.ladder.values))))
    assert loss.topic == topic_of(KEY, LOSS)
    assert loss.values[at] == pytest.approx(np.log(track.loss / scale), rel=1e-3)
    assert loss.evidence[at] == misses.evidence[at] == len(track.losses) == LOSSES
    assert misses.values[at] == pytest.approx(track.missed.bit_count() / len(track.losses), abs=1e-3)


def test_scores_do_not_depend_on_the_unit() -> None:
    values = LONG["sine"][0]
    one, other = (contributed({KEY: followed(values * unit)}) for unit in (1.0, 2.0**30))
    assert np.allclose(one[0].values, other[0].values, atol=0.02)


def test_a_young_series_says_nothing() -> None:
    assert contributed({KEY: followed(LONG["sine"][0][: LEAST_SCORES - 1])}) == ()
    assert contributed({}) == ()


def test_a_series_that_never_changes_says_something_bounded() -> None:
    loss, misses = contributed({KEY: followed(np.ones(300))})
    assert np.all(np.isfinite(loss.values))
    assert max(misses.values) <= 1.0


def test_a_host_speaks_about_its_longest_series() -> None:
    series = followed(LONG["sine"][0])
    many = {(f"w{i}", "cpu_usage_cores"): series for i in range(MOST_SERIES + 5)}
    older = replace(series, ladder=replace(series.ladder, seen=10**6))
    found = contributed(many | {("z", "cpu_usage_cores"): older})
    assert len(found) == 2 * MOST_SERIES
    assert found[0].topic.application == "z"


# --- the prior --------------------------------------------------------------------------------------------------


def test_order_and_repetition_do_not_matter(fleet: list[Contribution]) -> None:
    found = prior(of_documents(fleet), KEY, ASKING)
    shuffled = [*fleet, *fleet]
    random.Random(1).shuffle(shuffled)
    assert prior(of_documents(shuffled), KEY, ASKING) == found
    assert found.ranked[0] in NAMES
    assert len(found.hosts) == 6


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_hosts_say_nothing(fleet: list[Contribution], count: int) -> None:
    assert prior(of_documents(fleet[:count]), KEY, ASKING).losses == {}


def test_own_expired_and_other_series_do_not_count(fleet: list[Contribution]) -> None:
    assert prior(of_documents(fleet), ("db", "load_per_s"), ASKING).losses == {}
    assert prior(of_documents(fleet), KEY, replace(ASKING, now_unix_s=NOW + 31 * 86400)).losses == {}
    assert "h0" not in prior(of_documents(fleet), KEY, replace(ASKING, name="h0")).hosts


def test_models_that_cover_too_little_elsewhere_are_left_out() -> None:
    losses = {name: np.log(loss) for name, loss in HONEST.items()}
    good = [said(f"h{i}", losses) for i in range(5)]
    assert prior(of_documents(good), KEY, ASKING).ranked[0] == "ses"
    bad = [said(f"h{i}", losses, misses=0.2) for i in range(5)]
    assert prior(of_documents(bad), KEY, ASKING).losses == {}


@pytest.mark.parametrize("lie", [-100.0, -3.0, 3.0, 100.0])
@pytest.mark.parametrize("model", ["last", "ses", "arima"])
def test_one_liar_in_ten_changes_no_choice(lie: float, model: str) -> None:
    noise = np.random.default_rng(5)
    honest = [
        said(f"h{i}", {name: np.log(loss) + noise.normal(0, 0.1) for name, loss in HONEST.items()})
        for i in range(9)
    ]
    before = prior(of_documents(honest), KEY, ASKING)
    liar = said(
        "liar", {name: np.log(loss) for name, loss in HONEST.items()} | {model: lie}, 0.0, MOST_EVIDENCE
    )
    found = prior(of_documents([*honest, liar]), KEY, ASKING)
    assert found.ranked[0] == before.ranked[0] == "ses"
    for name in HONEST:
        of_honest = [np.exp(each.statistics[0].values[NAMES.index(name)]) for each in honest]
        assert min(of_honest) <= found.losses[name] <= max(of_honest)


def test_a_withdrawn_host_leaves_no_trace(fleet: list[Contribution]) -> None:
    ledger = of_documents(fleet)
    hidden = replace(ledger, withdrawn={"h5": 2**53})
    assert prior(hidden, KEY, ASKING) == prior(of_documents(fleet[:5]), KEY, ASKING)


# --- its use ----------------------------------------------------------------------------------------------------


def test_a_prior_counts_in_the_first_hour_and_never_after_it() -> None:
    values = LONG["sine"][6]
    told = {"last": 0.1, "ses": 9.0}
    alone, with_prior = (started(range(12), values[:12].tolist(), 2, each) for each in (None, told))
    assert alone is not None
    assert with_prior is not None
    for number in range(12, 200):
        alone = continued(alone, [number], [float(values[number])])
        with_prior = continued(with_prior, [number], [float(values[number])], prior=told)
        # Forecasts, bounds and scores of the models are untouched: only the choice is.
        assert same(alone.ladder.tracks, with_prior.ladder.tracks)
        if with_prior.ladder.seen < LEAST_WINDOWS and with_prior.ladder.tracks["last"].misses <= 3:
            assert with_prior.ladder.acting == "last"
    assert with_prior.ladder.acting == alone.ladder.acting != "last"


def test_a_model_that_misses_here_does_not_act_whatever_others_say() -> None:
    series = started(range(30), LONG["sine"][6][:30].tolist(), 18)
    assert series is not None
    told = {"last": 0.1}
    assert forecast(series.ladder, prior=told).acting == "last"
    missing = replace(series.ladder.tracks["last"], missed=0b1111)
    tracks = {**series.ladder.tracks, "last": missing}
    found = forecast(replace(series.ladder, tracks=tracks), prior=told)
    assert found.acting not in (None, "last")


def test_own_scores_outweigh_what_others_say_as_they_grow() -> None:
    series = started(range(30), LONG["sine"][6][:30].tolist(), 18)
    assert series is not None
    ladder = series.ladder
    told = {"last": 0.5, "ses": 1.0}

    def acting(scores: int) -> str | None:
        own = {"last": 1.0, "ses": 0.5}
        tracks = {
            name: replace(ladder.tracks[name], losses=np.full(scores, loss), missed=0)
            for name, loss in own.items()
        }
        return forecast(replace(ladder, tracks=tracks, acting=None), prior=told).acting

    assert acting(PRIOR_SCORES - 2) == "last"
    assert acting(PRIOR_SCORES + 2) == "ses"


def test_the_first_forecast_comes_sooner_with_a_prior() -> None:
    values = LONG["sine"][6][:EARLY_WINDOWS].tolist()
    series = started(range(EARLY_WINDOWS), values, EARLY_WINDOWS, {"ses": 0.5})
    assert series is not None
    assert isinstance(next_window(series), Unavailable)
    found = next_window(series, least=EARLY_WINDOWS)
    assert not isinstance(found, Unavailable)
    assert found.model == "ses"
    young = started(range(19), values[:19], 19, {"ses": 0.5})
    assert young is not None
    assert "19 of 20 windows: 1 more minute of" in str(next_window(young, least=EARLY_WINDOWS))


# --- the worker -------------------------------------------------------------------------------------------------


def reader(folder: Path) -> Reader:
    return Reader(str(folder), "me", XEON, 30 * 86400.0)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [START_S]
    monkeypatch.setattr("perphd.control.forecast_worker.time.time", lambda: now[0])
    return now


def test_a_new_workload_is_forecast_before_its_hour_is_over(tmp_path: Path, wall: list[float]) -> None:
    shared = ContributionFolder(tmp_path / "shared")
    for i, values in enumerate(LONG["sine"][:4]):
        shared.write(host(f"h{i}", followed(values), START_S))
    store_of(tmp_path / "perphd.db", 30)
    wall[0] = START_S + 30 * 60 + 30
    found = {}
    for name, text in (("alone", ""), ("told", reader_text(reader(shared.folder)))):
        worker = ForecastWorker(tmp_path / "perphd.db", tmp_path / name, "node1", str(tmp_path), 0, text)
        worker.cycle([Listed("db", "/app/db", 0, frozenset())])
        published = decode(Forecasts, msgspec.json.decode((tmp_path / name / PUBLISHED_FILE).read_bytes()))
        found[name] = {each.series: each for each in published.workloads[0].series}
    assert found["alone"]["cpu_usage_cores"].model == ""
    losses = prior(shared.read()[0], KEY, replace(ASKING, now_unix_s=wall[0])).losses
    able = losses.keys() & {"last", "ses"}  # half an hour is too short for the others
    assert found["told"]["cpu_usage_cores"].model in able
    assert found["told"]["memory_working_set_bytes"].model == ""  # nobody speaks about it


def test_scores_reach_the_folder_of_the_worker(tmp_path: Path, wall: list[float]) -> None:
    store_of(tmp_path / "perphd.db", 300)
    wall[0] = START_S + 300 * 60 + 30
    worker = ForecastWorker(
        tmp_path / "perphd.db",
        tmp_path / "f",
        "node1",
        str(tmp_path),
        0,
        reader_text(reader(tmp_path / "none")),
    )
    for minute in range(120):  # a series of which only an hour was replayed has to gather scores
        wall[0] = START_S + (300 + minute) * 60 + 30
        store_of(tmp_path / "perphd.db", 1, 300 + minute)
        worker.cycle([Listed("db", "/app/db", 0, frozenset())])
    worker.save()
    found = read_scores(tmp_path / "f")
    assert topic_of(KEY, LOSS) in {each.topic for each in found}
    assert found == contributed(files.load_state(tmp_path / "f").series)


def test_without_a_reader_nothing_is_written_and_nothing_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from perphd.control.forecast_worker import ForecastWorker;"
        f"w = ForecastWorker(Path('{tmp_path}/s'), Path('{tmp_path}/f'), 'n', '{tmp_path}'); w.save();"
        "print([m for m in sys.modules if 'federated' in m or 'fleet_scores' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
    assert not (tmp_path / "f" / SCORES).exists()


def test_the_process_takes_the_reader(tmp_path: Path) -> None:
    store_of(tmp_path / "perphd.db", 5)
    command = [sys.executable, "-m", "perphd.control.forecast_worker", str(tmp_path / "perphd.db"),
               str(tmp_path / "f"), "node1", str(tmp_path), "0"]  # fmt: skip
    line = Message([("db", "/app/db", 0, (), 0, "db")]).line()
    done = subprocess.run(
        [*command, reader_text(reader(tmp_path / "shared"))],
        input=line,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f" / SCORES).exists()
    refused = subprocess.run([*command, "{"], input=b"", capture_output=True, timeout=120, check=False)
    assert refused.returncode == 1
    assert b"does not describe a reader of contributions" in refused.stderr


def test_what_others_say_is_read_again_only_when_it_changes(
    tmp_path: Path, fleet: list[Contribution], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = ContributionFolder(tmp_path / "shared")
    exchange = Exchange(reader(shared.folder), tmp_path)
    assert exchange.priors({KEY}, NOW, HERE) == {}
    for each in fleet:
        shared.write(each)
    assert exchange.priors({KEY}, NOW, HERE).keys() == {KEY}
    assert exchange.priors(set(), NOW, HERE) == {}
    monkeypatch.setattr(ContributionFolder, "read", None)
    assert exchange.priors({KEY}, NOW, HERE).keys() == {KEY}


def test_what_others_say_about_series_that_are_gone_is_forgotten(tmp_path: Path) -> None:
    exchange = Exchange(reader(tmp_path), tmp_path)
    for number in range(20):
        exchange.priors({(f"job-{number}", "load_per_s")}, NOW, {f"job-{number}": f"job-{number}"})
    assert len(exchange._priors) == 1


def test_a_folder_that_fails_stops_no_forecast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "perphd.forecast")
    (tmp_path / "bad.json").write_text("{")
    exchange = Exchange(reader(tmp_path), tmp_path / "missing" / "f")
    for _ in range(3):
        assert exchange.priors({KEY, ("db", "load_per_s")}, NOW, HERE) == {}
    assert "bad.json: not used" in caplog.text
    assert len(caplog.messages) == 1

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("perphd.control.forecast_exchange.prior", broken)
    assert exchange.priors({("other", "load_per_s")}, NOW, HERE) == {}
    assert "cannot be used" in caplog.text


def test_a_damaged_file_of_scores_is_not_contributed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_scores(tmp_path) == ()
    scores = contributed({KEY: followed(LONG["sine"][0])})
    write_scores(tmp_path, scores)
    assert read_scores(tmp_path) == scores
    for text in (b"{", b"[1]", b" " * (2 << 20)):
        (tmp_path / SCORES).write_bytes(text)
        assert read_scores(tmp_path) == ()
        assert "are not contributed" in caplog.text


def test_the_reader_survives_its_text(tmp_path: Path) -> None:
    assert reader_from(reader_text(reader(tmp_path))) == reader(tmp_path)
    with pytest.raises(PerphError, match="does not describe a reader"):
        reader_from('{"folder": 1}')


# --- applications and origins -----------------------------------------------------------------------------------


def test_of_several_workloads_of_one_declaration_the_one_with_the_most_values_speaks() -> None:
    series = followed(LONG["sine"][0])
    longer = replace(series, ladder=replace(followed(LONG["bursts"][0]).ladder, seen=10**6))
    names = {("web.a", "cpu_usage_cores"): series, ("web.b", "cpu_usage_cores"): longer}
    found = contributed(names, {"web.a": "web", "web.b": "web"})
    alone = contributed({("web", "cpu_usage_cores"): longer})
    assert found == alone
    assert {each.topic.application for each in found} == {"web"}


def test_series_of_a_workload_that_is_gone_still_speak_for_its_application(tmp_path: Path) -> None:
    series = {("web.a", KEY[1]): followed(LONG["sine"][0])}
    exchange = Exchange(reader(tmp_path), tmp_path)
    exchange.priors(set(), NOW, {"web.a": "web"})
    exchange.hand_over(series)
    said = read_scores(tmp_path)
    assert {each.topic.application for each in said} == {"web"}
    for process in (exchange, Exchange(reader(tmp_path), tmp_path)):
        process.priors(set(), NOW, {"web.b": "web"})  # the pod was replaced
        process.hand_over(series)
        assert read_scores(tmp_path) == said
    exchange.hand_over({("nobody", KEY[1]): series["web.a", KEY[1]]})
    assert read_scores(tmp_path) == (), "nobody knows whose they are"


def test_workloads_of_one_declaration_begin_as_on_other_hosts_and_hear_their_own(
    tmp_path: Path, fleet: list[Contribution]
) -> None:
    shared = ContributionFolder(tmp_path / "shared")
    for each in fleet[:2]:
        shared.write(each)
    shared.write(replace_name(fleet[2], "me"))
    exchange = Exchange(reader(shared.folder), tmp_path)
    replica = ("web.a", KEY[1])
    assert exchange.priors({KEY}, NOW, HERE) == {}, "two others are too few, and nobody hears itself"
    assert exchange.priors({replica}, NOW, {"web.a": "db"}).keys() == {replica}
    (origin,) = read_origins(tmp_path)["web.a"]
    assert {each.contributor for each in origin.hosts} == {"h0", "h1", "me"}


def replace_name(said: Contribution, name: str) -> Contribution:
    return msgspec.structs.replace(said, contributor=name)


def test_from_which_hosts_forecasts_began_is_kept(tmp_path: Path, fleet: list[Contribution]) -> None:
    shared, worker = ContributionFolder(tmp_path / "shared"), tmp_path / "f"
    worker.mkdir()
    for each in fleet[:4]:
        shared.write(each)
    shared.write(msgspec.structs.replace(fleet[4], made_unix_s=NOW - 40 * 86400.0))
    exchange = Exchange(reader(shared.folder), worker)
    other = ("db", "load_per_s")
    exchange.priors({KEY, other}, NOW, HERE)
    (origin,) = read_origins(worker)["db"]
    assert (origin.series, origin.in_force, origin.looked_unix_s) == (KEY[1], True, NOW)
    assert sorted(each.contributor for each in origin.hosts) == ["h0", "h1", "h2", "h3"]
    assert sum(each.share_ratio for each in origin.hosts) == pytest.approx(1.0)
    assert [(each.contributor, each.reason) for each in origin.left_out] == [("h4", "expired")]
    assert set(origin.ranked) == prior(shared.read()[0], KEY, ASKING).losses.keys()
    exchange = Exchange(reader(shared.folder), worker)  # another process of the worker
    exchange.priors(set(), NOW, HERE)
    (later,) = read_origins(worker)["db"]
    assert (later.in_force, later.hosts) == (False, origin.hosts)
    exchange.priors(set(), NOW, {"other": "other"})
    assert read_origins(worker) == {}
    (worker / ORIGINS).write_text("{")
    assert read_origins(worker) == {}


def test_too_few_hosts_are_named_as_well(tmp_path: Path, fleet: list[Contribution]) -> None:
    shared = ContributionFolder(tmp_path / "shared")
    for each in fleet[:2]:
        shared.write(each)
    exchange = Exchange(reader(shared.folder), tmp_path)
    exchange.priors({KEY}, NOW, HERE)
    (origin,) = read_origins(tmp_path)["db"]
    assert (origin.ranked, len(origin.hosts)) == ((), 2)


def test_forecast_origins_are_shown(tmp_path: Path, fleet: list[Contribution]) -> None:
    shared = ContributionFolder(tmp_path / "shared")
    for each in fleet:
        shared.write(each)
    Exchange(reader(shared.folder), tmp_path).priors({KEY}, NOW, HERE)
    worker = ForecastProcess(tmp_path, (), Records(None, lambda: NOW))
    found = ModelOrigin("pi", "batch has no model", forecasts=worker.origins("db"))
    shown = plain(origin_parts(found))
    assert "pi: batch has no model" in shown
    assert "forecasts of cpu_usage_cores began with the ranking of other hosts: " in shown
    assert "Hosts that counted for the forecasts of cpu_usage_cores" in shown
    assert "h5" in shown
    over = replace(found.forecasts[0], in_force=False)
    assert "this host's own scores decide now" in plain(origin_parts(replace(found, forecasts=(over,))))
    assert decode(ModelOrigin, encode(found)) == found
    assert worker.origins("nobody") == ()


def test_a_damaged_byte_in_a_file_costs_that_file_alone(tmp_path: Path) -> None:
    for name in (SCORES, ORIGINS):
        (tmp_path / name).write_bytes(b'{"db": ["\xff"]}' if name == ORIGINS else b'["\xff"]')
    assert read_scores(tmp_path) == ()
    assert read_origins(tmp_path) == {}
