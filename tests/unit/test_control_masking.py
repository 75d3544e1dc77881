"""The account in a URL is for the application that is asked, and for nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.agent.rounds import Round
from perphd.control.client import Client
from perphd.control.replay_routes import line, round_out
from perphd.domain.cpuset import CpuSet
from perphd.domain.masking import masked, without_secrets
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.topology import Topology
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from tests.unit.control_fake import DB, READER, serving

_WORD = st.text(st.characters(exclude_characters="/?#", exclude_categories=("Cs", "Cc")), max_size=20)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:secret@localhost/m", "http://***@localhost/m"),
        ("http://me:se@cret@localhost/m", "http://***@localhost/m"),
        ("http://me@[::1]:80", "http://***@[::1]:80"),
        ("http://localhost/m", "http://localhost/m"),
        ("http://localhost/of/@me?to=you@there", "http://localhost/of/@me?to=you@there"),
        ("http://localhost?to=you@there", "http://localhost?to=you@there"),
        ("from http://a:b@c/ to https://d:e@f/", "from http://***@c/ to https://***@f/"),
        ("me@localhost", "me@localhost"),
        ("", ""),
    ],
)
def test_what_is_shown_of_a_url(text: str, shown: str) -> None:
    assert masked(text) == shown


@given(_WORD, _WORD)
def test_no_account_is_ever_shown(user: str, password: str) -> None:
    assert masked(f"http://{user}:{password}@localhost/metrics") == "http://***@localhost/metrics"


def test_only_the_url_of_a_workload_is_masked() -> None:
    options = (("url", "http://me:secret@localhost/m"), ("work", "a@b"))
    spec = WorkloadSpec("web", Kind.LRA, "/web", sli=SliSpec("prometheus", options))
    shown = without_secrets(spec)
    assert shown.sli is not None
    assert shown.sli.options == (("url", "http://***@localhost/m"), ("work", "a@b"))
    assert (shown.name, shown.cgroup) == ("web", "/web")
    bare = WorkloadSpec("db", Kind.LRA, "/db")
    assert without_secrets(bare) is bare


def test_a_recording_names_no_account() -> None:
    spec = WorkloadSpec(
        "web", Kind.LRA, "/web", sli=SliSpec("prometheus", (("url", "http://me:se@cret@h/m"),))
    )
    host = HostView(Topology((), (), (), CpuSet()))
    seen = Snapshot(1, 1.0, 1.0, host, (WorkloadView(spec, None),))
    written = line(round_out(Round(seen, {}, TargetState({}))))
    assert "http://***@h/m" in written
    assert "cret" not in written


@pytest.mark.parametrize("route", ["status", "workloads", "explain?workload=db", "config"])
def test_no_answer_to_a_reader_names_an_account(tmp_path: Path, route: str) -> None:
    url = (("url", "http://me:se@cret@h/m"), ("work", "requests_total"))
    spec = replace(DB, sli=SliSpec("prometheus", url))
    with serving(tmp_path) as served:
        served.peer = READER
        served.agent.specs["db"] = spec
        served.agent.config = replace(served.config, workloads=(spec,))
        answer = str(Client(served.socket).get(route))
    assert "http://***@h/m" in answer
    assert "cret" not in answer
