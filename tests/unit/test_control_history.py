"""perphctl predict, history and usage-profile: golden answers, files, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perphd.commands.cli import cli
from perphd.control.forecast_files import IMPORTED, PROFILE, read_profile, write_profile
from perphd.forecast.usage_profile import PodSample, UsageProfile, merged, observed
from tests.unit.control_fake import serving


def run(*words: str, socket: str = "/nowhere/perphd.sock") -> Result:
    return CliRunner().invoke(cli, ["--socket", socket, *words])


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def history(tmp_path: Path) -> str:
    path = str(tmp_path / "jobs.sqlite")
    for minutes in (10, 11, 12, 13, 14):
        ok(run("history", "record", "--file", path, "--user", "ada", "--name", "report", "--run-time", f"{minutes}m",
               "--peak-memory", "2G"))  # fmt: skip
    ok(run("history", "record", "--file", path, "--user", "ada", "--name", "other", "--run-time", "5s"))
    return path


def test_predict_names_the_expert_and_its_distribution(history: str) -> None:
    shown = ok(run("predict", "--file", history, "--user", "ada", "--name", "report"))
    lines = shown.splitlines()
    assert lines[0].split() == ["QUANTITY", "ESTIMATE", "P10", "P50", "P90", "P99", "MOST", "SAMPLES"]
    assert [line.split()[0] for line in lines[1:3]] == ["run_time", "memory"]
    assert max(map(len, lines)) <= 100
    assert lines[2].split()[1] == "2.0GiB"  # one word: columns can be cut
    assert "run_time: by the" in shown
    assert "of jobs with name=report" in shown
    data = json.loads(ok(run("predict", "--file", history, "--user", "ada", "--name", "report", "--json")))
    run_time, memory = data["predictions"]
    assert (run_time["quantity"], run_time["feature"], run_time["samples"]) == (
        "run_time_s",
        "name=report",
        5,
    )
    assert 600 < run_time["estimate"] <= 840
    assert run_time["quantiles"]["p10"] <= run_time["quantiles"]["p50"] <= run_time["quantiles"]["p99"] == 840
    assert memory["estimate"] == 2 * 2**30


def test_a_job_that_nobody_knows_is_predicted_by_what_it_shares(history: str) -> None:
    data = json.loads(ok(run("predict", "--file", history, "--user", "ada", "--name", "new", "--json")))
    assert {each["feature"] for each in data["predictions"]} == {"user=ada"}


def test_exports_are_taken_in_once_and_merge_beside_the_history(history: str, tmp_path: Path) -> None:
    export, both, other = (
        str(tmp_path / "one.jsonl"),
        str(tmp_path / "both.jsonl"),
        str(tmp_path / "other.sqlite"),
    )
    assert "written" in ok(run("history", "export", export, "--file", history))
    assert "rows" in ok(run("history", "import", export, "--file", other))
    assert "imported before, nothing changed" in ok(run("history", "import", export, "--file", other))
    assert "written" in ok(run("history", "merge", both, export, export))
    assert Path(both).read_text() == Path(export).read_text()
    one = ok(run("predict", "--file", history, "--name", "report"))
    assert ok(run("predict", "--file", other, "--name", "report")) == one
    assert "deleted: 4 rows" in ok(run("history", "clear", "name=report", "--file", other))
    assert run("predict", "--file", other, "--name", "report").exit_code == 1
    ok(run("history", "clear", "--all", "--file", other))
    assert "imported before" not in ok(run("history", "import", export, "--file", other))


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("predict", "--user", "ada"), 1, "there is no job history"),
        (("predict",), 2, "describe the job: --user"),
        (("predict", "--command", "'"), 2, "No closing quotation"),
        (("predict", "--hour", "24"), 2, "--hour"),
        (("history", "record", "--user", "ada"), 2, "give at least one of --run-time"),
        (("history", "clear",), 2, "give either a PREFIX or --all"),
        (("history", "clear", "x", "--all"), 2, "give either a PREFIX or --all"),
        (("history", "import", "/nowhere.jsonl"), 1, "/nowhere.jsonl: cannot be read: No such file"),
        (("history", "import"), 2, "FILE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_refusals(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    result = run(*words, "--file", str(tmp_path / "jobs.sqlite"))
    assert result.exit_code == code
    assert says in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_a_damaged_line_is_named_without_a_parser_s_words(history: str, tmp_path: Path) -> None:
    export = tmp_path / "one.jsonl"
    ok(run("history", "export", str(export), "--file", history))
    export.write_text(export.read_text().replace('"', "", 1))
    refused = run("history", "import", str(export), "--file", history)
    assert refused.exit_code == 1
    assert f"{export}: line 1 does not belong to a job history; give a file that" in refused.output
    assert "char" not in refused.output


def test_an_export_makes_no_folders(history: str, tmp_path: Path) -> None:
    refused = run("history", "export", str(tmp_path / "no" / "one.jsonl"), "--file", history)
    assert refused.exit_code == 1
    assert f"there is no folder {tmp_path / 'no'}" in refused.output
    assert not (tmp_path / "no").exists()


def test_without_a_file_the_state_directory_has_the_history(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        socket = str(server.socket)
        ok(run("history", "record", "--user", "ada", "--run-time", "5s", socket=socket))
        assert "run_time" in ok(run("predict", "--user", "ada", socket=socket))
        state = Path(server.agent.config.daemon.state_dir)
        assert (state / "jobs.sqlite").exists()


# --- usage profiles ---------------------------------------------------------------------------------------------


def profile_of(first: str, usage: float) -> UsageProfile:
    pods = [PodSample(first, 4.0, usage), PodSample("z", 4.0, 1.0)]
    return observed(UsageProfile(), pods, 20_000)


def test_profiles_are_shown_exported_merged_and_handed_to_the_worker(tmp_path: Path) -> None:
    first, second = str(tmp_path / "1.json"), str(tmp_path / "2.json")
    write_profile(Path(first), profile_of("a", 3.0))
    write_profile(Path(second), profile_of("b", 2.0))
    target = str(tmp_path / "both.json")
    assert "2 pairs" in ok(run("usage-profile", "merge", target, first, second, first))
    assert read_profile(Path(target)) == merged([profile_of("b", 2.0), profile_of("a", 3.0)])
    shown = ok(run("usage-profile", "show", "--file", target)).splitlines()
    assert [line.split() for line in shown[2:]] == [["a", "z", "0.50", "1"], ["b", "z", "0.38", "1"]]
    with serving(tmp_path) as server:
        socket, folder = str(server.socket), Path(server.agent.config.daemon.state_dir) / "forecast"
        missing = run("usage-profile", "show", socket=socket)
        assert missing.exit_code == 1
        assert "no usage profile yet" in missing.stderr
        for _ in range(2):
            ok(run("usage-profile", "import", first, second, socket=socket))
        taken = [read_profile(path) for path in (folder / IMPORTED).iterdir()]
        assert len(taken) == 2
        assert merged(taken) == read_profile(Path(target))
        write_profile(folder / PROFILE, merged(taken))
        ok(run("usage-profile", "export", str(tmp_path / "out.json"), socket=socket))
        assert read_profile(tmp_path / "out.json") == merged(taken)


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    result = run("usage-profile", "merge", str(tmp_path / "y.json"), str(tmp_path / "x.json"))
    assert result.exit_code == 1
    assert "x.json: not a usage profile" in result.stderr
    assert not (tmp_path / "y.json").exists()
