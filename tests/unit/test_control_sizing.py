"""perphctl size, forecast and headroom: golden answers, refusals, exit codes, JSON."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perphd.commands.cli import cli
from perphd.commands.render_sizing import amount
from perphd.commands.reservations import _place
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.host_account import CpuAccount, HostAccount
from perphd.domain.reading import Unavailable, value_or
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.monitor.schema import open_database
from perphd.sizing.recommendation import Reservation
from perphd.sizing.shaper import Resource
from tests.unit.control_fake import Served, serving
from tests.unit.host_tree import write_tree
from tests.unit.sizing_store import GIB, START_S, constant, daily, made, spike, usual


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment after the last sample of two days."""
    monkeypatch.setattr("perphd.commands.sizing.time.time", lambda: START_S + 2880 * 60 + 30)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sizing") / "perphd.db"
    db = usual(daily(0.5, 2.0), constant(1.5 * GIB)) | {"load_per_s": constant(250.0)}
    return str(made(path, 2880, {"db": db, "etl": usual(constant(1.0), spike(GIB, 2000, 3 * GIB))}))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


def run(*words: str, socket: str = "/nowhere/perphd.sock") -> Result:
    return CliRunner().invoke(cli, ["--socket", socket, *words])


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


SIZE = """\
etl
RESOURCE  RESERVED        NOW        P50        P95        P99        MAX
cpu        unknown  1.00cores  1.00cores  1.00cores  1.00cores  1.00cores
memory     unknown     1.0GiB     1.0GiB     1.0GiB     1.0GiB     3.0GiB

cpu: next 60s 1.00cores, at most 1.00cores in 99% (model last); size for that
  1.05cores
cpu: recommended 1.05cores: the 99th percentile of use, and 5% in reserve;
  confidence medium: less than a week of samples (2880 windows)
memory: next 60s 1.0GiB, at most 1.0GiB in 99% (model last); size for that
  1.1GiB
memory: recommended 3.2GiB: the greatest use, and 5% in reserve; confidence
  medium: less than a week of samples (2880 windows)
"""


def test_size(store: str):
    assert ok(run("size", "etl", "--store", store)) == SIZE


def test_a_daily_pattern_is_sized_for_the_day_and_not_for_the_night(store: str):
    cpu = json.loads(ok(run("size", "db", "--store", store, "--json")))["workloads"][0]["resources"][0]
    assert cpu["used"]["now"] < 0.6
    assert cpu["next_window"] < 0.7
    assert 2.0 < cpu["recommended"] < 2.2
    assert cpu["outlook"]["next_window"]["mean"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    "words",
    [("size",), ("size", "db"), ("forecast",), ("forecast", "db"), ("headroom", "--cores", "8", "--memory", "64G")],
    ids=" ".join,
)  # fmt: skip
def test_people_see_at_most_80_columns_and_programs_see_json(store: str, words: tuple[str, ...]):
    shown = ok(run(*words, "--store", store))
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "old: 'now'" not in shown
    data = json.loads(ok(run(*words, "--store", store, "--json")))
    assert data["window_s"] == 60.0


def test_forecast(store: str):
    shown = ok(run("forecast", "db", "--store", store))
    head, models, notes = shown.split("\n\n")
    assert head.splitlines()[0] == "db, next 60s"
    assert [line.split()[0] for line in head.splitlines()[2:]] == ["cpu", "working", "load"]
    assert "250/s" in head
    assert models.count("acts") == 3
    assert notes == "cache: not measured\nbandwidth: not measured\n"
    assert "Models:" not in ok(run("forecast", "--store", store))


def test_headroom(store: str):
    data = json.loads(ok(run("headroom", "--store", store, "--cores", "8", "--json")))
    cpu, memory = data["resources"]
    names = [each["name"] for each in cpu["outlook"]["predictors"]]
    assert names == ["borg", "resource-central", "n-sigma", "max", "ero", "ero-matched"]
    assert cpu["outlook"]["picked"] == "resource-central"
    assert cpu["headroom"] == pytest.approx(8 - cpu["outlook"]["peak"])
    assert cpu["outlook"]["peak"] == pytest.approx(3.0, rel=0.01)
    assert memory["outlook"]["picked"] is None  # the spike of etl was not foreseen
    shown = ok(run("headroom", "--store", store, "--cores", "8"))
    assert "selected: resource-central is the tightest predictor" in shown
    assert f"headroom: {cpu['headroom']:.2f}cores of 8.00cores" in shown


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("size", "nobody"), 5, "nobody: the store has no samples of this workload (allowed: db, etl)"),
        (("forecast", "--horizon", "1h"), 2, "look one window ahead (allowed: 60s)"),
        (("forecast", "--last", "30s"), 2, "--last 30s is less than one window (allowed: 60s or more)"),
        (("size", "--last", "soon"), 2, "allowed: more than 0, at most 36500d, such as 90s, 30m, 1h, 2d"),
        (("size", "--format", "docker"), 2, "'systemd', 'kubernetes', 'yarn'"),
        (("size", "--format", "yarn", "--json"), 2, "cannot be combined with --json"),
        (("headroom", "--cores", "0"), 2, "--cores"),
        (("headroom", "--memory", "64 GB"), 2, "followed by K, M, G or T"),
        (("headroom", "--memory", "0"), 2, "more than 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals(store: str, words: tuple[str, ...], code: int, says: str):
    result = run(*words, "--store", store)
    assert result.exit_code == code
    assert says in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_headroom_that_is_none_and_use_by_others_are_said(store: str, served: Served):
    shown = " ".join(ok(run("headroom", "--store", store, "--cores", "0.5")).split())
    assert re.search(
        r"headroom: none: a peak of \S+cores needs \S+cores more than the capacity of 0.50cores", shown
    )
    assert "the store does not contain the use of anything but" in shown
    made(Path(served.config.store_path), 700, {"db": usual(constant(1.0), constant(GIB))})
    known = served.agent.status()
    held = sum(value_or(each.sample.memory_current_bytes, 0.0) for each in known.workloads if each.sample)
    cpu = CpuAccount(8.0, lras=2.0, batch=1.0, undeclared=1.5, kernel=0.25, steal=0.25, idle=3.0)
    account = HostAccount(
        1.0, 1.0, cpu, memory_total_bytes=32.0 * GIB, memory_available_bytes=25.0 * GIB - held
    )
    served.agent.status = lambda: replace(known, host=account)  # type: ignore[method-assign]
    said = " ".join(ok(run("headroom", socket=served.socket)).split())
    assert "everything but perphd's workloads uses 2.00cores now, which is not in the store" in said
    assert "everything but perphd's workloads uses 7.0GiB now" in said


def test_a_format_is_printed(store: str):
    shown = ok(run("size", "etl", "--format", "systemd", "--store", store))
    assert shown.splitlines() == [
        "# etl: /etc/systemd/system/UNIT.service.d/50-size.conf",
        "# cpu: confidence medium: less than a week of samples",
        "# memory: confidence medium: less than a week of samples",
        "[Service]",
        "CPUQuota=106%",
        "MemoryLow=3234M",
        "MemoryHigh=3396M",
    ]


def test_too_short_a_history(tmp_path: Path):
    path = str(made(tmp_path / "short.db", 12, {"db": usual(constant(1.0), constant(GIB))}))
    shown = ok(run("size", "--store", path))
    assert "cpu: no recommendation: 12 of 60 windows: 48 more minutes of samples" in shown
    assert "db: no forecast" in ok(run("forecast", "--store", path))
    headroom = ok(run("headroom", "--store", path))
    assert "selected: none: 12 of 121 windows" in headroom
    refused = run("size", "--format", "yarn", "--store", path)
    assert refused.exit_code == 1
    assert "nothing can be recommended: 12 of 60 windows" in refused.stderr
    assert refused.stdout == ""


def test_empty_and_absent_stores_and_missing_columns(tmp_path: Path):
    open_database(tmp_path / "empty.db").close()
    for name, says in (("empty.db", "holds no samples yet"), ("none.db", "there is no store")):
        for word in ("size", "forecast", "headroom"):
            result = run(word, "--store", f"{tmp_path}/{name}")
            assert result.exit_code == 1
            assert says in result.stderr
    path = made(tmp_path / "old.db", 70, {"db": {"cpu_usage_cores": constant(1.0)}})
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE samples DROP COLUMN memory_working_set_bytes")
    connection.close()
    shown = ok(run("size", "--store", str(path)))
    assert "memory: no recommendation: the store has no such column" in shown
    assert "cpu: recommended 1.0" in shown
    ok(run("headroom", "--store", str(path)))


def test_an_old_store_says_how_old_it_is(store: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perphd.commands.sizing.time.time", lambda: START_S + 3 * 86400)
    assert "The newest sample is 1440 minutes old: 'now' and 'next' refer to" in ok(
        run("size", "--store", store)
    )


def test_the_daemon_names_store_capacity_and_reservations(served: Served):
    made(Path(served.config.store_path), 130, {"db": usual(constant(1.0), constant(GIB))})
    found: Any = json.loads(ok(run("size", "--json", socket=served.socket)))
    assert found["store"] == served.config.store_path
    cpu = found["workloads"][0]["resources"][0]
    assert cpu["reservation"] == {"amount": None, "source": "", "least": 0.0}
    assert found["missing"]["workloads[0].resources[0].reservation.amount"] == "none set"
    assert cpu["recommended"] == pytest.approx(1 / 0.95, rel=0.01)
    host = json.loads(ok(run("headroom", "--json", socket=served.socket)))
    assert [each["capacity"] for each in host["resources"]] == [8.0, 32 * GIB]


def test_a_bound_beyond_the_host_is_cut_and_said_to_be(served: Served):
    jump = {"db": usual(lambda i: 7.0 if i >= 129 else 0.05 + 0.001 * (i % 7), constant(GIB))}
    made(Path(served.config.store_path), 130, jump)
    shown = ok(run("forecast", "db", socket=served.socket))
    assert "cpu: the bound is capped at the host's capacity, 8.00cores" in shown
    assert "at most all that the host has, 8.00cores (model" in " ".join(
        ok(run("size", "db", socket=served.socket)).split()
    )
    (cpu, *_) = json.loads(ok(run("forecast", "db", "--json", socket=served.socket)))["workloads"][0][
        "series"
    ]
    assert cpu["outlook"]["next_window"]["p99"] == 8.0
    assert cpu["outlook"]["next_window"]["capped"] is True


def test_without_daemon_and_configuration_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from perphd.domain.errors import ConfigError

    def absent(**_: object) -> None:
        raise ConfigError("/etc/perphd/perphd.toml", "", "there is no such file")

    monkeypatch.setattr("perphd.config.file.load", absent)
    result = run("size", socket=f"{tmp_path}/none")
    assert result.exit_code == 1
    assert "no daemon answers" in result.stderr
    assert "name it with --store" in result.stderr


def test_without_a_daemon_the_configuration_names_store_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from perphd.config.file import parse

    made(tmp_path / "perphd.db", 130, {"db": usual(constant(1.0), constant(GIB))})
    write_tree(tmp_path / "root", TREE)
    config = parse(
        f'[daemon]\nstate_dir = "{tmp_path}"\n[tuning.host]\nroot = "{tmp_path}/root"\n'
        '[[lra]]\nname = "db"\ncgroup = "/app.slice/db.service"\n',
        "test",
    )
    monkeypatch.setattr("perphd.config.file.load", lambda **_: config)
    shown = ok(run("size", "db", socket=f"{tmp_path}/none"))
    assert "recommended 1.1GiB instead of 4.0GiB (memory.max)" in shown
    assert "cpu: could be reclaimed now: 0.9" in shown
    drop_in = ok(run("size", "db", "--format", "systemd", socket=f"{tmp_path}/none"))
    assert drop_in.startswith("# db: /etc/systemd/system/db.service.d/50-size.conf")


TREE = {
    "/proc/self/mounts": "cgroup2 /cg cgroup2 rw 0 0\n",
    "/cg/cgroup.controllers": "cpu memory",
    "/cg/app.slice/db.service/cpu.max": "200000 100000",
    "/cg/app.slice/db.service/memory.max": str(4 * GIB),
    "/cg/app.slice/db.service/memory.high": str(3 * GIB),
    "/cg/app.slice/free.service/cpu.max": "max 100000",
    "/cg/app.slice/free.service/memory.max": "max",
    "/cg/app.slice/free.service/memory.high": str(GIB),
}


def test_reservations_are_the_groups_own_limits_and_not_those_of_perphd(tmp_path: Path):
    write_tree(tmp_path, TREE)
    db = WorkloadSpec("db", Kind.LRA, "/app.slice/db.service", min_memory_bytes=GIB)
    free = WorkloadSpec("free", Kind.BATCH, "/app.slice/free.service")
    gone = WorkloadSpec("gone", Kind.BATCH, "/app.slice/gone.service", min_memory_bytes=5)
    limited = Settings(cpu_max_cores=2.0, memory_max_bytes=4 * GIB, memory_high_bytes=3 * GIB)
    specs = [(db, UNTOUCHED), (free, UNTOUCHED), (gone, UNTOUCHED)]
    place = _place("s", specs, str(tmp_path), Unavailable("not read"), simulated=False)
    found: dict[tuple[str, str], tuple[object, str, float]] = {
        (name, resource.value): (held.amount, held.source, held.least)
        for name in ("db", "free", "gone", "other")
        for resource in Resource
        for held in (place.reservation(name, resource),)
    }
    none = Unavailable("none set")
    wanted: dict[tuple[str, str], tuple[object, str, float]] = {
        ("db", "cpu"): (2.0, "cpu.max", 0.0),
        ("db", "memory"): (4 * GIB, "memory.max", GIB),
        ("free", "cpu"): (none, "", 0.0),
        ("free", "memory"): (GIB, "memory.high", 0.0),
        ("gone", "cpu"): (none, "", 0.0),
        ("gone", "memory"): (none, "", 5.0),
        ("other", "cpu"): (none, "", 0.0),
        ("other", "memory"): (none, "", 0.0),
    }
    assert found == wanted
    own = _place("s", [(db, limited)], str(tmp_path), Unavailable("not read"), simulated=False)
    assert own.reservation("db", Resource.CPU).amount == none
    assert own.reservation("db", Resource.MEMORY).amount == none
    declared = replace(db, reserved_memory_bytes=8 * GIB)
    said = _place("s", [(declared, limited)], str(tmp_path), Unavailable("not read"), simulated=False)
    assert said.reservation("db", Resource.MEMORY) == Reservation(8.0 * GIB, "reserved_memory", GIB)
    assert said.reservation("db", Resource.CPU).amount == none
    unseen = _place("s", [(db, UNTOUCHED)], "", Unavailable("not read"), simulated=True)
    assert unseen.reservation("db", Resource.CPU).source == ""


@pytest.mark.parametrize(
    ("value", "of", "shown"),
    [
        (1.4567, "cpu", "1.46cores"),
        (0.0123, "cpu", "0.012cores"),
        (0.0, "cpu", "0.00cores"),
        (1.5 * GIB, "memory", "1.5GiB"),
        (2 * GIB, "mbw_bytes_per_s", "2.0GiB/s"),
        (12345.6, "load_per_s", "12346/s"),
        (1.25, "load_per_s", "1.25/s"),
    ],
)
def test_amounts_have_a_unit_and_no_blank(value: float, of: str, shown: str):
    assert amount(value, of) == shown
