"""The control API over a real Unix socket with a fake agent behind it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import unittest.mock
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.config.workloads import read_runtime
from perphd.control.access import Access, Peer, Right, peer_of
from perphd.control.client import Client, Refused
from perphd.control.limits import ApiLimits
from perphd.control.routes import Hooks
from perphd.control.sql import Queries
from perphd.domain.errors import ConfigError, KernelError, PerphError
from perphd.domain.event import Event, EventKind
from perphd.domain.wire import encode
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.monitor.sli import told
from perphd.monitor.store import Store
from tests.unit.control_fake import (
    ADMIN,
    DB,
    MODEL,
    OWNER,
    PI,
    READER,
    ROOT,
    STRANGER,
    Served,
    decision,
    serving,
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


def ask(
    served: Served, method: str, path: str, body: bytes | dict[str, Any] | None = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(10)
    connection.sock.connect(served.socket)
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    try:
        connection.request(method, path, data)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def error_of(
    served: Served, method: str, path: str, body: bytes | dict[str, Any] | None = None
) -> dict[str, Any]:
    status, answer = ask(served, method, path, body)
    assert status >= 400, answer
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"code", "message", "key", "allowed"}
    return {"status": status, **answer["error"]}


# --- rights ----------------------------------------------------------------------------------------------------

READING = [
    ("GET", "/v1/status"),
    ("GET", "/v1/workloads"),
    ("GET", "/v1/doctor"),
    ("GET", "/v1/explain?workload=db"),
    ("GET", "/v1/config"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/db"),
    ("GET", "/v1/models/db/export"),
    ("GET", "/v1/node"),
    ("GET", "/v1/shaper"),
    ("GET", "/v1/contention"),
    ("GET", "/v1/memfit"),
]
CHANGING: list[tuple[str, str, dict[str, Any] | None]] = [
    ("PUT", "/v1/mode", {"mode": "enforce"}),
    ("POST", "/v1/pause", {}),
    ("POST", "/v1/trial", {"hours": 24}),
    ("DELETE", "/v1/trial", None),
    ("POST", "/v1/resume", {}),
    ("POST", "/v1/workloads", {"kind": "batch", "name": "new", "cgroup": "/new"}),
    ("POST", "/v1/workloads/db/sli", {"work_rate_per_s": 5}),
    ("DELETE", "/v1/workloads/db", None),
    ("PUT", "/v1/models/db", MODEL),
    ("DELETE", "/v1/models/db", None),
    ("PUT", "/v1/memfit/pi", {"samples": 30, "step": 0.07}),
    ("POST", "/v1/memfit/cache/apply", {}),
    ("DELETE", "/v1/memfit/cache", None),
    ("POST", "/v1/reserve", {}),
    ("POST", "/v1/reserve/pod/commit", {}),
    ("DELETE", "/v1/reserve/pod", None),
    ("POST", "/v1/restore", None),
    ("POST", "/v1/reload", None),
]
OF_THE_QUEUE: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/event", {"duration_s": 60, "copper_share": 0.1}),
    ("DELETE", "/v1/event", None),
]
"""These answer where there is a batch queue; this daemon has none."""


def test_every_changing_route_is_in_this_table(served: Served):
    routes = served.server._routes.table()
    assert sum(route.right is Right.CHANGE for route in routes) == len([*CHANGING, *OF_THE_QUEUE])


@pytest.mark.parametrize(("method", "path"), READING)
@pytest.mark.parametrize("peer", [ROOT, OWNER, ADMIN, READER])
def test_reading_is_for_these(served: Served, peer: Peer, method: str, path: str):
    served.peer = peer
    assert ask(served, method, path)[0] == 200


@pytest.mark.parametrize(("method", "path", "body"), CHANGING)
@pytest.mark.parametrize("peer", [ROOT, OWNER, ADMIN])
def test_changing_is_for_these(
    served: Served, peer: Peer, method: str, path: str, body: dict[str, Any] | None
):
    served.peer = peer
    if (method, path) == ("DELETE", "/v1/trial"):
        ask(served, "POST", path, {"hours": 24})
    if path.startswith("/v1/reserve"):
        wanted = {"holder": "pod", "cpu": 1, "band": "silver"}
        body = wanted | {"generation": ask(served, "GET", "/v1/node")[1]["generation"]}
        if path != "/v1/reserve":
            body = {"token": ask(served, "POST", "/v1/reserve", body)[1]["token"]}
    assert ask(served, method, path, body)[0] in (200, 201)


@pytest.mark.parametrize(("method", "path", "body"), OF_THE_QUEUE)
def test_without_a_queue_its_routes_say_so(
    served: Served, method: str, path: str, body: dict[str, Any] | None
):
    served.peer = ADMIN
    assert error_of(served, method, path, body)["key"] == "queue.enabled"


@pytest.mark.parametrize(("method", "path", "body"), [*CHANGING, *OF_THE_QUEUE])
@pytest.mark.parametrize("peer", [READER, STRANGER])
def test_changing_is_not_for_these(
    served: Served, peer: Peer, method: str, path: str, body: dict[str, Any] | None
):
    served.peer = peer
    error = error_of(served, method, path, body)
    assert (error["status"], error["code"]) == (403, "not-permitted")
    assert "perphd-admin" in error["allowed"]
    assert served.agent.calls == []


@pytest.mark.parametrize("path", ["/v1/status", "/metrics", "/v1/events", "/no/such/path"])
def test_strangers_learn_nothing(served: Served, path: str):
    served.peer = STRANGER
    assert error_of(served, "GET", path)["status"] == 403


def test_a_peer_that_the_kernel_does_not_tell_is_refused(served: Served):
    def fails(_: socket.socket) -> Peer:
        raise OSError("no credentials")

    served.server._peer_lookup = fails
    assert error_of(served, "GET", "/v1/status")["code"] == "not-permitted"


def test_credentials_of_a_real_connection(tmp_path: Path):
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
            client.connect(str(tmp_path / "s"))
            with contextlib.closing(listening.accept()[0]) as accepted:
                peer = peer_of(accepted)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    assert peer.gids == {os.getgid(), *os.getgroups()}
    assert str(peer.pid) in str(peer)


def test_groups_that_do_not_exist_give_no_right():
    access = Access.of_groups("perphd-no-such-group", "perphd-no-such-admins")
    somebody = Peer(1, 12345, frozenset({12345}))
    assert not access.allows(somebody, Right.READ)
    assert access.allows(ROOT, Right.CHANGE)
    assert "there is no group perphd-no-such-admins" in access.refusal(somebody, Right.CHANGE)


# --- reading ---------------------------------------------------------------------------------------------------


def test_status(served: Served):
    _, answer = ask(served, "GET", "/v1/status")
    assert answer.pop("clock") == {"monotonic_s": 130.0, "unix_s": 1_000_130.0}
    assert answer == encode(served.agent.status())


def test_workloads_in_the_form_of_the_configuration(served: Served):
    _, answer = ask(served, "GET", "/v1/workloads")
    assert answer["workloads"][0] == {
        "kind": "lra",
        "name": "db",
        "cgroup": "/app/db",
        "sli": {"source": "push", "max_age_s": "5"},
        "touch": "all",
        "tuning": {"exploration": "all"},
        "present": True,
        "effective_mode": "enforce",
        "added_at_run_time": False,
        "declared_by": "",
    }


def test_doctor(served: Served):
    _, answer = ask(served, "GET", "/v1/doctor")
    assert [item["name"] for item in answer["capabilities"]] == ["psi", "pmu", "cpu.weight"]
    assert answer["topology"]["online"] == "0-7"


@pytest.mark.parametrize(
    ("query", "call"),
    [
        ("", ("decisions", "db", None, 20)),
        ("&limit=1", ("decisions", "db", None, 1)),
        ("&at=-60", ("decisions", "db", 70.0, 20)),
        ("&at=1000100", ("decisions", "db", 100.0, 20)),
    ],
)
def test_explain(served: Served, query: str, call: tuple[Any, ...]):
    _, answer = ask(served, "GET", f"/v1/explain?workload=db{query}")
    assert answer["decisions"][0] == encode(decision(100.0))
    assert answer["mode"] == "enforce"
    assert served.agent.calls == [call]


@pytest.mark.parametrize(
    ("query", "key", "status"),
    [
        ("", "workload", 400),
        ("workload=nope", "workload", 404),
        ("workload=db&limit=0", "limit", 400),
        ("workload=db&limit=x", "limit", 400),
        ("workload=db&limit=1001", "limit", 400),
        ("workload=db&at=noon", "at", 400),
        ("workload=db&at=inf", "at", 400),
        ("workload=db&att=5", "att", 400),
    ],
)
def test_explain_refuses(served: Served, query: str, key: str, status: int):
    error = error_of(served, "GET", f"/v1/explain?{query}")
    assert (error["status"], error["key"]) == (status, key)
    assert error["allowed"]


def test_config_reads_like_a_file_and_hides_accounts(served: Served):
    url = {"source": "prometheus", "url": "http://me:se@cret@localhost/m", "work": "x"}
    body = {"kind": "lra", "name": "web", "cgroup": "/web", "sli": url}
    status, answer = ask(served, "POST", "/v1/workloads", body)
    assert status == 201
    assert "cret" not in json.dumps([answer, *(ask(served, "GET", path)[1] for _, path in READING)])
    _, config = ask(served, "GET", "/v1/config")
    assert config["store"]["max_size"] == "512M"
    assert config["tuning"]["policy"]["confirm_ticks"] == 2
    assert "confirm_ticks" not in config["policy"]
    assert "host" not in config, "all of its keys are in tuning"
    assert config["lra"][0]["name"] == "db"
    assert config["store_path"].endswith("perphd.db")


def test_metrics(served: Served):
    connection = Client(served.socket)
    with connection._request("GET", "metrics", None) as response:
        text = response.read().decode()
    assert 'perphd_batch_given_cores{workload="pi"} ' in text
    assert 'perphd_lra_health{workload="db",health="degraded"} 1.0' in text
    assert 'perphd_in_force_cpu_weight{workload="pi",kind="batch"} 0.0' in text
    assert 'perphd_limited{workload="pi",kind="batch",knob="memory_high_bytes"} 1.0' in text
    assert 'perphd_workload_present{workload="cache",kind="lra"} 0.0' in text
    # What is unavailable is absent, not 0.
    assert "instructions_total{" not in text
    assert 'delay_target_seconds{workload="db"' not in text


# --- the store -------------------------------------------------------------------------------------------------


def test_kernel_paths_that_are_no_utf8_are_shown_as_any_reader_takes_them(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    odd, shown = os.fsdecode(b"/cg/b\xffd"), r"/cg/b\udcffd"
    status = replace(served.agent.status(), problems=(f"{odd}: ENOENT",))
    monkeypatch.setattr(served.agent, "status", lambda: status)
    assert ask(served, "GET", "/v1/status")[1]["problems"] == [f"{shown}: ENOENT"]
    with Client(served.socket)._request("GET", "metrics", None) as response:
        assert b"perphd_problems 1.0" in response.read()
    served.agent.refuse = PerphError(f"{odd}: ENOENT")
    assert shown in error_of(served, "PUT", "/v1/mode", {"mode": "enforce"})["message"]

    async def subscribe() -> AsyncIterator[Event]:
        yield Event(1.0, EventKind.PROBLEM, f"{odd}: ENOENT")

    monkeypatch.setattr(served.agent, "subscribe", subscribe)
    told = dict(Client(served.socket).events())
    assert told["problem"]["text"] == f"{shown}: ENOENT"


def test_query(served: Served):
    with contextlib.closing(Store(served.config.store_path, 1e6, 1 << 30)) as store:
        store.start()
        for n in range(3):
            store.add_event(float(n), "mode", f"event {n}")
    body = {"sql": "SELECT wall_s, data, x'ff' AS b, 9e999 AS i FROM events", "limit": 2}
    _, answer = ask(served, "POST", "/v1/query", body)
    assert answer == {
        "columns": ["wall_s", "data", "b", "i"],
        "rows": [[0.0, "event 0", "ff", "inf"], [1.0, "event 1", "ff", "inf"]],
        "truncated": True,
    }
    error = error_of(served, "POST", "/v1/query", {"sql": "DELETE FROM events"})
    assert (error["status"], error["key"]) == (400, "sql")


@pytest.mark.parametrize(
    "body", [{}, {"sql": 5}, {"sql": " "}, {"sql": "SELECT 1", "limit": 0}, {"sql": "SELECT 1", "x": 1}]
)
def test_query_refuses(served: Served, body: dict[str, Any]):
    assert error_of(served, "POST", "/v1/query", body)["status"] == 400


# --- changing --------------------------------------------------------------------------------------------------


def test_mode(served: Served):
    _, answer = ask(served, "PUT", "/v1/mode", {"mode": "observe"})
    assert answer == {"mode": "observe", "workload": None, "configured_mode": "observe", "paused": False}
    ask(served, "PUT", "/v1/mode", {"mode": "enforce", "workload": "db"})
    assert served.agent.calls == [("set_mode", Mode.OBSERVE, None), ("set_mode", Mode.ENFORCE, "db")]


def test_pause_and_resume_say_who_asked(served: Served):
    _, answer = ask(served, "POST", "/v1/pause", {"workload": "db", "for_s": 60, "reason": "upgrade"})
    assert (answer["pause"]["workload"], answer["pause"]["until_unix_s"]) == ("db", 1060.0)
    assert served.agent.by is not None
    assert (served.agent.by.uid, served.agent.by.pid) == (0, 1)
    _, answer = ask(served, "POST", "/v1/resume", {})
    assert [item["workload"] for item in answer["ended"]] == ["db"]
    assert served.agent.calls == [("pause", "db", 60.0, "upgrade"), ("resume", None)]


@pytest.mark.parametrize(
    ("body", "status", "key"),
    [
        ({"workload": "nope"}, 404, "workload"),
        ({"for_s": 0}, 400, "for_s"),
        ({"for_s": -1}, 400, "for_s"),
        ({"for_s": "1h"}, 400, "for_s"),
        ({"for_s": 1e12}, 400, "for_s"),
        ({"reason": 5}, 400, "reason"),
        ({"reason": "x" * 501}, 400, "reason"),
        ({"force": True}, 400, "force"),
    ],
)
def test_pause_refuses(served: Served, body: dict[str, Any], status: int, key: str):
    error = error_of(served, "POST", "/v1/pause", body)
    assert (error["status"], error["key"]) == (status, key)
    assert "reading" not in error["message"]
    assert served.agent.calls == []


@pytest.mark.parametrize(
    ("body", "status", "key"),
    [
        ({}, 400, "mode"),
        ({"mode": "on"}, 400, "mode"),
        ({"mode": ["observe"]}, 400, "mode"),
        ({"mode": "observe", "workload": "nope"}, 404, "workload"),
        ({"mode": "observe", "workload": ["db"]}, 404, "workload"),
        ({"mode": "observe", "force": True}, 400, "force"),
    ],
)
def test_mode_refuses(served: Served, body: dict[str, Any], status: int, key: str):
    error = error_of(served, "PUT", "/v1/mode", body)
    assert (error["status"], error["key"]) == (status, key)
    assert error["allowed"]


def test_add_and_remove_a_workload(served: Served):
    body = {"kind": "batch", "name": "new", "cgroup": "/absent/new", "min_memory": "1G"}
    status, answer = ask(served, "POST", "/v1/workloads", body)
    assert status == 201
    assert answer["warnings"] == ["new is waited for"]
    spec = WorkloadSpec("new", Kind.BATCH, "/absent/new", min_memory_bytes=1 << 30)
    state_dir = served.config.daemon.state_dir
    assert [item.spec for item in read_runtime(state_dir)] == [spec]
    assert ask(served, "GET", "/v1/workloads")[1]["workloads"][-1]["added_at_run_time"]
    assert ask(served, "DELETE", "/v1/workloads/new")[1] == {
        "removed": "new",
        "kind": "batch",
        "warnings": [],
    }
    assert served.agent.calls == [("add_workload", spec), ("remove_workload", "new")]
    assert read_runtime(state_dir) == ()


def test_what_is_looked_for_can_be_removed_and_what_was_found_for_it_cannot(served: Served):
    jobs = WorkloadSpec("jobs", Kind.BATCH, "", match="unit:job@*.service")
    found = replace(jobs, name="jobs.1", cgroup="/job@1.service")
    served.agent.declared = (jobs,)
    served.agent.specs["jobs.1"] = found
    again = {"kind": "batch", "name": "jobs", "match": "unit:*.service"}
    error = error_of(served, "POST", "/v1/workloads", again)
    assert (error["status"], error["key"]) == (409, "batch.name")
    mode = {"mode": "observe", "workload": "jobs"}
    assert ask(served, "PUT", "/v1/mode", mode)[1].items() >= mode.items()
    assert served.agent.calls.pop() == ("set_mode", Mode.OBSERVE, "jobs")
    error = error_of(served, "DELETE", "/v1/workloads/jobs.1")
    assert (error["status"], error["allowed"]) == (409, "jobs")
    assert "found for 'jobs' (unit:job@*.service)" in error["message"]
    assert served.agent.calls == []
    assert ask(served, "DELETE", "/v1/workloads/jobs")[1]["removed"] == "jobs"
    assert served.agent.calls == [("remove_workload", "jobs")]
    assert "jobs.1" not in served.agent.specs


def test_a_process_is_a_workload_until_the_daemon_ends(served: Served):
    body = {"kind": "batch", "name": "new", "match": "pid:77"}
    status, answer = ask(served, "POST", "/v1/workloads", body)
    assert status == 201
    assert answer["warnings"] == ["pid:77 is forgotten when perphd restarts"]
    assert read_runtime(served.config.daemon.state_dir) == ()
    assert ask(served, "GET", "/v1/workloads")[1]["workloads"][-1]["added_at_run_time"]
    assert ask(served, "DELETE", "/v1/workloads/new")[1]["warnings"] == []


def test_a_declaration_of_the_other_kind_is_not_removed_by_mistake(served: Served):
    """What was found for it has names of its own: its kind is told by the declaration."""
    jobs = WorkloadSpec("jobs", Kind.BATCH, "", match="cgroup:/jobs/*")
    served.agent.declared = (jobs,)
    served.agent.specs["jobs.a"] = replace(jobs, name="jobs.a", cgroup="/jobs/a")
    error = error_of(served, "DELETE", "/v1/workloads/jobs?kind=lra")
    assert (error["status"], error["code"]) == (404, "not-found")
    assert "'jobs' is declared as batch: perphctl batch rm jobs" in error["message"]
    assert error_of(served, "DELETE", "/v1/workloads/jobs?kind=slice")["code"] == "refused"
    assert error_of(served, "DELETE", "/v1/workloads/jobs?sort=lra")["status"] == 400
    assert served.agent.calls == []
    status, answer = ask(served, "DELETE", "/v1/workloads/jobs?kind=batch")
    assert (status, answer["kind"]) == (200, "batch")
    assert not list(served.agent.declared)


def test_removing_a_declared_workload_says_that_it_comes_back(served: Served):
    _, answer = ask(served, "DELETE", "/v1/workloads/pi")
    assert "the next reload adds it again" in answer["warnings"][0]


@pytest.mark.parametrize(
    ("body", "status", "key"),
    [
        ({"name": "x", "cgroup": "/x"}, 400, "kind"),
        ({"kind": "lr", "name": "x", "cgroup": "/x"}, 400, "kind"),
        ({"kind": "lra", "cgroup": "/x"}, 400, "lra.name"),
        ({"kind": "lra", "name": "x", "cgroup": "/x/../y"}, 400, "lra.cgroup"),
        ({"kind": "lra", "name": "x", "cgroup": "/\ud800"}, 400, "lra.cgroup"),
        ({"kind": "lra", "name": "x", "cgroup": "/x", "tolerance_pct": 0}, 400, "lra.tolerance_pct"),
        ({"kind": "batch", "name": "x", "cgroup": "/x", "min_memory": "100 "}, 400, "batch.min_memory"),
        ({"kind": "lra", "name": "x", "cgroup": "/x", "toleranz": 5}, 400, "lra.toleranz"),
        ({"kind": "lra", "name": "db", "cgroup": "/x"}, 409, "lra.name"),
        ({"kind": "lra", "name": "x", "cgroup": DB.cgroup}, 409, "lra.cgroup"),
        ({"kind": "batch", "name": "x", "cgroup": f"{PI.cgroup}/in"}, 409, "batch.cgroup"),
        ({"kind": "batch", "name": "x", "cgroup": "/system/perphd"}, 400, "cgroup"),
    ],
)
def test_add_refuses(served: Served, body: dict[str, Any], status: int, key: str):
    error = error_of(served, "POST", "/v1/workloads", body)
    assert (error["status"], error["key"]) == (status, key)
    assert served.agent.calls == []
    assert read_runtime(served.config.daemon.state_dir) == ()


def test_a_file_that_tells_the_version_takes_root(served: Served):
    body = {
        "kind": "lra",
        "name": "x",
        "cgroup": "/x",
        "tuning": {"version_from": "file:/etc/mysql/password"},
    }
    served.peer = ADMIN
    error = error_of(served, "POST", "/v1/workloads", body)
    assert (error["code"], error["key"]) == ("not-permitted", "lra.tuning.version_from")
    assert read_runtime(served.config.daemon.state_dir) == ()
    assert (
        ask(served, "POST", "/v1/workloads", body | {"tuning": {"version_from": "label:version"}})[0] == 201
    )
    served.peer = ROOT
    assert ask(served, "POST", "/v1/workloads", body | {"name": "y", "cgroup": "/y"})[0] == 201


@pytest.mark.parametrize(
    "sli",
    [
        {"source": "command", "command": "/bin/true"},
        {"source": "file", "path": "/etc/shadow"},
        {"source": "redis", "host": "elsewhere", "password_file": "/root/.secret"},
    ],
)
def test_what_would_act_with_roots_rights_takes_root(served: Served, sli: dict[str, str]):
    body = {"kind": "lra", "name": "x", "cgroup": "/x", "sli": sli}
    served.peer = ADMIN
    assert error_of(served, "POST", "/v1/workloads", body)["code"] == "not-permitted"
    served.peer = ROOT
    assert ask(served, "POST", "/v1/workloads", body)[0] == 201


def test_a_workload_that_the_agent_refuses_is_not_remembered(served: Served):
    served.agent.refuse = ConfigError("agent", "cgroup", "is refused")
    body = {"kind": "batch", "name": "new", "cgroup": "/new"}
    assert error_of(served, "POST", "/v1/workloads", body)["status"] == 400
    assert read_runtime(served.config.daemon.state_dir) == ()


def test_push(served: Served):
    ask(served, "POST", "/v1/workloads/db/sli", {"work_rate_per_s": 5, "latency_p95_ms": 7.5})
    assert served.agent.calls == [("push_sli", "db", told({"work_rate_per_s": 5.0, "latency_p95_ms": 7.5}))]


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("db", {}, 400),
        ("db", {"work_rate_per_s": -1}, 400),
        ("db", {"work_rate_per_s": "5"}, 400),
        ("db", {"work_rate_per_s": True}, 400),
        ("db", {"work": 5}, 400),
        ("cache", {"work_rate_per_s": 5}, 409),
        ("nope", {"work_rate_per_s": 5}, 404),
    ],
)
def test_push_refuses(served: Served, name: str, body: dict[str, Any], status: int):
    assert error_of(served, "POST", f"/v1/workloads/{name}/sli", body)["status"] == status


def test_restore(served: Served):
    status, answer = ask(served, "POST", "/v1/restore")
    assert (status, answer) == (200, encode(served.agent.restored))


def test_reload(served: Served):
    _, answer = ask(served, "POST", "/v1/reload")
    assert answer["warnings"] == ["odd"]
    assert answer["workloads"] == ["db", "cache", "pi"]
    served.reloads.append(ConfigError("perphd.toml", "daemon.mode", "is wrong", "observe"))
    error = error_of(served, "POST", "/v1/reload")
    assert (error["status"], error["key"], error["allowed"]) == (400, "daemon.mode", "observe")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (PerphError("the journal is full"), "the journal is full"),
        (KernelError("/sys/x", "write", 28, "5"), "/sys/x"),
        (RuntimeError("a bug with /root/secret"), "its log has the details"),
    ],
)
def test_failures_are_told_without_inner_matters(served: Served, failure: Exception, words: str):
    served.agent.refuse = failure
    error = error_of(served, "POST", "/v1/restore")
    assert (error["status"], error["code"]) == (500, "failed")
    assert words in error["message"]
    assert "secret" not in error["message"]


# --- bad clients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"5",
        b'"x"',
        b'{"mode": NaN}',
        b"[" * 20_000,
        b'{"mode": 1' + b"0" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_object(served: Served, body: bytes):
    assert error_of(served, "PUT", "/v1/mode", body)["status"] == 400


def test_an_oversized_body(served: Served):
    error = error_of(served, "PUT", "/v1/mode", b'{"mode": "' + b"x" * 600_000 + b'"}')
    assert (error["status"], error["code"]) == (413, "too-large")
    assert "524288" in error["allowed"]


def test_unknown_routes_and_methods(served: Served):
    assert error_of(served, "GET", "/v2/status")["code"] == "no-route"
    error = error_of(served, "DELETE", "/v1/mode")
    assert (error["status"], error["allowed"]) == (405, "PUT")


def raw(served: Served, data: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        client.settimeout(10)
        client.connect(served.socket)
        client.sendall(data)
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
    return answer


def test_no_http_at_all(served: Served):
    assert raw(served, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.")
    assert ask(served, "GET", "/v1/status")[0] == 200


SHORT = ApiLimits(
    idle_s=0.1,
    body_s=0.1,
    write_s=0.3,
    shutdown_s=0.2,
    heartbeat_s=0.05,
    connections=4,
    reserved=0,
    streams=1,
)


def test_clients_that_do_not_finish(tmp_path: Path):
    with serving(tmp_path, SHORT) as served:
        assert raw(served, b"") == b""
        assert raw(served, b"GET /v1/sta") == b""
        body = b"PUT /v1/mode HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
        assert b'"timeout"' in raw(served, body)
        assert ask(served, "GET", "/v1/status")[0] == 200


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path):
    with serving(tmp_path, SHORT) as served:
        for n in range(3000):
            served.agent.specs[f"w{n}"] = WorkloadSpec(f"w{n}", Kind.BATCH, f"/b/{n}")
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
            client.settimeout(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(served.socket)
            client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
            gone = threading.Event()
            while not gone.wait(0.05):
                if not served.server._runner.server.connections:  # type: ignore[union-attr]
                    gone.set()
        served.agent.specs = {"db": DB}
        assert ask(served, "GET", "/v1/status")[0] == 200


def test_too_many_connections(tmp_path: Path):
    with (
        serving(tmp_path, ApiLimits(connections=2, reserved=0, shutdown_s=0.2)) as served,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.connect(served.socket)
        answer = raw(served, b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"503" in answer.splitlines()[0]
        assert b'"busy"' in answer


@pytest.mark.parametrize(
    "sent", [b"\x00\xff\r\n\r\n", b"GET /v1/x\x00 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n: \r\n\r\n"]
)
def test_what_is_no_http_is_refused_and_fills_no_log(
    served: Served, sent: bytes, caplog: pytest.LogCaptureFixture
):
    assert b" 400 " in raw(served, sent).splitlines()[0]
    assert not caplog.records


def test_no_answer_takes_more_memory_than_it_may(served: Served):
    """Cells of no length take memory all the same: many short ones are many."""
    with contextlib.closing(Store(served.config.store_path, 1e6, 1 << 30)) as store:
        store.start()
        store.add_event(1.0, "mode", "event")
    rows = "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a LIMIT 100000)"
    wide = {"sql": f"{rows} SELECT {','.join(['NULL'] * 1900)} FROM a", "limit": 100_000}
    answer = ask(served, "POST", "/v1/query", wide)[1]
    assert answer["truncated"], answer
    assert 1 < len(answer["rows"]) * 1900 * 48 < 20 << 20


def test_readers_cannot_take_all_connections_from_the_administrators(tmp_path: Path):
    limits = ApiLimits(connections=4, reserved=2, shutdown_s=0.2)
    with serving(tmp_path, limits) as served, contextlib.ExitStack() as stack:
        served.peer = READER
        for _ in range(2):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.connect(served.socket)
        status = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert b"503" in raw(served, status).splitlines()[0]
        served.peer = ADMIN
        assert b"200" in raw(served, status).splitlines()[0]


def test_readers_cannot_take_all_event_streams_and_queries_from_the_administrators(tmp_path: Path):
    busy, free = threading.Semaphore(0), threading.Event()

    def held(self: Queries, job: object, most_s: float) -> bytes:
        busy.release()
        assert free.wait(30)
        return b"{}"

    limits = ApiLimits(streams=2, reserved_streams=1, queries=2, reserved_queries=1, shutdown_s=0.2)
    with (
        serving(tmp_path, limits) as served,
        unittest.mock.patch.object(Queries, "_run", held),
        ThreadPoolExecutor(2) as pool,
    ):
        served.peer = READER
        streams = [Client(served.socket).events()]
        next(streams[0])
        with pytest.raises(Refused, match="1 event streams are open already"):
            next(Client(served.socket).events())
        asked = [pool.submit(Client(served.socket).send, "POST", "query", {"sql": "SELECT 1"})]
        assert busy.acquire(timeout=10)
        try:
            with pytest.raises(Refused, match="1 queries are running already"):
                Client(served.socket).send("POST", "query", {"sql": "SELECT 1"})
            served.peer = ADMIN
            streams.append(Client(served.socket).events())
            assert next(streams[1])[0] == "hello"
            asked.append(pool.submit(Client(served.socket).send, "POST", "query", {"sql": "SELECT 1"}))
            assert busy.acquire(timeout=30)
        finally:
            free.set()
        assert [one.result() for one in asked] == [{}, {}]
        for stream in streams:
            stream.close()


# --- events ----------------------------------------------------------------------------------------------------


def test_events(served: Served):
    stream = Client(served.socket).events()
    assert next(stream) == ("hello", {"clock": {"monotonic_s": 130.0, "unix_s": 1_000_130.0}})
    name, data = next(stream)
    assert (name, data["workload"], data["detail"]) == ("decision", "db", encode(decision(100.0)))
    assert next(stream)[0] == "tick"
    stream.close()


def test_events_can_be_chosen(served: Served):
    stream = Client(served.socket).events(kind="tick,problem")
    assert [next(stream)[0] for _ in range(2)] == ["hello", "tick"]
    stream.close()
    with pytest.raises(Refused, match="is not a kind of event"):
        next(Client(served.socket).events(kind="tik"))


def test_streams_end_with_the_daemon(tmp_path: Path):
    with serving(tmp_path) as served:
        stream = Client(served.socket).events()
        assert [next(stream)[0] for _ in range(3)] == ["hello", "decision", "tick"]
    assert list(stream) == []


def test_too_many_streams_and_a_left_one_makes_room(tmp_path: Path):
    with serving(tmp_path, SHORT) as served:
        first = Client(served.socket).events()
        next(first)
        with pytest.raises(Refused, match="event streams are open already"):
            next(Client(served.socket).events())
        first.close()
        for _ in range(200):
            again = Client(served.socket).events()
            try:
                assert next(again)[0] == "hello"
                break
            except Refused:
                threading.Event().wait(0.02)
        else:
            pytest.fail("the stream that was left is still counted")
        again.close()
    assert served.agent.subscribers == set()


# --- models ----------------------------------------------------------------------------------------------------


def test_models_are_listed_shown_and_exported(served: Served):
    status, answer = ask(served, "GET", "/v1/models")
    assert (status, answer["models"][0]["lra"]) == (200, "db")
    status, answer = ask(served, "GET", "/v1/models/db")
    assert (status, len(answer["lattice"])) == (200, 2)
    status, answer = ask(served, "GET", "/v1/models/db/export")
    assert (status, answer["format"]) == (200, "perphd-model")


def test_a_model_is_imported_and_reset(served: Served):
    status, answer = ask(served, "PUT", "/v1/models/db?rename=1", MODEL)
    assert (status, answer) == (200, {"imported": "db", "warnings": ["it was learned on node1"]})
    name, lra, file, rename = served.agent.calls[-1]
    assert (name, lra, rename) == ("import_model", "db", True)
    assert file.provenance.lra == "db"
    assert ask(served, "DELETE", "/v1/models/db") == (200, {"reset": "db"})
    assert served.agent.calls[-1] == ("reset_model", "db")


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/models/db", b"", 400, "not JSON"),
        ("/v1/models/db", b"\xff\xfe", 400, "not JSON"),
        ("/v1/models/db", b"{}", 400, "not a perphd model"),
        ("/v1/models/db", MODEL | {"version": 9}, 400, "version is 9"),
        ("/v1/models/db", MODEL | {"sha256": ""}, 400, "checksum is wrong"),
        ("/v1/models/db?rename=maybe", MODEL, 400, "neither 0 nor 1"),
        ("/v1/models/db?name=x", MODEL, 400, "unknown key"),
        ("/v1/models/pi", MODEL, 400, "'pi' is batch"),
        ("/v1/models/nope", MODEL, 404, "no workload 'nope'"),
        ("/v1/models/db", b"x" * 600_000, 413, "too large"),
    ],
)
def test_imports_that_are_refused(
    served: Served, path: str, body: bytes | dict[str, Any], status: int, says: str
):
    error = error_of(served, "PUT", path, body)
    assert error["status"] == status
    assert says in error["message"]
    assert served.agent.calls == []


@pytest.mark.parametrize("path", ["/v1/models/nope", "/v1/models/nope/export"])
def test_models_that_do_not_exist(served: Served, path: str):
    assert error_of(served, "GET", path)["code"] == "not-found"


def test_workloads_of_a_simulated_host_are_not_sought_on_this_machine():
    spec = WorkloadSpec("b", Kind.BATCH, "/no-such-group")
    assert Hooks.of_host(simulated=True).check_host([spec]) == ()
    assert any("does not exist" in warning for warning in Hooks.of_host().check_host([spec]))


@pytest.mark.parametrize("digits", ["1" + "0" * 400, "1e400"], ids=["integer", "float"])
@pytest.mark.parametrize("key", ["hours", "seed"])
def test_a_trial_refuses_numbers_beyond_all_floats(served: Served, key: str, digits: str):
    body = f'{{"hours": 24, "{key}": {digits}}}'.encode()
    assert error_of(served, "POST", "/v1/trial", body)["status"] == 400
