"""Jobs over the control socket: who may submit, see and cancel, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perphd.commands.cli import cli
from perphd.control.client import Client, NotPermitted, Refused, Unreachable
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.queue_routes import _number
from tests.unit.control_fake import ADMIN, READER, ROOT, SUBMITTER, Served, serving
from tests.unit.queue_world import GIB, World

ODD = "$(id); `id` 'x' \"y\" ü"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, ApiLimits(shutdown_s=0.5, rest=0.0)) as server:
        server.agent.queue = World(tmp_path / "host").daemon()
        server.peer = SUBMITTER
        yield server
        server.agent.queue.close()


def submit(served: Served, **body: Any) -> int:
    (number,) = Client(served.socket).send("POST", "jobs", {"command": ["true"], **body})["jobs"]
    assert isinstance(number, int)
    return number


def test_a_submitted_job_has_what_was_given_and_belongs_to_the_peer(served: Served) -> None:
    number = submit(
        served, name=ODD, command=["sh", "-c", ODD], cores=2, memory_bytes=2 * GIB, deadline_in_s=600, retries=2,
        environment={"A": ODD}, directory="/srv", output="/srv/out",
    )  # fmt: skip
    row = Client(served.socket).get(f"jobs/{number}")["job"]
    assert (row["name"], row["state"]) == (ODD, "queued")
    detail = row["detail"]
    assert detail["command"] == ["sh", "-c", ODD]
    assert (detail["user"], detail["cpus"], detail["memory_bytes"]) == ("1004", 2, 2 * GIB)
    assert served.agent.queue is not None
    job = served.agent.queue.find(number)
    assert job is not None
    assert (job.spec.uid, job.spec.gid, job.spec.groups) == (1004, 1004, (501, 503, 1004))
    assert (job.spec.limited, job.spec.environment) == (True, (("A", ODD),))


def test_readers_look_and_only_the_group_submits(served: Served) -> None:
    number = submit(served, name="mine")
    served.peer = READER
    with pytest.raises(NotPermitted, match="member of group batch"):
        submit(served)
    (row,) = Client(served.socket).get("jobs")["jobs"]
    assert row == {"id": number, "name": "mine", "state": "queued", "detail": None}
    with pytest.raises(NotPermitted):
        Client(served.socket).send("DELETE", f"jobs/{number}")
    served.peer = ADMIN
    assert Client(served.socket).get("jobs")["jobs"][0]["detail"]["user"] == "1004"
    assert Client(served.socket).send("DELETE", f"jobs/{number}")["state"] == "cancelled"
    with pytest.raises(Refused, match="has ended already"):
        Client(served.socket).send("DELETE", f"jobs/{number}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"command": []}, "there is no command"),
        ({"command": ["a\0b"]}, "not contain NUL"),
        ({"name": "two\nlines"}, "one line"),
        ({"cores": 0}, "0.01"),
        ({"cores": 9}, "more CPUs than the host has"),
        ({"memory_bytes": 17 * GIB}, "a copper job of 17.0 GiB never starts"),
        ({"elastic": [3, 2]}, "least first"),
        ({"elastic": [2]}, "least first"),
        ({"elastic": [0, 3]}, "from 1 to 256"),
        ({"elastic": [9, 9]}, "no room for 9"),
        ({"elastic": [1, 2], "array": 2}, "both an array and elastic"),
        ({"environment": {"A=B": "c"}}, "not be empty or contain ="),
        ({"band": "gold"}, "copper, silver"),
        ({"after": [99]}, "there is no job 99"),
        ({"array": 10_001}, "10000"),
        (
            {"array": 10_000, "name": "x" * 60, "environment": {"A": "y" * 100_000}},
            "array: the jobs .* bytes together",
        ),
        ({"elastic": [1, 256], "environment": {"A": "y" * 300_000}}, "elastic: the jobs .* bytes together"),
        ({"colour": "red"}, "unknown key"),
        ({"hints": "yes"}, "hints: 'yes' is not accepted .*true or false"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_no_job(
    served: Served, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        submit(served, **body)
    assert Client(served.socket).get("jobs")["jobs"] == []


def test_workers_of_an_elastic_job_know_their_place_and_strangers_no_slots(served: Served) -> None:
    body = {"command": ["true"], "elastic": [2, 3], "name": "pool"}
    first, second, third = Client(served.socket).send("POST", "jobs", body)["jobs"]
    assert (second, third) == (first + 1, first + 2)
    row = Client(served.socket).get(f"jobs/{third}")["job"]
    assert (row["name"], row["detail"]["elastic"], row["detail"]["array"]) == ("pool[2]", [2, 3], [2, 3])
    found = Client(served.socket).get(f"jobs/{third}/slots")
    assert (found["job"], found["slots"]) == (first, {"granted": 0, "least": 2, "most": 3})
    with pytest.raises(Refused, match="is not elastic"):
        Client(served.socket).get(f"jobs/{submit(served)}/slots")
    served.peer = READER
    with pytest.raises(NotPermitted, match="belongs to another user"):
        Client(served.socket).get(f"jobs/{third}/slots")


def test_silver_is_for_administrators(served: Served) -> None:
    with pytest.raises(NotPermitted, match="only administrators"):
        submit(served, band="silver")
    served.peer = ROOT
    assert submit(served, band="silver") == 1


def test_an_array_is_stored_whole_and_ten_thousand_jobs_are_listed_in_parts(served: Served) -> None:
    answer = Client(served.socket).send("POST", "jobs", {"command": ["true"], "name": "a", "array": 10_000})
    assert answer["jobs"] == list(range(1, 10_001))
    data = Client(served.socket).get("jobs", limit=100)
    assert len(data["jobs"]) == 100
    assert data["queue"]["counts"] == {"queued": 10_000}
    assert data["jobs"][7]["name"] == "a[7]"


def test_without_a_queue_it_says_how_to_get_one(served: Served) -> None:
    assert served.agent.queue is not None
    served.agent.queue.close()
    queue, served.agent.queue = served.agent.queue, None
    with pytest.raises(Refused, match="the batch queue is off") as refused:
        Client(served.socket).get("jobs")
    assert refused.value.error["key"] == "queue.enabled"
    served.agent.queue = queue


def test_a_waiting_command_outlives_a_restart_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([_late(), _row("running"), _gone(), _gone(), _late(), _row("done")])
    assert _waited(answers, monkeypatch).exit_code == 0
    assert next(answers, None) is None


def test_where_no_daemon_is_at_first_or_for_long_a_waiting_command_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _waited(iter([_gone()]), monkeypatch).exit_code == 3
    started = [_row("running")]
    assert _waited(itertools.chain(started, itertools.repeat(_gone())), monkeypatch).exit_code == 3


def test_a_waiting_command_outlives_a_daemon_that_has_too_many_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _waited(iter([_busy(), _row("running"), _busy(), _row("done")]), monkeypatch).exit_code == 0
    assert _waited(itertools.repeat(_busy()), monkeypatch).exit_code == 1


def _busy() -> Refused:
    return Refused(503, {"code": "busy", "message": "64 requests are waiting already; try again"})


def _late() -> Unreachable:
    exc = Unreachable("it took too long")
    exc.__cause__ = TimeoutError()
    return exc


def _gone() -> Unreachable:
    exc = Unreachable("no daemon answers")
    exc.__cause__ = FileNotFoundError()
    return exc


def _row(state: str) -> dict[str, Any]:
    return {"job": {"id": 1, "name": "a", "state": state, "detail": None}}


def _waited(answers: Iterator[Any], monkeypatch: pytest.MonkeyPatch) -> Result:
    """What ``perphctl wait 1`` does with these answers; a second passes between any two looks at the clock."""

    def get(_client: Client, _route: str, **_query: object) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = itertools.count()
    monkeypatch.setattr(Client, "get", get)
    monkeypatch.setattr("perphd.commands.jobs.time.sleep", lambda _s: None)
    monkeypatch.setattr("perphd.commands.jobs.time.monotonic", lambda: float(next(clock)))
    return CliRunner().invoke(cli, ["wait", "1"])


@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["positive", "negative"])
def test_a_number_beyond_all_floats_is_refused(number: int):
    with pytest.raises(ApiError) as refused:
        _number(number, "cores", 0.0, 1.0)
    assert refused.value.code is Code.REFUSED
