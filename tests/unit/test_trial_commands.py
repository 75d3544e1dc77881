"""perphctl trial and /v1/trial: start, status, stop, report, and every refusal."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perphd.commands.cli import cli
from perphd.commands.render_trial import facts, html, verdict
from perphd.domain.wire import to_json
from perphd.domain.workload import Mode
from perphd.trial.analysis import analyse
from perphd.trial.record import End, Ending, Note, TrialRecord
from tests.unit.control_fake import READER, Served, serving
from tests.unit.test_control_api import ask, error_of
from tests.unit.test_trial_core import plan, record_of

Run = Callable[..., Result]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def run(served: Served) -> Run:
    return lambda *words: CliRunner().invoke(cli, ["--socket", served.socket, *words])


def finished(delay: float = 0.6, batch: float = 0.9, pairs: int = 30) -> TrialRecord:
    rng = random.Random(1)

    def values(number: int, mode: Mode) -> tuple[float, float, float]:
        on = mode is Mode.ENFORCE
        return (
            10.0 * (delay if on else 1.0) * (1 + rng.gauss(0, 0.02)),
            100.0 * (1 + rng.gauss(0, 0.02)),
            4.0 * (batch if on else 1.0) * (1 + rng.gauss(0, 0.02)),
        )

    record = record_of(plan(pairs=pairs), values)
    return replace(record, ending=Ending(2e6, End.COMPLETE, "all blocks ran"))


# -- API ----------------------------------------------------------------------------------------------------


def test_start_status_and_stop_over_the_api(served: Served) -> None:
    assert ask(served, "GET", "/v1/trial")[1] == {"record": None, "running": None}
    status, answer = ask(served, "POST", "/v1/trial", {"hours": 24, "block_s": 300, "seed": 42})
    assert status == 201
    assert answer["record"]["plan"]["seed"] == 42
    assert answer["record"]["plan"]["washout_s"] == 75.0
    assert served.agent.by is not None
    assert ask(served, "GET", "/v1/trial")[1]["record"]["plan"]["block_s"] == 300.0
    _, answer = ask(served, "DELETE", "/v1/trial")
    assert answer["record"]["ending"]["how"] == "stopped"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({}, "hours"),
        ({"hours": None}, "hours"),
        ({"hours": "24"}, "hours"),
        ({"hours": True}, "hours"),
        ({"hours": 1}, "hours"),
        ({"hours": 24, "block_s": 1}, "block_s"),
        ({"hours": 24, "seed": 0.5}, "seed"),
        ({"hours": 24, "bound_pct": 1000}, "bound_pct"),
        ({"hours": 24, "days": 1}, "days"),
    ],
)
def test_start_refuses_and_names_the_key(served: Served, body: dict[str, Any], key: str) -> None:
    assert error_of(served, "POST", "/v1/trial", body)["key"] == key
    assert served.agent.record is None


def test_stopping_nothing_is_refused(served: Served) -> None:
    assert "no trial is running" in error_of(served, "DELETE", "/v1/trial")["message"]


# -- perphctl -----------------------------------------------------------------------------------------------


def test_start_says_what_is_fixed(run: Run) -> None:
    result = run("trial", "start", "--hours", "24", "--block", "5m", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert "286 blocks of 5 min, seed 3" in result.stdout
    assert "db.delay, batch.work" in result.stdout
    assert "more than 25 %" in result.stdout
    assert "Never enforced, as configured: cache" in result.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("start",), 2, "--hours"),
        (("start", "--hours", "1"), 2, "6 are needed"),
        (("start", "--hours", "24", "--block", "soon"), 2, "not a length of time"),
        (("start", "--hours", "24", "--washout", "9m"), 2, "--washout"),
        (("start", "--hours", "24", "--bound", "1"), 2, "--bound"),
        (("start", "--hours", "24", "--seed", "-4"), 2, "--seed"),
        (("stop",), 1, "no trial is running"),
        (("status",), 5, "there was no trial yet"),
        (("report",), 5, "there was no trial yet"),
        (
            ("report", "--file", "/nonexistent"),
            1,
            "/nonexistent: cannot be read: No such file or directory\n",
        ),
    ],
)
def test_refusals_in_words_with_exit_codes(run: Run, words: tuple[str, ...], code: int, text: str) -> None:
    result = run("trial", *words)
    assert result.exit_code == code, result.output
    assert text in result.output


def test_a_reader_may_look_and_not_start(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.peer = READER
        assert ask(served, "GET", "/v1/trial")[0] == 200
        result = CliRunner().invoke(cli, ["--socket", served.socket, "trial", "start", "--hours", "24"])
        assert result.exit_code == 4


def test_status_of_the_last_trial(run: Run, served: Served) -> None:
    served.agent.record = finished()
    assert "No trial runs. The last, t, ended" in run("trial", "status").stdout


def test_report_from_the_daemon_and_from_a_file_are_the_same(
    run: Run, served: Served, tmp_path: Path
) -> None:
    served.agent.record = finished()
    file = tmp_path / "record.json"
    file.write_text(to_json(served.agent.record))
    asked, read = run("trial", "report"), run("trial", "report", "--file", str(file))
    assert asked.exit_code == read.exit_code == 0, asked.output
    assert asked.stdout == read.stdout
    assert "db.delay" in asked.stdout
    data = json.loads(run("trial", "report", "--json").stdout)
    assert [effect["claimed"] for effect in data["analysis"]["effects"]] == [True, False, True]
    assert data["verdict"] in asked.stdout


@pytest.mark.parametrize("text", ["", "{}", '{"plan": 1}'])
def test_a_file_that_is_no_record_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    result = run("trial", "report", "--file", str(file))
    assert result.exit_code == 1
    assert "not the record of a trial" in result.output


def test_html_is_one_file_without_requests_or_scripts(run: Run, served: Served, tmp_path: Path) -> None:
    served.agent.record = finished()
    page = tmp_path / "trial.html"
    assert run("trial", "report", "--html", str(page)).exit_code == 0
    text = page.read_text()
    assert "<script" not in text
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)
    assert text.count("<svg") == 4  # the intervals, and one chart a metric


def test_html_that_cannot_be_written_is_refused(run: Run, served: Served, tmp_path: Path) -> None:
    served.agent.record = finished()
    result = run("trial", "report", "--html", str(tmp_path / "no" / "x.html"))
    assert result.exit_code == 1
    assert "cannot be written" in result.output


def test_html_escapes_what_others_named() -> None:
    record = finished()
    record = replace(record, notes=(Note(2e6, "paused by <script>alert(1)</script>"),))
    assert "<script" not in html(record, analyse(record))


# -- the sentence -------------------------------------------------------------------------------------------


def said(record: TrialRecord) -> str:
    return verdict(record, analyse(record))


def test_the_sentence_names_what_changed_and_how_sure_it_is() -> None:
    assert re.fullmatch(
        r"With perphd enforcing, db's p95 latency fell by [34]\d % \(\d\d to \d\d %\), and the CPU time of batch "
        r"fell by \d+(\.\d)? % \(.* to .* %\); 1 other metric did not change measurably\.",
        said(finished()),
    )


def test_the_sentence_claims_nothing_without_an_effect() -> None:
    assert said(finished(delay=1.0, batch=1.0)).startswith("No effect was found")


def test_the_sentence_about_harm_comes_first() -> None:
    record = replace(finished(), ending=Ending(2e6, End.HARM, "db: delay 140 % higher than in observe"))
    assert said(record).startswith("The trial was stopped, because enforcing harmed")


def test_the_sentence_about_a_young_trial_promises_nothing() -> None:
    record = finished()
    young = replace(record, blocks=record.blocks[:5], ending=None)
    assert said(young) == "Nothing can be said yet: 2 complete pairs of blocks; 6 are needed."
    assert any("still runs" in fact for fact in facts(young, analyse(young)))
