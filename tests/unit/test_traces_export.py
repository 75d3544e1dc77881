"""perphctl trace export: the store in the tables of cluster-trace-v2023, and back again without a loss."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.commands.cli import cli as perphctl
from perphd.commands.reservations import ReservedPlace
from perphd.dataset.attempt import attempt, read_manifest, read_part
from perphd.dataset.stores import Folder
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable, available
from perphd.domain.trace import MachineUse, TraceMachine, TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from perphd.monitor.query import QueryError
from perphd.monitor.schema import open_database
from perphd.monitor.trace_export import Requested, export_trace
from perphd.monitor.trace_tables import (
    NODE_COLUMNS,
    NODES,
    POD_COLUMNS,
    POD_USE,
    POD_USE_COLUMNS,
    PODS,
    PSI_COLUMNS,
    QOS_KINDS,
    node_row,
    pod_row,
    pod_use_row,
)
from perphd.sizing.recommendation import Reservation
from perphd.sizing.shaper import Resource
from tests.unit.sizing_store import GIB, START_S, constant, made
from tools.traces.__main__ import main
from tools.traces.analysis import imbalances, request_against_use, variation
from tools.traces.fleet import collect
from tools.traces.imported import FORMATS, import_trace, read_records
from tools.traces.rows import Tally, read_trace


def read(folder: Path) -> list[TraceRecord]:
    tally = Tally()
    found = list(read_trace(FORMATS["alibaba-v2023"](), [folder], tally))
    assert tally.bad == {}
    return found


def records_in(found: list[TraceRecord]) -> Callable[..., list[TraceRecord]]:
    return lambda *kinds: [record for record in found if isinstance(record, kinds)]


def tables(folder: Path) -> dict[str, list[dict[str, str]]]:
    place = Folder(folder)
    return {
        part.source: list(csv.DictReader(io.StringIO(b"".join(read_part(place, part)).decode())))
        for part in read_manifest(place).parts
    }


# --- a store ---------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten minutes of a database and a batch job, at 10 s; values are halved but for every sixth sample."""
    path = made(
        tmp_path / "store.db",
        10,
        {
            "db": {"cpu_usage_cores": constant(4.0), "memory_current_bytes": constant(2.0 * GIB),
                   "cpu_some_pct": constant(20.0), "work_rate_per_s": constant(900.0), "latency_p95_ms": constant(8.0)},
            "nightly": {"cpu_usage_cores": constant(2.0), "io_some_pct": constant(50.0)},
        },
    )  # fmt: skip
    connection = open_database(path)
    connection.execute(
        "INSERT INTO decisions (wall_s, at_s, workload, action, health, cause, reason, policy, record)"
        " VALUES (?, 0, 'db', 'hold', 'healthy', 'none', '', 'perph', '{}')",
        (START_S,),
    )
    for n in range(60):
        connection.execute(
            "INSERT INTO host (wall_s, at_s, interval_s, capacity, lras, batch, undeclared, kernel, steal, idle,"
            " memory_total_bytes, memory_available_bytes, groups)"
            " VALUES (?, 0, 10, 16, 4, 2, 1, .5, 0, 8.5, ?, ?, '{}')",
            (START_S + n * 10.0, 64.0 * GIB, 48.0 * GIB),
        )
    connection.close()
    return path


def test_the_store_becomes_three_tables_in_cpus_bytes_and_ratios(store: Path, tmp_path: Path):
    requests = {"db": Requested(8.0, 4.0 * GIB)}
    manifest = export_trace(store, Folder(tmp_path / "out"), "host1", requests)
    assert manifest.facts["cpu_unit"] == "CPUs"
    found = tables(tmp_path / "out")
    assert {source: len(rows) for source, rows in found.items()} == {NODES: 20, PODS: 2, POD_USE: 42}
    assert [tuple(found[source][0]) for source in (NODES, PODS, POD_USE)] == [
        tuple(NODE_COLUMNS), tuple(POD_COLUMNS), tuple(POD_USE_COLUMNS)
    ]  # fmt: skip
    node = found[NODES][0]
    assert (node["node_cpu_usage"], node["node_cpu_cores"], node["node_memory_util"]) == ("7.5", "16", "0.25")
    assert node["node_network_receive_bps"] == "-1"
    assert [(pod["pod"], pod["qos"], pod["cpu"], pod["memory"]) for pod in found[PODS]] == [
        ("host1/db", "LS", "8", str(4 * GIB)), ("host1/nightly", "BE", "-1", "-1")
    ]  # fmt: skip


def test_a_row_is_the_mean_of_its_window_and_stalls_are_of_three_windows(store: Path, tmp_path: Path):
    export_trace(store, Folder(tmp_path / "out"), "host1", {"db": Requested(8.0, 4.0 * GIB)})
    rows = [row for row in tables(tmp_path / "out")[POD_USE] if row["pod"] == "host1/db"]
    # The third of six samples is whole, the others half: of 4 CPUs that is a mean of 8/3 and of 2 in turns.
    assert [float(row["pod_cpu_limit_usage"]) for row in rows[:2]] == pytest.approx([8 / 3, 2.0])
    assert [float(row["pod_cpu_request_util"]) for row in rows[:2]] == pytest.approx([1 / 3, 0.25])
    assert float(rows[0]["rt"]) == pytest.approx(16 / 3)
    ten, sixty, threehundred, total_us = map(float, rows[-2]["cpu_psi"].split(";"))
    assert ten == 10.0
    assert (sixty, threehundred) == pytest.approx((70 / 6, 70 / 6))
    assert total_us == pytest.approx(600e6 * 0.7 / 6, rel=0.02)
    assert rows[0]["mem_psi"] == ";".join(["-1"] * 8)
    assert rows[0]["web_qps"] == "-1"


def test_samples_without_a_rate_are_no_use(tmp_path: Path):
    path = made(tmp_path / "store.db", 2, {"db": {"cpu_usage_cores": constant(4.0)}})
    connection = open_database(path)
    connection.execute("UPDATE samples SET quality = 'first', cpu_usage_cores = 1000 WHERE rowid = 1")
    connection.close()
    export_trace(path, Folder(tmp_path / "out"), "host1", {})
    uses = [each for each in read(tmp_path / "out") if isinstance(each, WorkloadUse)]
    assert max(each.cpu for each in uses if available(each.cpu)) <= 4.0


def test_an_empty_store_is_refused_and_leaves_nothing(tmp_path: Path):
    open_database(tmp_path / "store.db").close()
    with pytest.raises(QueryError, match="no samples yet"):
        export_trace(tmp_path / "store.db", Folder(tmp_path / "out"), "host1", {})
    assert not (tmp_path / "out").exists()


def test_the_command_exports_and_refuses_a_place_that_holds_a_dataset(store: Path, tmp_path: Path):
    arguments = ["--json", "trace", "export", str(tmp_path / "out"), "--node", "host1", "--store", str(store)]
    first = CliRunner().invoke(perphctl, arguments)
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["rows"] == {NODES: 20, PODS: 2, POD_USE: 42}
    again = CliRunner().invoke(perphctl, arguments)
    assert again.exit_code == 1
    assert "choose another name" in again.stdout
    slash = CliRunner().invoke(perphctl, [*arguments, "--node", "a/b"])
    assert "cannot name a host" in slash.stdout


def test_requests_are_the_reservations_of_the_daemon_or_the_configuration(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reserved = {Resource.CPU: Reservation(8.0), Resource.MEMORY: Reservation(4.0 * GIB)}
    place = ReservedPlace(str(store), {}, reservations={"db": reserved})
    monkeypatch.setattr("perphd.commands.reservations.find", lambda out, given: place)
    result = CliRunner().invoke(perphctl, ["trace", "export", str(tmp_path / "out"), "--node", "host1"])
    assert result.exit_code == 0, result.output
    figures = request_against_use(collect(records_in(read(tmp_path / "out"))))
    # Five samples of six use half of 4 CPUs.
    assert figures["lra_cpu_of_request_median"] == pytest.approx(4.0 * 3.5 / 6 / 8, rel=0.02)
    assert figures["lra_memory_of_request_median"] == pytest.approx(0.5 * 3.5 / 6, rel=0.02)
    assert isinstance(figures["batch_cpu_of_request_median"], Unavailable)


def test_exports_of_several_hosts_are_one_fleet_with_applications_across_them(store: Path, tmp_path: Path):
    hosts = [tmp_path / f"host{n}" for n in range(6)]
    for host in hosts:
        export_trace(store, Folder(host), host.name, {})
    import_trace(FORMATS["alibaba-v2023"](), hosts, Folder(tmp_path / "fleet"), "csv", Tally())
    fleet = collect(lambda *kinds: read_records(Folder(tmp_path / "fleet"), *kinds))
    assert sorted(fleet.machines) == [host.name for host in hosts]
    assert sorted({life.app for life in fleet.lives}) == ["db", "nightly"]
    figures = variation(fleet)
    assert figures["lra_cpu_cov"] == pytest.approx(0.0, abs=1e-9)  # six times the same
    assert imbalances(fleet)["spatial_cpu_cov"] == pytest.approx(0.0, abs=1e-9)


def test_a_store_is_analysed_as_it_is(store: Path, capsys):
    assert main(["analyze", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trace"]["machines"], found["trace"]["workloads"]) == (1, 2)
    assert found["analyses"]["imbalances"]["cpu_utilisation"] == pytest.approx(7.5 / 16)


def test_an_export_of_a_store_survives_import_and_record_files(store: Path, tmp_path: Path):
    export_trace(store, Folder(tmp_path / "out"), "host1", {"db": Requested(8.0, 4.0 * GIB)})
    import_trace(FORMATS["alibaba-v2023"](), [tmp_path / "out"], Folder(tmp_path / "in"), "csv", Tally())
    assert sorted(map(repr, read_records(Folder(tmp_path / "in")))) == sorted(
        map(repr, read(tmp_path / "out"))
    )
    assert read_manifest(Folder(tmp_path / "in")).facts["memory_unit"] == "bytes"


# --- import(export(x)) == x ------------------------------------------------------------------------------------

amounts = st.floats(0, 1e15, allow_nan=False) | st.integers(0, 10**15).map(float)
readings: st.SearchStrategy[Reading] = st.just(NOT_MEASURED) | amounts
times = st.integers(-(10**6), 10**9).map(float)
names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)


def records_of(
    record: type[TraceRecord], /, fields: set[str], **known: st.SearchStrategy
) -> st.SearchStrategy:
    chosen = dict.fromkeys(fields - known.keys(), readings)
    return st.builds(record, **chosen, **known)


@st.composite
def traces(draw: Callable) -> list[TraceRecord]:
    """A trace of which cluster-trace-v2023 can say everything, in the order in which its reader tells it."""
    order = sorted(draw(st.lists(times, min_size=1, max_size=5)))
    found: list[TraceRecord] = []
    known: dict[str, tuple[Reading, Reading]] = {}
    use_fields = {*NODE_COLUMNS.values()} - {"cpus", "memory", "machine", "at_s"}
    for at_s in order:
        name = draw(names)
        capacity = known.get(name) or (draw(readings), draw(readings))
        use = draw(records_of(MachineUse, use_fields, machine=st.just(name), at_s=st.just(at_s)))
        if name not in known:
            known[name] = capacity
            found.append(TraceMachine(at_s, name, *capacity))
        cpus = capacity[0]
        share = use.cpu / cpus if available(use.cpu) and available(cpus) and cpus > 0 else NOT_MEASURED
        found.append(dataclasses.replace(use, cpu_share=share))
    qos = draw(st.sampled_from(["LS", "LSR", "BE", ""]))
    pods = records_of(
        TraceWorkload, {*POD_COLUMNS.values()}, workload=names, qos=st.just(qos), kind=st.just(QOS_KINDS.get(qos)),
        submitted_s=st.just(NOT_MEASURED) | times,
    )  # fmt: skip
    found += draw(st.lists(pods, max_size=4))
    stalls = {name for fields in PSI_COLUMNS.values() for name in fields}
    for at_s in order:
        found.append(
            draw(
                records_of(
                    WorkloadUse, {*filter(None, POD_USE_COLUMNS.values())} | stalls, at_s=st.just(at_s),
                    workload=names, machine=names, app=names | st.just(""),
                )
            )
        )  # fmt: skip
    return found


@settings(max_examples=60, deadline=None)
@given(traces())
def test_import_of_an_export_is_the_same(tmp_path_factory: pytest.TempPathFactory, trace: list[TraceRecord]):
    machines = {each.machine: each for each in trace if isinstance(each, TraceMachine)}
    rows = {
        NODES: [
            NODE_COLUMNS,
            *(node_row(each, machines[each.machine]) for each in trace if isinstance(each, MachineUse)),
        ],
        PODS: [POD_COLUMNS, *(pod_row(each) for each in trace if isinstance(each, TraceWorkload))],
        POD_USE: [POD_USE_COLUMNS, *(pod_use_row(each) for each in trace if isinstance(each, WorkloadUse))],
    }
    folder = tmp_path_factory.mktemp("trace")
    with attempt(Folder(folder)) as written:
        for source, table in rows.items():
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(table)
            path = folder / "text.csv"
            path.write_text(text.getvalue())
            written.add_file(path, source)
        written.commit()
    assert read(folder) == trace


def test_what_has_no_objective_has_no_kind(tmp_path: Path):
    (tmp_path / "pod_meta_info.csv").write_text("0,a,1,1,0,1,1,0,SYSTEM\n0,b,1,1,0,1,1,0,LSR\n")
    found = [each for each in read(tmp_path) if isinstance(each, TraceWorkload)]
    assert [each.kind for each in found] == [None, Kind.LRA]
