"""The control API against its own description: fuzzed through the Unix socket, it answers as it is described."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from requests.adapters import HTTPAdapter
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

from perphd.control import openapi
from perphd.control.access import Peer, Right
from perphd.control.limits import ApiLimits
from perphd.control.openapi_operations import OPERATIONS as OPERATIONS_OF_ROUTES
from tests.unit.control_fake import READER, ROOT, STRANGER, Served, serving
from tests.unit.queue_world import World

STREAMS = ("/v1/events", "/v1/recording")
SCHEMA = schemathesis.openapi.from_dict(openapi.document())
OPERATIONS = [(method, path) for method, path in OPERATIONS_OF_ROUTES if path not in STREAMS]
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
QUICK = settings(
    max_examples=5,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class _Unix(HTTPAdapter):
    """Every request goes to one Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> urllib3.HTTPConnectionPool:
        return _Pool(self._path)


class _Pool(urllib3.HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._socket_path = path

    def _new_conn(self) -> Any:
        connection = urllib3.connection.HTTPConnection("localhost", timeout=20)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(20)
        line.connect(self._socket_path)
        connection.sock = line
        return connection


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("api"), ApiLimits(shutdown_s=0.5)) as server:
        server.agent.queue = World(tmp_path_factory.mktemp("queue")).daemon()
        yield server
        server.agent.queue.close()


@pytest.fixture(scope="module")
def session(served: Served) -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.mount("http://localhost/", _Unix(served.socket))
        yield found


def _case(method: str, path: str, data: st.DataObject) -> schemathesis.Case:
    """A request as described, or one that is not; about something that exists as often as not."""
    operation = SCHEMA[path][method]
    good = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    bad = operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
    case: schemathesis.Case = data.draw(good | bad)
    name = data.draw(st.sampled_from(["db", "cache", "pi", ""]))
    if name and "name" in case.path_parameters:
        case.path_parameters["name"] = name
    if name and "workload" in case.query:
        case.query["workload"] = name
    return case


def _digest(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_description_is_of_these_routes(served: Served) -> None:
    routes = {(r.method, r.path): (r.right is Right.CHANGE, r.status) for r in served.server._routes.table()}
    assert {key: (o.changes, o.status) for key, o in OPERATIONS_OF_ROUTES.items()} == routes


def test_what_is_kept_is_what_is_served(session: requests.Session) -> None:
    kept = (Path(__file__).parents[2] / "docs" / "openapi.json").read_text()
    anew = "write it anew: python -m perphd.control.openapi > docs/openapi.json"
    assert kept == openapi.text(), anew
    assert session.get("http://localhost/v1/openapi.json").text == kept


GOOD: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/v1/status", {}),
    ("GET", "/v1/workloads", {}),
    ("GET", "/v1/doctor", {}),
    ("GET", "/v1/explain", {"query": {"workload": "db"}}),
    ("GET", "/v1/whatif", {"query": {"add": "batch:cpu=4,mem=8G"}}),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/models/{name}", {"path_parameters": {"name": "db"}}),
    ("GET", "/v1/models/{name}/export", {"path_parameters": {"name": "db"}}),
    ("GET", "/v1/config", {}),
    ("GET", "/v1/metrics", {}),
    ("PUT", "/v1/mode", {"body": {"mode": "observe"}}),
    ("POST", "/v1/workloads", {"body": {"kind": "batch", "name": "more", "cgroup": "/more"}}),
    ("DELETE", "/v1/workloads/{name}", {"path_parameters": {"name": "more"}}),
    ("POST", "/v1/restore", {}),
    ("POST", "/v1/reload", {}),
]


def test_good_questions_get_answers_as_described(served: Served, session: requests.Session) -> None:
    """Without this, a description could be right of refusals alone."""
    for method, path, parts in GOOD:
        case = SCHEMA[path][method].Case(**parts, media_type="application/json" if "body" in parts else None)
        response = case.call(base_url="http://localhost", session=session)
        assert response.status_code in (200, 201), (path, response.text)
        case.validate_response(response, checks=CHECKS)


def test_an_answer_that_is_not_as_described_is_found(session: requests.Session) -> None:
    case = SCHEMA["/v1/models"]["GET"].Case()
    response = SCHEMA["/v1/status"]["GET"].Case().call(base_url="http://localhost", session=session)
    with pytest.raises(FailureGroup) as found:
        case.validate_response(response, checks=CHECKS)
    assert any("models" in str(failure) for failure in found.value.exceptions)


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part.strip("/"))
@given(data=st.data())
@QUICK
def test_whatever_is_asked_the_answer_is_as_described(
    session: requests.Session, method: str, path: str, data: st.DataObject
) -> None:
    case = _case(method, path, data)
    response = case.call(base_url="http://localhost", session=session)
    case.validate_response(response, checks=CHECKS)


@given(data=st.data(), operation=st.sampled_from(OPERATIONS), peer=st.sampled_from([READER, STRANGER]))
@settings(QUICK, max_examples=25)
def test_nothing_that_others_send_changes_anything(
    served: Served, session: requests.Session, data: st.DataObject, operation: tuple[str, str], peer: Peer
) -> None:
    directory = Path(served.socket).parent
    before, calls = _digest(directory), list(served.agent.calls)
    served.peer = peer
    try:
        case = _case(*operation, data)
        response = case.call(base_url="http://localhost", session=session)
    finally:
        served.peer = ROOT
    if OPERATIONS_OF_ROUTES[operation].changes or peer is STRANGER:
        assert response.status_code == 403
        assert list(served.agent.calls) == calls
    assert _digest(directory) == before


EVIL = [
    "../etc",
    "a/b",
    "/abs",
    ".hidden",
    "a\nb",
    "a\x00b",
    "a b",
    "-rf",
    "$(id)",
    "`id`",
    ";reboot",
    "a\u202eb",
    "é",
    "x" * 64,
    "",
]
EVIL_PLACES = [
    {"cgroup": "/a/../../etc"},
    {"cgroup": "a/../b"},
    {"cgroup": "/./a"},
    {"cgroup": "/a//b"},
    {"cgroup": "/a\n/b"},
    {"cgroup": "/a\x00"},
    {"cgroup": "/"},
    {"cgroup": ""},
    {"match": "unit:../x.service"},
    {"match": "unit:a.service; reboot"},
    {"match": "unit:-H evil"},
    {"match": "unit:a\n.service"},
]


@pytest.mark.parametrize("name", EVIL)
def test_names_that_could_be_paths_or_commands_are_refused(
    served: Served, session: requests.Session, name: str
) -> None:
    before, calls = _digest(Path(served.socket).parent), list(served.agent.calls)
    body = {"kind": "batch", "name": name, "cgroup": "/fine"}
    answer = session.post("http://localhost/v1/workloads", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["key"].endswith("name")
    for method, path in (("DELETE", "workloads/{}"), ("DELETE", "models/{}"), ("GET", "models/{}/export")):
        quoted = quote(name, safe="")
        assert session.request(method, f"http://localhost/v1/{path.format(quoted)}").status_code in (
            400,
            404,
            405,
        )
    assert list(served.agent.calls) == calls
    assert _digest(Path(served.socket).parent) == before


@pytest.mark.parametrize("place", EVIL_PLACES, ids=lambda place: repr(place))
def test_places_that_lead_elsewhere_are_refused(
    served: Served, session: requests.Session, place: dict[str, str]
) -> None:
    calls = list(served.agent.calls)
    answer = session.post("http://localhost/v1/workloads", json={"kind": "batch", "name": "fine", **place})
    assert answer.status_code == 400, answer.text
    assert list(served.agent.calls) == calls
