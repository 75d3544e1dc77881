"""perphctl against a served fake agent: answers, exit codes, JSON, and what people see."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from perphd.commands import base as cli_base
from perphd.commands.cli import cli
from perphd.commands.daemon import main as perphd
from perphd.commands.explain import explain_parts, parse_at
from perphd.commands.render_model import BAR, bar
from perphd.commands.render_status import change_text, status_parts
from perphd.commands.sim import sim
from perphd.control.client import Client, NotPermitted, Refused, Unreachable
from perphd.control.numbers import NONE, duration, number
from perphd.control.render import limitations, settings_text, undeclared_lines
from perphd.control.table import Styled, Table, plain, table, text, with_bars_within
from perphd.domain.allocation import UNTOUCHED
from perphd.domain.decision import TO_BEST, Action, Outcome
from perphd.domain.errors import Denied, ParseError, PerphError
from perphd.domain.reading import Unavailable
from perphd.domain.status import Change
from perphd.domain.suggestion import Gain, Suggestion
from perphd.domain.wire import encode
from perphd.domain.workload import Kind, Mode
from perphd.isolation.restore_report import FileReport, RestoreReport
from perphd.monitor.store import Store
from tests.unit.control_fake import MODEL, READER, STRANGER, Served, decision, serving
from tests.unit.host_tree import Cpu, cpu_files, write_tree

Run = Callable[..., Result]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def run(served: Served) -> Run:
    return lambda *words: CliRunner().invoke(cli, ["--socket", served.socket, *words])


def ok(result: Result) -> str:
    assert result.exception is None, result.output
    assert result.exit_code == 0
    return result.stdout


# --- every command ---------------------------------------------------------------------------------------------

ASKING = [
    ("status",),
    ("top", "-n", "2", "--interval", "0.1"),
    ("doctor",),
    ("mode",),
    ("mode", "--workload", "db"),
    ("explain", "db"),
    ("explain", "db", "--at", "5m", "--limit", "1", "-v"),
    ("explain", "pi"),
    ("lra", "list"),
    ("batch", "list"),
    ("config", "show"),
    ("model", "list"),
    ("model", "show", "db"),
    ("model", "show", "db", "--all"),
    ("model", "export", "db", "-"),
    ("groups", "--limit", "5"),
    ("query", "SELECT 1 AS a, 'x' AS b"),
]
CHANGING = [
    ("mode", "observe"),
    ("mode", "enforce", "--workload", "db"),
    ("lra", "add", "new", "/new", "--sli", "push", "-o", "max_age_s=3", "--tolerance-pct", "5"),
    ("batch", "add", "new", "/new", "--min-memory", "1G", "--mode", "observe"),
    ("lra", "rm", "db"),
    ("batch", "rm", "pi"),
    ("sli", "push", "db", "--work-rate", "1200", "--latency-p95-ms", "8"),
    ("model", "reset", "db"),
    ("restore",),
    ("reload",),
]


@pytest.fixture
def store(served: Served) -> None:
    writer = Store(served.config.store_path, 1e6, 1 << 30)
    writer.start()
    writer.add_event(1.0, "mode", "db: enforce")
    writer.close()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("words", [*ASKING, *CHANGING], ids=" ".join)
def test_every_command_answers(run: Run, words: tuple[str, ...]):
    shown = ok(run(*words))
    assert shown.strip()
    assert "\x1b" not in shown  # no colours into a pipe


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("words", [*ASKING, *CHANGING], ids=" ".join)
def test_every_command_answers_in_json(run: Run, words: tuple[str, ...]):
    shown = ok(run(*words, "--json"))
    answers = [json.loads(line) for line in shown.splitlines()] if words[0] == "top" else [json.loads(shown)]
    assert all(isinstance(answer, dict) for answer in answers)


@pytest.mark.parametrize("words", [*ASKING[:6], *ASKING[7:9], *CHANGING], ids=" ".join)
def test_no_daemon(tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    if words[0] in ("doctor", "restore"):
        return  # they do without
    result = CliRunner().invoke(cli, [*words, "--socket", f"{tmp_path}/none", "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["code"] == "unreachable"
    assert "is perphd running?" in result.stderr


@pytest.mark.parametrize("words", CHANGING, ids=" ".join)
def test_not_permitted(run: Run, served: Served, words: tuple[str, ...]):
    served.peer = READER
    result = run(*words)
    assert result.exit_code == 4
    assert "perphd-admin" in result.stderr
    assert served.agent.calls == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("explain", "nope"), 5, "no workload 'nope'"),
        (("iopath", "nope"), 5, "no workload 'nope'"),
        (("mode", "observe", "--workload", "nope"), 5, "no workload 'nope'"),
        (("mode", "--workload", "nope"), 5, "no workload 'nope'"),
        (("lra", "rm", "nope"), 5, "no workload 'nope'"),
        (("batch", "rm", "db"), 5, "perphctl lra rm db"),
        (("sli", "push", "nope", "--load", "1"), 5, "no workload 'nope'"),
        (("explain", "db", "--at", "noonish"), 2, "is not a time"),
        (("model", "show", "nope"), 5, "no workload 'nope'"),
        (("model", "reset", "pi"), 1, "is batch"),
        (("model", "export", "db", "/nowhere/db.json"), 1, "/nowhere/db.json: cannot be written"),
        (("model", "import", "db", "/nowhere/db.json"), 1, "/nowhere/db.json: cannot be read"),
        (("model", "import", "db", "/dev/null"), 1, "/dev/null: is not a model: not JSON"),
        (("lra", "add", "x", "relative"), 1, "lra.cgroup"),
        (("lra", "add", "db", "/x"), 1, "already the name"),
        (("lra", "add", "x", "/x", "--sli", "msql"), 1, "not an SLI source"),
        (("batch", "add", "x", "/x", "--min-memory", "100 "), 1, "batch.min_memory"),
        (("sli", "push", "cache", "--load", "1"), 1, "accepts no pushed readings"),
        (("query", "DROP TABLE x"), 1, "SELECT"),
        (("export", "nope", "-o", "/dev/null"), 1, "not a table"),
        (("sli", "push", "db"), 2, "at least one reading"),
        (("sli", "push", "db", "--work-rate", "fast"), 2, "not a valid float"),
        (("lra", "add", "x", "/x", "-o", "a=b"), 2, "--sli-option requires --sli"),
        (("lra", "add", "x", "/x", "--sli", "push", "-o", "a"), 2, "not KEY=VALUE"),
        (("mode", "on"), 2, "observe"),
        (("stauts",), 2, "No such command"),
        ((), 2, "Usage"),
    ],
)
@pytest.mark.usefixtures("store")
def test_refusals(run: Run, words: tuple[str, ...], code: int, says: str):
    result = run(*words)
    assert result.exit_code == code, result.output
    assert says in result.output
    assert "Traceback" not in result.output


def test_errors_in_json(run: Run):
    result = run("--json", "lra", "add", "x", "/a/../b")
    error = json.loads(result.stdout)["error"]
    assert (error["code"], error["key"]) == ("refused", "lra.cgroup")
    assert error["allowed"]


def test_restore_through_the_daemon_that_failed(run: Run, served: Served):
    served.agent.restored = RestoreReport(failed=(FileReport("/sys/x", "pi", "cpus", "0-7", note="EBUSY"),))
    result = run("restore")
    assert result.exit_code == 1
    assert "/sys/x" in result.stdout
    assert "FAILED" in result.stdout


def test_restore_tells_the_daemon_to_ignore_the_lock(run: Run, served: Served):
    ok(run("restore"))
    ok(run("restore", "--ignore-lock"))
    assert [call for call in served.agent.calls if call[0] == "restore"] == [
        ("restore", False),
        ("restore", True),
    ]


def test_restore_without_a_daemon(tmp_path: Path):
    words = ["restore", "--socket", f"{tmp_path}/none", "--state-dir", str(tmp_path)]
    assert "nothing to restore" in ok(CliRunner().invoke(cli, words))


@pytest.mark.parametrize("command", [cli, perphd], ids=["perphctl", "perphd"])
def test_a_restore_from_a_guessed_directory_says_so_first_and_claims_nothing(
    tmp_path: Path, command: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = RestoreReport(notes=("/var/lib/perphd: no journal, nothing to restore",))
    module = importlib.import_module("perphd.isolation.restore")  # the package has a function of that name
    monkeypatch.setattr(module, "restore_each", lambda *_: empty)
    monkeypatch.setenv("PERPHD_SOCKET", f"{tmp_path}/none")
    result = CliRunner().invoke(command, ["restore", "--config", f"{tmp_path}/none.toml"])
    assert result.exit_code == 1
    assert result.stdout.startswith("The state directory /var/lib/perphd is a guess")
    assert "Nothing had to be restored" not in result.stdout


def test_a_pause_of_one_workload_says_that_others_follow(run: Run) -> None:
    shown = " ".join(ok(run("pause", "db")).split())
    assert "db itself: no file had to be put back." in shown
    assert "The next round restores what other workloads had given up for db alone." in shown
    assert "Nothing had to be restored." in ok(run("pause"))


def test_a_suggestion_says_what_its_ratios_mean(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Suggestion("/hog", 3.0, 600.0, (Gain("db", 60.0, 1.2, 0.15),), "", "it slowed db")
    for gains, legends in ((found.gains, 1), ((), 0)):
        answer = {"suggestions": encode((replace(found, gains=gains),))}
        monkeypatch.setattr(Client, "get", lambda *_, answer=answer: answer)
        shown = " ".join(ok(run("suggest")).split())
        assert shown.count("as ratios to what was observed") == legends
        assert ("x 0.15" in shown) == bool(gains)


def test_doctor_names_undeclared_work_with_the_commands_that_declare_it(run: Run) -> None:
    shown = " ".join(ok(run("doctor")).split())
    assert (
        "Undeclared work: /system.slice/backup.service used 1.5 of 8 CPUs in the last 60 min and slowed db."
        in shown
    )
    assert "If it may give way: perphctl batch add backup /system.slice/backup.service" in shown
    assert "If it must be protected: perphctl lra add backup /system.slice/backup.service" in shown


def test_doctor_names_only_undeclared_work_that_matters() -> None:
    pod = "/kubepods.slice/kubepods-pod1\\x2d2.slice"
    found = [
        Suggestion("/user.slice/idle.scope", 0.39, 60.0, (), "", ""),
        Suggestion(pod, 0.41, 60.0, (), "", ""),
        Suggestion("/", 2.0, 60.0, (), "", ""),
    ]
    assert undeclared_lines(found, 8, {pod: "shop/web-0"}) == (
        f"shop/web-0 ({pod}) used 0.41 of 8 CPUs in the last 60 s. If it may give way: "
        f"perphctl batch add kubepods-pod1-x2d2 '{pod}'",
        f"  If it must be protected: perphctl lra add kubepods-pod1-x2d2 '{pod}'",
        "Processes in no control group used 2 of 8 CPUs in the last 60 s. To declare them, start them with "
        "systemd-run.",
    )
    assert undeclared_lines((), 8, {}) == ()


def test_doctor_without_a_daemon(tmp_path: Path):
    words = ["doctor", "--socket", f"{tmp_path}/none"]
    assert "no daemon answers" in ok(CliRunner().invoke(cli, words))
    data = json.loads(ok(CliRunner().invoke(cli, [*words, "--json"])))
    assert {item["present"] for item in data["capabilities"]} <= {True, False}


def test_doctor_and_groups_of_the_host_that_the_configuration_names(tmp_path: Path):
    files = {
        **cpu_files([Cpu(0)]),
        "/proc/self/mounts": "cgroup2 /cg cgroup2 rw 0 0\n",
        "/cg/cgroup.controllers": "cpu memory\n",
        "/cg/elsewhere.slice/cgroup.procs": "7\n",
    }
    write_tree(tmp_path / "root", files)
    config = tmp_path / "perphd.toml"
    config.write_text(f'[tuning.host]\nroot = "{tmp_path}/root"\n')
    result = CliRunner().invoke(cli, ["groups", "--config", str(config)])
    assert "/elsewhere.slice" in result.output, result.output
    result = CliRunner().invoke(cli, ["doctor", "--local", "--config", str(config)])
    assert f"of the host in {tmp_path}/root" in result.output, result.output
    assert "v2 at /cg" in result.output
    assert "below tuning.host.root" in result.output, (
        "what only system calls could tell is not told of this machine"
    )


def test_doctor_for_somebody_who_may_not_ask(run: Run, served: Served):
    served.peer = STRANGER
    assert "may not ask the daemon" in ok(run("doctor"))


def test_config_check(tmp_path: Path):
    path = tmp_path / "perphd.toml"
    path.write_text('[[lra]]\nname = "db"\ncgroup = "/perphd-test-no-such-group"\n')
    result = CliRunner().invoke(cli, ["config", "check", str(path)])
    assert "fine; 1 workload, mode observe" in ok(result)
    assert "waits for it" in result.stderr
    path.write_text("[daemon]\nmod = 1")
    result = CliRunner().invoke(cli, ["config", "check", str(path), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["key"] == "daemon.mod"
    assert "did you mean 'mode'" in result.stderr
    path.write_text('[daemon]\nmod = 1\n[[lra]]\nname = "db"\ntolerence_pct = 3\n')
    result = CliRunner().invoke(cli, ["config", "check", str(path), "--json"])
    said = json.loads(result.stdout)
    assert [each["key"] for each in said["errors"]] == ["daemon.mod", "lra[0].tolerence_pct", "lra[0].cgroup"]
    assert said["error"] == said["errors"][0]
    assert result.stderr.count("perphctl: ") == 3


@pytest.mark.usefixtures("store")
def test_query_and_export_without_a_daemon(served: Served, tmp_path: Path):
    path = served.config.store_path
    nobody = ["--socket", f"{tmp_path}/none"]
    shown = ok(CliRunner().invoke(cli, [*nobody, "query", "SELECT kind, data FROM events", "--store", path]))
    assert shown == "kind  data\nmode  db: enforce\n"
    out = tmp_path / "events.csv"
    ok(CliRunner().invoke(cli, [*nobody, "export", "events", "-o", str(out), "--store", path]))
    assert out.read_text().splitlines() == ["wall_s,kind,data", "1.0,mode,db: enforce"]


@pytest.mark.usefixtures("store")
def test_export_asks_the_daemon_where_its_store_is(run: Run, tmp_path: Path):
    pytest.importorskip("pyarrow", reason="needs pyarrow (perphd[export])")
    out = tmp_path / "events.parquet"
    assert ": 1 rows of events" in ok(run("export", "events", "--format", "parquet", "-o", str(out)))
    assert out.stat().st_size > 0


def test_events(run: Run, served: Served, monkeypatch: pytest.MonkeyPatch):
    full = Client.events

    def first_three(self: Client, **query: str | None) -> Iterator[tuple[str, Any]]:
        stream = full(self, **query)
        for _ in range(3):
            yield next(stream)
        stream.close()
        yield "pause", {"kind": "pause", "at_s": 102.0, "workload": "db", "text": "paused", "by": "ann"}

    monkeypatch.setattr(Client, "events", first_three)
    shown = ok(run("events"))
    assert "decision  db: grow" in shown
    assert "tick" not in shown
    assert "pause     db: paused; by ann" in shown
    lines = [json.loads(line) for line in ok(run("events", "--json")).splitlines()]
    assert [line["kind"] for line in lines] == ["decision", "tick", "pause"]


# --- as a process ----------------------------------------------------------------------------------------------


def process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perphd.commands", *words]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_as_a_process(served: Served):
    done = process("status", "--socket", served.socket)
    assert done.returncode == 0
    assert "perphd 1.2.3: enforce" in done.stdout
    served.peer = STRANGER
    done = process("status", "--socket", served.socket, "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (4, "not-permitted")


def test_a_reader_that_leaves_early_is_no_error_to_talk_about(served: Served):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "perphd.commands", "status", "--socket", served.socket]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False
    )
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


def test_heavy_modules_stay_out():
    heavy = {
        "rich",
        "aiohttp",
        "numpy",
        "asyncio",
        "http.client",
        "perphd.domain.status",
        "perphd.cluster.document",
    }
    code = f"import sys, perphd.commands.cli; print(sorted({heavy} & set(sys.modules)))"
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_init_needs_no_numpy():
    code = (
        "import sys, perphd.commands.init_check, perphd.host.survey, perphd.host.tcp_latency\n"
        "print(sorted({'numpy', 'perphd.domain.status', 'perphd.host.capabilities'} & set(sys.modules)))"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


# --- the client ------------------------------------------------------------------------------------------------


def test_a_socket_that_may_not_be_opened(monkeypatch: pytest.MonkeyPatch):
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("perphd.control.unix_http.UnixConnection.connect", refuse)
    with pytest.raises(NotPermitted, match="read group"):
        Client("/run/x").get("status")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("x"), 3),
        (NotPermitted("x"), 4),
        (Denied("/sys/x", "write", 1), 4),
        (Refused(404, {"code": "not-found"}), 5),
        (Refused(404, {"code": "no-route"}), 1),
        (Refused(500, {}), 1),
        (PerphError("x"), 1),
    ],
)
def test_exit_codes(error: PerphError, code: int):
    assert cli_base.exit_code(error) == code
    assert set(cli_base.error_object(error)) == {"code", "message", "key", "allowed"}


# --- what people see -------------------------------------------------------------------------------------------


def test_status_for_people(served: Served):
    shown = plain(status_parts(served.agent.status(), 130.0))
    assert shown.startswith("perphd 1.2.3: enforce, up 2 h 03 min")
    db = next(line for line in shown.splitlines() if line.startswith("db "))
    assert db.split() == "db slow: CPU 812/s 1206/s 1.27ms learning 2.31 2+2 shared".split()
    assert "cache [observe]  not running" in shown
    assert "CPUs 0-3, idle, memory to 2.0 GiB" in shown
    assert "! the store was damaged" in shown
    assert "! pi memory_high_bytes: it works with 3 GiB" in shown
    # What never changes on this host is doctor's; perphd's own cost is shown on demand.
    assert "no cpu controller" not in shown
    assert "tick" not in shown
    assert any("no cpu controller" in line for line in limitations(served.agent.status()))
    verbose = plain(status_parts(served.agent.status(), 130.0, verbose=True))
    assert "every 0.25 s (usually 1 s: pi has come)" in verbose
    assert "itself: 0.43 % of a CPU" in verbose


def test_status_says_what_was_tried_with_a_batch_job(served: Served):
    status = served.agent.status()
    none = Unavailable("batch has no target")
    tried = Outcome(
        99.0, "pi", 90.0, none, none, True, "the least of the cache as a trial: pi -2%, sort +40%; kept"
    )
    workloads = tuple(
        dataclasses.replace(w, outcome=tried) if w.spec.name == "pi" else w for w in status.workloads
    )
    shown = plain(status_parts(dataclasses.replace(status, workloads=workloads), 130.0, verbose=True))
    assert "pi: the least of the cache as a trial: pi -2%, sort +40%; kept (31 s ago)" in shown


def test_status_of_an_empty_daemon(served: Served):
    served.agent.specs = {}
    assert "perphctl init" in plain(status_parts(served.agent.status(), 130.0))


def test_explain_for_people():
    grown, held = decision(100.0), decision(90.0, Action.HOLD)
    shown = plain(explain_parts([grown, held], 0.0))
    assert "It was degraded, short of cpu because of pi (for 3 s)." in shown
    assert "work: 812 /s, target 1206 /s (33% below the target)" in shown
    assert "perphd protected it more: batch on 2 of 4 cores" in shown
    assert "to   confined(batch on 2/4 cores, weight 20)" in shown
    assert "perphd left everything as it is" in shown
    assert "SCORE" not in shown
    assert "provisional" not in shown
    unsure = plain(explain_parts([replace(grown, target_provisional=True)], 0.0))
    assert "The target is provisional: it was learned while undeclared work" in unsure
    assert "would protect it more" in plain(explain_parts([replace(grown, mode=Mode.OBSERVE)], 0.0))
    best = replace(grown, action=Action.ROLLBACK, reason=f"{TO_BEST}: out of reach", to_best=True)
    assert "perphd returned to the best setting: out of reach." in plain(explain_parts([best], 0.0))
    reworded = replace(best, reason="another text")
    assert "perphd returned to the best setting: another text." in plain(explain_parts([reworded], 0.0))
    alike = replace(best, to_best=False)
    assert "returned to the best setting" not in plain(explain_parts([alike], 0.0)), "no text decides that"
    change = Change(
        0.0, "db", Action.ROLLBACK, best.current, best.chosen, Mode.ENFORCE, "any text", to_best=True
    )
    assert change_text(change).endswith(f"({TO_BEST})")
    assert change_text(replace(change, to_best=False)).endswith("(undone)")
    verbose = plain(explain_parts([grown], 0.0, verbose=True))
    assert "0.67 [0.60, 0.75]" in verbose
    assert "delay unknown (no latency)" in verbose


NOW = datetime.datetime(2025, 11, 21, 14, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("content", "ago_s"),
    [
        ("90", 90),
        ("-90", 90),
        ("90s", 90),
        ("5m", 300),
        ("5 min", None),
        ("5m ago", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("13:59", 60),
        ("13:59:30", 30),
        ("14:01", 86400 - 60),
        ("2025-11-21T13:00+00:00", 3600),
        ("x", None),
        ("25:00", None),
        ("", None),
    ],
)
def test_times_as_people_write_them(content: str, ago_s: float | None):
    if ago_s is None:
        with pytest.raises(ParseError, match="14:03"):
            parse_at(content, NOW)
    else:
        assert NOW.timestamp() - parse_at(content, NOW) == ago_s


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("01:30", "2026-03-29T00:30:00+00:00"),  # before the change to summer time that night
        ("23:00", "2026-03-28T22:00:00+00:00"),
        ("07:00", "2026-03-29T05:00:00+00:00"),
        ("05:30Z", "2026-03-29T05:30:00+00:00"),
    ],
)
def test_times_of_day_are_those_of_the_clock_on_the_wall(
    run: Run, served: Served, monkeypatch: pytest.MonkeyPatch, content: str, expected: str
):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
            return cls(2026, 3, 29, 8, 0, 0)

    try:
        monkeypatch.setattr("perphd.commands.cli.datetime.datetime", Clock)
        ok(run("explain", "db", "--at", content))
        none = ok(run("explain", "cache", "--at", content))
        local = datetime.datetime.fromisoformat(expected).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        assert f"No decision about cache is remembered from before {local}." in none
        assert "is remembered from before" in ok(run("explain", "cache", "--at", "9999999d"))
    finally:
        monkeypatch.undo()
        time.tzset()
    (asked,) = [call for call in served.agent.calls if call[:2] == ("decisions", "db")]
    assert asked[2] - 130.0 + 1_000_130.0 == datetime.datetime.fromisoformat(expected).timestamp()


@given(st.text(max_size=30))
def test_arbitrary_times(content: str):
    try:
        assert isinstance(parse_at(content, NOW), float)
    except ParseError:
        return


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.4321, "0.432"), (12345.6, "12346"), (99.95, "100"), (Unavailable("x"), NONE)],
)
def test_numbers(value: float | Unavailable, shown: str):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 s"), (59.6, "60 s"), (600, "10 min"), (7500, "2 h 05 min"), (200000, "2 d 7 h")],
)
def test_durations(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_nothing_in_force():
    assert settings_text(UNTOUCHED) == "as found"


def test_plain_tables_cut_nothing_and_show_control_characters():
    shown = plain(
        [
            table("T", ("A", "B"), [("x" * 300, "\x1b[31m"), ("日本", Styled("5", "red"))], right=[1]),
            text("a\tb"),
        ]
    )
    lines = shown.splitlines()
    assert "x" * 300 in lines[2]
    assert "\\x1b[31m" in lines[2]
    assert "\x1b" not in shown
    assert len(lines[3]) == len(lines[2]) - 2  # two wide characters
    assert lines[-1] == "a\\tb"


# --- admission -------------------------------------------------------------------------------------------------


def test_admit_says_yes_or_not_now(run: Run) -> None:
    assert ok(run("admit", "batch:cpu=4,mem=8G")).startswith("yes: db keeps its target")
    refused = run("admit", "batch:cpu=5")
    assert refused.exit_code == 75
    assert refused.stdout.startswith("not now: ")
    wrong = run("admit", "lra:cpu=5")
    assert wrong.exit_code == 2
    assert "allowed: batch" in wrong.stderr


def test_whatif_shows_every_application(run: Run) -> None:
    shown = ok(run("whatif", "--add", "batch:cpu=2"))
    assert "would be admitted: db keeps its target" in shown
    assert "90%" in shown
    assert json.loads(ok(run("--json", "whatif", "--add", "cpu=9")))["accepted"] is False


# --- models ----------------------------------------------------------------------------------------------------


def test_a_model_goes_out_and_comes_in(run: Run, served: Served, tmp_path: Path):
    file = tmp_path / "db.json"
    assert "holds the model of db, with 0 samples" in ok(run("model", "export", "db", str(file)))
    assert json.loads(file.read_text()) == MODEL
    result = run("model", "import", "db", str(file))
    assert "db: model imported" in ok(result)
    assert "warning: it was learned on node1" in result.stderr
    assert served.agent.calls[-1][3] is False
    ok(run("model", "import", "db", str(file), "--rename", "--json"))
    assert served.agent.calls[-1][3] is True


def test_an_edited_model_is_refused_in_a_sentence(run: Run, served: Served, tmp_path: Path):
    file = tmp_path / "db.json"
    file.write_text(json.dumps(MODEL).replace('"samples": 0', '"samples": 5'))
    result = run("model", "import", "db", str(file))
    assert result.exit_code == 1
    assert "the model is refused: its checksum is wrong" in result.stderr
    for bad, says in (("[]", "not a JSON object"), ("[" * 10_000, "not JSON")):
        file.write_text(bad)
        result = run("model", "import", "db", str(file))
        assert result.exit_code == 1
        assert says in result.stderr
    assert served.agent.calls == []


def test_a_reader_may_look_at_models_and_not_change_them(run: Run, served: Served, tmp_path: Path):
    served.peer = READER
    ok(run("model", "show", "db"))
    file = tmp_path / "db.json"
    ok(run("model", "export", "db", str(file)))
    assert run("model", "import", "db", str(file)).exit_code == 4


def test_what_a_model_believes_is_drawn(run: Run):
    shown = ok(run("model", "show", "db"))
    lines = shown.splitlines()
    assert lines[0] == "db: 4711 samples in 3 cells, closed load; learned here; saved: 42 s ago"
    assert "not learned from: settling 12" in shown
    (free,) = (line for line in lines if line.startswith("4/4 *"))
    assert "█" * 12 + "▒" + "·" * 7 in free
    assert "0.62  0.59..0.65" in free
    assert free.endswith("18.0")
    assert not any(line.startswith("2/4") for line in lines)  # neither in force nor at a typical weight
    (tight,) = (
        line for line in ok(run("model", "show", "db", "--all")).splitlines() if line.startswith("2/4")
    )
    assert tight.split()[1] == "20"
    assert tight.endswith("-")
    assert [line.split()[:2] for line in lines if line.startswith("work:sli")] == [
        ["work:sli", "all"],
        ["work:sli", "1.02e+03"],
    ]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_bars_have_one_length(low: float, more: float, most: float):
    drawn = bar(low, low + more, most)
    assert len(drawn) == BAR
    assert list(drawn) == sorted(drawn, key="█▒·".index)


def test_bars_give_way_to_figures_on_a_narrow_terminal() -> None:
    def drawn(width: int) -> Table:
        rows: list[tuple[str | Styled, ...]] = [
            ("8/8", "█" * 10 + "▒" * 5 + "·" * 5, "0.58"),
            ("7/8", Styled("█" * 20, "dim"), "1.00"),
        ]
        return with_bars_within(table("t", ("BATCH ON", "WORK", ""), rows, right=(2,)), width)

    assert str(drawn(80).rows[0][1]) == "█" * 10 + "▒" * 5 + "·" * 5
    short = drawn(28)
    assert short.rows[0] == ("8/8", "█" * 5 + "▒" * 2 + "·" * 3, "0.58")
    assert short.rows[1][1] == Styled("█" * 10, "dim")
    none = drawn(20)
    assert none.columns == ("BATCH ON", "WORK")
    assert none.rows == (("8/8", "0.58"), ("7/8", "1.00"))
    assert none.right == {1}


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii", "utf-8"])
def test_output_can_be_printed_in_every_locale(encoding: str, monkeypatch: pytest.MonkeyPatch):
    group = click.Group()

    @cli_base.command(group)
    def say(out: cli_base.Out) -> None:
        out.say({"text": "größe █"}, "größe █")

    def printed(*words: str) -> bytes:
        raw = io.BytesIO()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
            group.main(list(words), standalone_mode=False)
            return raw.getvalue()

    assert printed("say").strip() in ("größe █".encode(), "größe █".encode(encoding, errors="replace"))
    assert json.loads(printed("say", "--json").decode("utf-8"))["text"] == "größe █"


def test_control_groups_whose_names_are_no_utf8_are_listed(tmp_path: Path):
    mounts = "cgroup2 /cg cgroup2 rw 0 0\n"
    write_tree(tmp_path, {"/proc/self/mounts": mounts, "/cg/cgroup.controllers": "cpu\n"})
    directory = os.fsencode(tmp_path) + b"/cg/b\xffd"
    os.mkdir(directory)
    Path(os.fsdecode(directory), "cgroup.procs").touch()
    config = tmp_path / "perphd.toml"
    config.write_text(f'[tuning.host]\nroot = "{tmp_path}"\n')
    program = [sys.executable, "-c", "from perphd.commands.cli import main; main()"]
    settings = {**os.environ, "PYTHONUTF8": "1", "LANG": "C.UTF-8"}
    for flags in ([], ["--json"]):
        words = [*program, *flags, "groups", "--all", "--config", str(config)]
        shown = subprocess.run(words, capture_output=True, check=True, env=settings)
        assert rb"/b\udcffd" in shown.stdout


def test_status_says_what_batch_does_for_how_long_and_whether_it_has_its_floor(served: Served):
    status = served.agent.status()
    (pi,) = (item for item in status.workloads if item.spec.name == "pi")
    spec = replace(pi.spec, min_cores=0.5)
    for condition, starved_s, got, state in (
        ("running", 0.0, 0.6, "running"),
        ("starved", 42.0, 0.0, "starved 42 s"),
        ("idle", 0.0, 0.0, "idle"),
        ("gone", 0.0, 0.0, "gone"),
    ):
        item = replace(pi, spec=spec, condition=condition, starved_s=starved_s, recent_cores=got)
        shown = plain(status_parts(replace(status, workloads=(item,)), 130.0))
        (row,) = (line for line in shown.splitlines() if line.startswith("pi "))
        assert row[4:].strip().startswith(state)
        assert ("min_cores is 0.5" in shown) == (condition == "starved")


def test_an_lra_that_is_asked_nothing_is_not_shown_as_healthy(served: Served):
    status = served.agent.status()
    lra = next(item for item in status.workloads if item.spec.kind is Kind.LRA)
    shown = plain(status_parts(replace(status, workloads=(replace(lra, condition="no load"),)), 130.0))
    (row,) = (line for line in shown.splitlines() if line.startswith(f"{lra.spec.name} "))
    assert row.split()[1:3] == ["no", "load"]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words",
    [
        ("history", "record", "--user", "a", "--run-time", "3s", "--cores"),
        ("history", "record", "--user", "a", "--instructions"),
        ("predict", "--cores"),
        ("trial", "start", "--hours"),
        ("trial", "start", "--hours", "24", "--bound"),
        ("memfit", "start", "mysql", "--delta"),
        ("headroom", "--cores"),
        ("batch", "add", "b", "/b", "--min-cores"),
    ],
)
def test_a_number_that_is_none_is_wrong_usage(words: tuple[str, ...], number: str):
    result = CliRunner().invoke(cli, ["--socket", "/nowhere/perphd.sock", *words, number])
    assert result.exit_code == 2, result.output
    assert f"Invalid value for '{words[-1]}'" in result.output


def test_a_simulated_server_takes_no_such_number_either():
    result = CliRunner().invoke(sim, ["mount", "/nowhere", "--batch-after", "nan"])
    assert result.exit_code == 2, result.output


def test_help_names_no_range_where_there_is_none():
    assert "None" not in CliRunner().invoke(cli, ["trial", "start", "--help"]).output
    assert "x>0" in CliRunner().invoke(cli, ["predict", "--help"]).output
