"""The lab's cells, what it keeps on disk, its safety check and its pack."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace

import pytest

from tools.lab import __main__ as lab
from tools.lab import schemes, unattended
from tools.lab.batch import JOBS
from tools.lab.catalogue import CELLS, GROUPS, LOADS, SERVERS, job_of, load_of
from tools.lab.experiment import Timing
from tools.lab.kept import Kept
from tools.lab.load import SysbenchReport
from tools.lab.peer import PEERS
from tools.lab.processes import LabError
from tools.lab.records import Cores, Run, Window
from tools.lab.servers import kafka, tpch
from tools.lab.servers.postgresql import Seconds
from tools.lab.unattended import Found, anonymous, objections, pack

QUIET = Found(8 << 30, 4, 0.05, (), (), False)


def run(cell="redis-open-pi4", scheme="native", repetition=0):
    whole = Window(1.0, 10.0, 1.0, 2.0, None, 5.0, 0)
    return Run(
        cell=cell, scheme=scheme, repetition=repetition, whole=whole, settled=whole, timeline=(),
        settings=((0.5, "batch", {"shares": "2"}),), notes=(), cores=Cores(1.0, 0.5, 0.3, None, None),
        client_stalled=None,
    )  # fmt: skip


def test_every_cell_names_a_load_a_server_and_a_job():
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert load_of(cell.name) is LOADS[cell.load]
        assert job_of(cell.name) == cell.job in JOBS
        assert LOADS[cell.load].server in SERVERS
    assert {name for names in GROUPS.values() for name in names} <= {cell.name for cell in CELLS}


def test_the_list_has_every_cell(capsys):
    assert lab.main(["--list"]) == 0
    told = {line.removesuffix(" (usual)") for line in capsys.readouterr().out.splitlines()}
    assert told >= {cell.name for cell in CELLS}


def test_a_group_of_cells_is_chosen_by_its_name():
    assert [cell.name for cell in lab._options(["--only", "paper,redis-open-pi4"]).only] == [
        cell.name for cell in CELLS if cell.name in (*GROUPS["paper"], "redis-open-pi4")
    ]
    with pytest.raises(SystemExit):
        lab._options(["--only", "nothing-pi4"])


def test_one_server_comes_after_the_other_and_each_repetition_has_every_scheme():
    options = lab._options(
        ["--only", "redis-open-pi4,redis-closed-pi4,tpcc-pi4", "--schemes", "alone,native,perphd"]
    )
    plan = lab._plan(options.only, options.schemes, 2)
    servers = [LOADS[cell.load].server for _, cell, _ in plan]
    assert servers == ["mariadb"] * 6 + ["redis"] * 12
    assert len({(n, cell.name, scheme.name) for n, cell, scheme in plan}) == len(plan)


def test_a_slow_load_is_observed_and_measured_twice_as_long():
    timing, alone = Timing(4.0, 10.0, 20.0), schemes.BY_NAME["alone"]
    assert timing.of(LOADS["tpcc"], alone) == 24.0
    assert timing.of(LOADS["tpch"], alone) == 44.0
    assert timing.of(LOADS["tpch"], schemes.BY_NAME["perphd"]) == 64.0
    assert timing.of(LOADS["kafka"], alone) == 32.0  # its clients are compiled first


def test_published_policies_are_there_and_are_not_taken_for_perphds():
    named = {scheme.policy for scheme in schemes.SCHEMES if scheme.policy}
    assert named == set(PEERS)
    assert not any(schemes.is_perphd(scheme.name) for scheme in schemes.SCHEMES if scheme.policy)
    assert schemes.is_perphd("perphd")


def test_tpc_h_has_its_22_queries():
    assert list(tpch.queries()) == [f"Q{number}" for number in range(1, 23)]
    assert LOADS["tpch"].cycle == len(tpch.queries())
    assert all(text.startswith(("SELECT", "WITH")) and ";" not in text for text in tpch.queries().values())


def test_a_stream_reports_the_end_of_each_query_once(capsys):
    streams = tpch.Streams()
    streams.add(1, 0.5, 1000.75)
    streams.add(0, 0.25, 1000.9)
    assert streams.report(1000.0, 1.0, 1.0, 0) == 2
    streams.add(1, 0.5, 1001.25)
    assert streams.report(1000.0, 2.0, 1.0, 2) == 3
    report = SysbenchReport()
    fed = [report.feed(line, 52.0) for line in capsys.readouterr().out.splitlines()]
    records = [record for record in fed if record is not None]
    assert [record.ends for record in records] == [((1, 51.75), (0, 51.9)), ((1, 51.25),)]
    assert [record.events for record in records] == [2, 1]


def test_a_broker_is_compiled_under_load_once_before_its_first_run(monkeypatch, capsys):
    began = []

    def warm(load, at_most_s):
        began.append(load)
        return [100.0] * 10 + [500.0] * 10

    broker = kafka.Kafka.__new__(kafka.Kafka)
    broker._compiled = False
    monkeypatch.setattr(kafka, "warm_up", warm)
    monkeypatch.setattr(kafka.Kafka, "start", lambda self, load, groups: (load.name, groups))
    for load in kafka.LOADS:
        broker.prepare(load)
    assert began == [("kafka", [])]  # in the lab's own groups, as the load generator is
    assert "100 to 500 messages/s in 20 s" in capsys.readouterr().out


def test_a_lab_goes_on_where_it_was_even_after_half_a_line(tmp_path):
    path, shared = tmp_path / "runs.jsonl", {"timing": Timing(), "scale": 1}
    kept = Kept(path, shared, resume=True)
    kept.add(run())
    kept.add(run(scheme="perphd"))
    path.write_bytes(path.read_bytes()[:-20])
    again = Kept(path, shared, resume=True)
    assert again.runs == [run()] or again.runs == [replace(run(), started=again.runs[0].started)]
    assert again.has("redis-open-pi4", "native", 0)
    assert not again.has("redis-open-pi4", "perphd", 0)
    again.add(run(scheme="perphd"))
    assert len(Kept(path, shared, resume=True).runs) == 2
    assert Kept(path, shared, resume=False).runs == []


def test_runs_of_other_options_are_not_mixed(tmp_path):
    Kept(tmp_path / "runs.jsonl", {"timing": Timing(), "scale": 1}, resume=True).add(run())
    with pytest.raises(LabError, match="other options"):
        Kept(tmp_path / "runs.jsonl", {"timing": Timing(), "scale": 8}, resume=True)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"free_bytes": 1 << 30}, "memory"),
        ({"others_cores": 2.0}, "others use"),
        ({"servers": ("mariadbd",)}, "mariadbd"),
        ({"resctrl_groups": ("somebody",)}, "resctrl"),
        ({"perphd_runs": True}, "stop perphd"),
    ],
)
def test_an_unattended_lab_does_not_start_where_it_could_harm(change, word):
    assert objections(QUIET) == []
    (told,) = objections(replace(QUIET, **change))
    assert word in told


def test_a_busy_share_grows_with_the_host():
    assert objections(replace(QUIET, cpus=64, others_cores=2.0)) == []


def test_a_pack_has_no_host_names_and_no_addresses(tmp_path):
    words = {"db17.example.org": "HOST", "db17": "HOST", "/home/anna": "HOME"}
    text = "on db17.example.org (db17, 10.1.2.3) at 127.0.0.1, /home/anna/out; db170 stays, version 10.11.19"
    assert (
        anonymous(text, words)
        == "on HOST (HOST, ADDRESS) at 127.0.0.1, HOME/out; db170 stays, version 10.11.19"
    )
    (tmp_path / "report.md").write_text(text)
    (tmp_path / "secret").write_text(text)
    with tarfile.open(pack(tmp_path, words)) as archive:
        assert archive.getnames() == ["perphd-lab/report.md"]
        member = archive.getmembers()[0]
        assert (member.uname, member.uid, member.mtime) == ("", 0, 0)
        content = archive.extractfile(member)
        assert content is not None
        assert b"db17." not in content.read()


def test_what_is_private_is_known_on_this_host():
    words = unattended.private_words()
    assert "localhost" not in words
    assert all(len(word) > 2 for word in words)
    json.dumps(words)


def test_pgbench_s_log_becomes_whole_seconds():
    seconds = Seconds()
    lines = [
        "0 1 5000 0 100 900000",
        "1 1 700 0 101 100000",
        "0 2 1000 0 101 800000",
        "1 2 skipped 0 101 850000",
    ]
    assert seconds.feed(lines) == []
    (first,) = seconds.feed(["0 3 2000 0 102 700000 40"])
    assert (first.at_s, first.events, dict(first.latency.counts)) == (102.0, 2, {0.7: 1, 1.0: 1})
    assert [second.events for second in seconds.feed(["0 4 2000 0 104 650000"])] == [1, 0]


def test_perphd_can_be_given_another_indicator_than_the_server_s_own():
    own = 'source = "redis"\n'
    told = {
        name: schemes.sli(schemes.BY_NAME[name], own) for name in ("perphd", "perphd-tcp", "perphd-blind")
    }
    assert told == {"perphd": own, "perphd-tcp": 'source = "tcp"\n', "perphd-blind": ""}
    assert all(schemes.is_perphd(name) for name in told)
