"""Published formats of traces: rows as printed in public pages and repositories become records with units."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from perphd.dataset.attempt import read_manifest
from perphd.dataset.manifest import DatasetError, NotCommitted
from perphd.dataset.stores import Folder
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.trace import MachineUse, TraceMachine, TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from tools.traces import rows as rows_module
from tools.traces.__main__ import main
from tools.traces.imported import FORMATS, import_trace, read_records
from tools.traces.rows import Tally, read_trace
from tools.traces.sources import TraceError

T = TypeVar("T")
SAMPLES = {
    # The page of each table's schema in alibaba/clusterdata, column "Example Entry".
    "alibaba-v2023": {
        "node_resource_usage_0.csv": "46309,104a3526662b2768549d116ee5a36b24,"
        "0.0059184,0.33276688,0.35017976,0.04762132,"
        "0.0000237,0.00007433,0.5,0.0003389\n",
        "pod_meta_info.csv": "2202266,65c3924ccc3145e4a348f3328d40c606,"
        "0.0390625,0.01589419,0.0,0.046875,0.01589419,"
        "0.0,BE\n",
        "pod_resource_usage_0.csv": "-3390,be8cf1b4733b1292cb6af34d24f5f723,bbe70f56eb2e6b7f3833531e6b837602,"
        "329437a0e697b328a4ea5b8a98d54e2c,0.00055937,0.05074873,0.50453097,0.00940145,0.0,0.04751506,0.0,0.27036923,"
        "0.05314832,-1.0,0.0;0.01;0.05;3113525409.0,0.0;0.0;0.0;0.0;0.0;0.0;56.0;57.0,"
        "0.0;0.0;0.0;0.0; 0.0;0.0;531401.0;536175.0,0.0,0.0,0.0\n",
    },
    # Tests of a Go program, packagewjx/workload-classifier; a row and the header of gohsyi/cluster_optimization's
    # extract; a batch row put together from the cells that the comments of another reader list.
    "alibaba-v2018": {
        "container_meta.csv": "c_1,m_2556,0,app_5052,started,400,400,1.56\n"
        "c_1,m_2556,287942,app_5052,started,400,400,1.56\n",
        "container_usage.csv": "c_11333,m_2041,326620,1,36,,,,0.01,0.01,4\n",
        "machine_usage.csv": "machine_id,time_stamp,cpu_util_percent,mem_util_percent,mem_gps,mkpi,net_in,net_out,"
        "disk_io_percent\nm_1932,553290,59,91,0.37,1.0,46.55,35.92,8\n",
        "batch_instance.csv": "ins_74901673,task_a,j_217,10,Terminated,673795,673797,m_2637,1,1,43,72,0.01,0.02\n",
    },
    # The tests of a Rust simulator's reader, with the trace's missing cells.
    "alibaba-v2017": {
        "batch_instance.csv": "41562,41618,120,686,299,Terminated,1,1,1.5,0.29,1.0,1.2\n"
        "0,,120,686,,Interrupted,1,1,,,,\n76058,76058,,,769,Terminated,1,1,0.5,0.5,,\n",
        "batch_task.csv": "10718,12897,15,64,2003,Terminated,50,0.01600704061294748\n6036,6046,4,6,452,Waiting,,\n",
    },
    # The tests of a Go reader, and rows that a Java program of a course quotes.
    "google-2011": {
        "machine_events/part-00000-of-00001.csv": "0,5,0,HofLGzk1Or/8Ildj2+Lqv0UGGvY82NLoni8+J/Yy0RU=,0.5,0.2493\n",
        "job_events/part-00000-of-00500.csv": "0,,3418309,0,70s3v5qRyCO/1PCdI6fVXnrW8FU/w+5CKRSa72xgcIo=,3,"
        "IHgtoxEBuUTHNbUeVs4hzptMY4n8rZKLbZg+Jh5fNG4=,wAmgn2H74cdoMuSFwJF3NaUEaudVBTZ0/HaNZBwIpEQ=\n",
        "task_events/part-00000-of-00500.csv": "0,,3418314,0,3938719206,0,"
        "70s3v5qRyCO/1PCdI6fVXnrW8FU/w+5CKRSa72xgcIo=,3,9,0.125,0.07446,0.0004244,0\n",
        "task_usage/part-00000-of-00500.csv": "600000000,900000000,3418309,0,4155527081,0.001562,"
        "0.06787,0.07568,0.001156,0.001503,0.06787,2.861e-06,0.0001869,0.03967,0.0003567,2.445,0.007243,0,1,\n",
    },
    # The first line of a file of cell a, as a public blog on the trace prints it (shortened by its histograms).
    "google-2019": {
        "instance_usage-000000000000.json": '{"start_time":"1838400000000","end_time":"1838700000000","collection_id":'
        '"330587238433","instance_index":"111","machine_id":"23624491139","alloc_collection_id":"330587160469",'
        '"collection_type":"0","average_usage":{"cpus":0.008392333984375,"memory":0.0094757080078125},"maximum_usage":'
        '{"cpus":0.04791259765625,"memory":0.019378662109375},"cycles_per_instruction":0.89924430847167969}\n',
    },
    # A row of vmtable.csv that a student's project quotes, its encrypted names cut; the reading is made up.
    "azure-v1": {
        "vmtable.csv": "71fJw0x+SDRdAxKPwLyHZhTgQpYw2afS6tjJhfT6kHnm,GB6uQC1NSArW5n+TtOybL7GQ1yByjuWt,"
        "2sh/ZjaYdfpslv4iYBfNzFe4rs982kHVvNGJGeQ8MIBCDr3E,558300,1673700,91.776885421193157,0.72887880462586729,"
        "20.759629514971522,Delay-insensitive,32,128\n",
        "vm_cpu_readings-file-1-of-125.csv": "0,71fJw0x+SDRdAxKPwLyHZhTgQpYw2afS6tjJhfT6kHnm,1,3,2\n",
    },
    "azure-v2": {"vmtable.csv": "a,b,c,0,300,90,50,80,Interactive,>24,>64\n"},
}
"""By format and file. No row of the last format was found; it differs from the one before by its buckets."""


def files(folder: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(
    form: str, *paths: Path, tally: Tally | None = None, disorder_s: float = 7200.0
) -> list[TraceRecord]:
    return list(read_trace(FORMATS[form](), paths, tally or Tally(), disorder_s))


def of(kind: type[T], records: Sequence[TraceRecord]) -> list[T]:
    return [each for each in records if isinstance(each, kind)]


@pytest.mark.parametrize("form", SAMPLES)
def test_a_published_sample_is_read_without_a_bad_row(form: str, tmp_path: Path):
    tally = Tally()
    found = read(form, files(tmp_path, SAMPLES[form]), tally=tally)
    assert len(found) >= sum(tally.rows.values()) > 0
    assert tally.bad == {}
    assert tally.unread == []


def test_v2023_has_minus_one_for_what_is_missing_and_psi_in_four_windows(tmp_path: Path):
    found = read("alibaba-v2023", files(tmp_path, SAMPLES["alibaba-v2023"]))
    (machine,), (use,) = of(TraceMachine, found), of(MachineUse, found)
    (pod,), (pod_use,) = of(TraceWorkload, found), of(WorkloadUse, found)
    assert (machine.cpus, machine.memory, use.memory_share) == (0.5, 0.35017976, 0.33276688)
    assert (pod.kind, pod.cpu_request, pod.submitted_s) == (Kind.BATCH, 0.0390625, 2202266.0)
    assert pod_use.at_s == -3390.0
    assert pod_use.network_in_bytes_per_s == NOT_MEASURED
    assert (pod_use.cpu_some_60_pct, pod_use.cpu_some_total_us) == (0.01, 3113525409.0)
    assert (pod_use.memory_full_total_us, pod_use.memory_some_total_us, pod_use.io_full_total_us) == (
        56,
        57,
        531401,
    )


def test_v2018_counts_hundredths_of_cores_and_empty_cells_are_not_zero(tmp_path: Path):
    found = read("alibaba-v2018", files(tmp_path, SAMPLES["alibaba-v2018"]))
    by_name = {each.workload: each for each in of(TraceWorkload, found)}
    assert by_name["c_1"].cpu_request == 4.0
    assert by_name["c_1"].memory_request == pytest.approx(0.0156)
    run = by_name["j_217/task_a/ins_74901673"]
    assert (run.kind, run.start_s, run.end_s, run.cpu_mean) == (Kind.BATCH, 673795.0, 673797.0, 0.43)
    (use,) = of(WorkloadUse, found)
    assert (use.cpu_of_request, use.memory_of_request, use.cpi, use.llc_mpki) == (
        0.01,
        0.36,
        NOT_MEASURED,
        NOT_MEASURED,
    )
    (machine,) = of(MachineUse, found)
    assert (machine.cpu_share, machine.memory_share, machine.llc_mpki) == (0.59, 0.91, 1.0)


def test_v2017_takes_rows_that_lack_job_or_usage(tmp_path: Path):
    found = of(TraceWorkload, read("alibaba-v2017", files(tmp_path, SAMPLES["alibaba-v2017"])))
    states = {each.state: each for each in found}
    assert states["interrupted"].start_s == NOT_MEASURED
    assert [each.memory_mean for each in found if each.machine == "769"] == [NOT_MEASURED]
    (task,) = (each for each in found if each.app == "15/64")
    assert (task.instances, task.cpu_request) == (2003.0, 0.5)


def test_google_times_are_microseconds_and_classes_are_kinds(tmp_path: Path):
    found = read("google-2011", files(tmp_path / "2011", SAMPLES["google-2011"]))
    (use,) = of(WorkloadUse, found)
    assert (use.at_s, use.interval_s, use.cpu, use.cpu_max, use.cpi) == (
        600.0,
        300.0,
        0.001562,
        0.03967,
        2.445,
    )
    task = next(each for each in of(TraceWorkload, found) if each.workload == "3418314/0")
    assert (task.kind, task.submitted_s, task.cpu_request) == (Kind.LRA, NOT_MEASURED, 0.125)
    (use,) = of(WorkloadUse, read("google-2019", files(tmp_path / "2019", SAMPLES["google-2019"])))
    assert (use.at_s, use.machine, use.cpu, use.memory_max) == (
        1838400.0,
        "23624491139",
        0.008392333984375,
        0.019378662109375,
    )


def test_google_2019_is_read_as_csv_with_a_header_too(tmp_path: Path):
    text = (
        "time,type,collection_id,instance_index,scheduling_class,resource_request.cpus\n5000000,3,7,0,1,.25\n"
    )
    text += "6000000,UPDATE_RUNNING,7,0,1,.25\n7000000,7,7,0,1,.25\n"
    task, updated, killed = of(
        TraceWorkload, read("google-2019", files(tmp_path, {"instance_events.csv": text}))
    )
    assert (updated.state, updated.end_s, killed.state, killed.end_s) == ("update", NOT_MEASURED, "kill", 7.0)
    assert (task.start_s, task.kind, task.cpu_request) == (5.0, Kind.BATCH, 0.25)


def test_azure_scales_use_by_cores_and_an_open_bucket_is_missing(tmp_path: Path):
    (vm,) = of(TraceWorkload, read("azure-v1", files(tmp_path / "v1", SAMPLES["azure-v1"])))
    assert (vm.cpu_request, vm.memory_request, vm.kind) == (32.0, 128.0 * 2**30, Kind.BATCH)
    assert vm.cpu_mean == pytest.approx(0.0072887880462586729 * 32)
    (vm,) = of(TraceWorkload, read("azure-v2", files(tmp_path / "v2", SAMPLES["azure-v2"])))
    assert (vm.cpu_request, vm.memory_request, vm.cpu_mean) == (NOT_MEASURED, NOT_MEASURED, NOT_MEASURED)


# --- packed ----------------------------------------------------------------------------------------------------


def usage(count: int, step_s: int = 300) -> str:
    return "".join(f"m_{n % 3 + 1},{n * step_s},{n % 100},50,,,,,5\n" for n in range(count))


def packed(path: Path, members: dict[str, bytes]) -> Path:
    kind = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".tar": "w"}[path.suffix]
    with tarfile.open(path, kind) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.xz", ".tar", ".tar.gz", ".tgz", ".tar.xz"])
def test_the_same_rows_are_read_however_they_are_packed(suffix: str, tmp_path: Path):
    text = usage(50).encode()
    path = tmp_path / f"machine_usage{suffix}"
    if ".t" in suffix:
        packed(path, {"data/machine_usage.csv": text, "data/README.md": b"hello\n"})
    else:
        wrapped = gzip.compress(text) if suffix == ".csv.gz" else text
        path.write_bytes(lzma.compress(text) if suffix == ".csv.xz" else wrapped)
    tally = Tally()
    assert len(read("alibaba-v2018", path, tally=tally)) == 50
    assert len(tally.unread) == (0 if ".csv" in suffix else 1)


def refused(form: str, path: Path, tmp_path: Path, **more: object) -> str:
    """The message of an import that must fail, and leave nothing behind."""
    place = tmp_path / "imported"
    with pytest.raises((TraceError, DatasetError)) as caught:
        import_trace(FORMATS[form](), [path], Folder(place), "csv", Tally(), **more)  # type: ignore[arg-type]
    with pytest.raises(NotCommitted):
        read_manifest(Folder(place))
    assert not place.exists() or list(place.iterdir()) == []
    return str(caught.value)


@pytest.mark.parametrize("packing", ["gz", "xz", "tgz", "plain", "tar"])
def test_a_truncated_file_is_said_to_be_truncated_and_nothing_is_left(packing: str, tmp_path: Path):
    noise = random.Random(1)
    text = "".join(f"m_1,{n},{noise.randrange(100)},50,,,,,5\n" for n in range(20_000)).encode()
    path = tmp_path / "machine_usage.csv"
    if packing in ("tgz", "tar"):
        path = packed(tmp_path / f"machine_usage.{packing}", {"machine_usage.csv": text})
    elif packing != "plain":
        path = tmp_path / f"machine_usage.csv.{packing}"
        path.write_bytes(gzip.compress(text) if packing == "gz" else lzma.compress(text))
    else:
        path.write_bytes(text)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3 - (1 if packing == "plain" else 0)])
    if packing == "plain":
        path.write_bytes(text[: text.rindex(b"\n", 0, len(text) // 2) + 5])
    message = refused("alibaba-v2018", path, tmp_path)
    assert "truncated" in message
    assert "machine_usage" in message


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_an_archive_that_is_cut_between_two_members_is_truncated(suffix: str, tmp_path: Path):
    rows = usage(200).encode()
    whole = packed(
        tmp_path / "whole.tar", {"machine_usage.csv": rows, "container_usage.csv": rows}
    ).read_bytes()
    cut = whole[: 512 + -(-len(rows) // 512) * 512]
    path = tmp_path / f"machine_usage{suffix}"
    path.write_bytes(cut if suffix == ".tar" else gzip.compress(cut))
    assert "truncated" in refused("alibaba-v2018", path, tmp_path)


def test_a_damaged_gzip_is_refused(tmp_path: Path):
    data = bytearray(gzip.compress(usage(5000).encode()))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "machine_usage.csv.gz"
    path.write_bytes(data)
    assert str(path) in refused("alibaba-v2018", path, tmp_path)


@pytest.mark.parametrize("form", ["alibaba-v2018", "alibaba-v2023", "google-2011", "azure-v1"])
def test_reordered_rows_end_the_import_and_the_first_is_named(form: str, tmp_path: Path):
    made = {
        "alibaba-v2018": ("machine_usage.csv", [f"m_1,{n * 300},10,50,,,,,5" for n in range(1000)]),
        "alibaba-v2023": (
            "node_resource_usage_0.csv",
            [f"{n * 300},node,0.1,0.5,0.3,-1,-1,-1,0.5,-1" for n in range(1000)],
        ),
        "google-2011": (
            "task_usage/part-0.csv",
            [f"{n * 300_000_000},{(n + 1) * 300_000_000},7,0,5,0.1,0.1,,,,,,,,,,,,,"  for n in range(1, 1001)],
        ),
        "azure-v1": ("vm_cpu_readings-1.csv", [f"{n * 300},vm,1,3,2" for n in range(1000)]),
    }  # fmt: skip
    name, lines = made[form]
    in_order = read(form, files(tmp_path / "in order", {name: "\n".join(lines) + "\n"}))
    assert len(of(MachineUse, in_order) + of(WorkloadUse, in_order)) == 1000
    random.Random(1).shuffle(lines)
    message = refused(form, files(tmp_path / "shuffled", {name: "\n".join(lines) + "\n"}), tmp_path)
    assert "back in time" in message
    assert "line" in message


def test_a_few_rows_out_of_order_are_left_out_and_counted(tmp_path: Path):
    lines = [f"{n * 300},vm,1,3,2\n" for n in range(1000)]
    lines[500], lines[700] = lines[700], lines[500]
    tally = Tally(most_bad=200)
    found = read("azure-v1", files(tmp_path, {"vm_cpu_readings-1.csv": "".join(lines)}), tally=tally)
    assert len(found) == 1000 - sum(tally.bad.values())
    # Those between the two that changed places, as far as they are older than two hours before the early one.
    assert 150 <= sum(tally.bad.values()) <= 199


# --- hostile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("nan", "finite"), ("inf", "finite"), ("-inf", "finite"), ("1e30", "out of bounds"), ("-5", "out of bounds"),
        ("x", "not a number"), ("9" * 2000, "too long"), ("1\x00", "NUL"), ("\xff\xfe", ""), ('"1', "no CSV"),
    ],
)  # fmt: skip
def test_a_cell_that_is_no_quantity_is_a_bad_row_with_its_place(cell: str, fault: str, tmp_path: Path):
    path = tmp_path / "machine_usage.csv"
    path.write_bytes(
        usage(20).encode() + f"m_1,9000,{cell},50,,,,,5\n".encode("latin-1") + b"m_1,9300,7,50,,,,,5\n"
    )
    tally = Tally()
    assert len(read("alibaba-v2018", path, tally=tally)) == 21
    ((said, count),) = tally.bad.items()
    assert fault in said
    assert count == 1
    assert tally.first[said].endswith("machine_usage.csv line 21")


def test_a_time_of_another_age_does_not_make_all_later_rows_bad(tmp_path: Path):
    path = files(
        tmp_path, {"vm_cpu_readings-1.csv": "0,vm,1,3,2\n1e30,vm,1,3,2\n300,vm,1,3,2\n600,vm,1,3,2\n"}
    )
    tally = Tally()
    assert len(read("azure-v1", path, tally=tally)) == 3
    assert [*tally.bad] == ["timestamp is no time of a trace"]


@pytest.mark.parametrize(
    "name", ["../machine_usage.csv", "/etc/machine_usage.csv", "a/../../machine_usage.csv"]
)
def test_an_archive_that_names_places_outside_is_refused_and_unpacks_nothing(name: str, tmp_path: Path):
    path = packed(tmp_path / "hostile.tar.gz", {name: usage(5).encode()})
    assert "not a regular file" in refused("alibaba-v2018", path, tmp_path)
    assert {each.name for each in tmp_path.iterdir()} <= {"hostile.tar.gz", "imported"}


def test_an_archive_with_a_link_is_refused(tmp_path: Path):
    path = tmp_path / "hostile.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("machine_usage.csv")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    assert "not a regular file" in refused("alibaba-v2018", path, tmp_path)


def test_an_archive_whose_header_wants_gigabytes_is_refused(tmp_path: Path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    path = tmp_path / "hostile.tar"
    path.write_bytes(info.tobuf() + b"a" * 10_240)
    assert "header of a member" in refused("alibaba-v2018", path, tmp_path)


def test_a_line_without_end_costs_no_memory_and_ends_the_import(tmp_path: Path):
    path = tmp_path / "machine_usage.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(b"9" * (1 << 20))
    tracemalloc.start()
    message = refused("alibaba-v2018", path, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "does not end" in message
    assert peak < 16 << 20


def test_deep_json_and_json_numbers_that_are_none_are_bad_rows(tmp_path: Path):
    good = SAMPLES["google-2019"]["instance_usage-000000000000.json"]
    bad = [
        '{"a":' + "[" * 100_000 + "\n",
        '{"start_time": NaN}\n',
        "{\n",
        '{"start_time": 1' + "0" * 5000 + "}\n",
    ]
    path = files(tmp_path, {"instance_usage-0.json": good * 6 + "".join(bad)})
    tally = Tally()
    assert len(read("google-2019", path, tally=tally)) == 6
    assert sum(tally.bad.values()) == 4


def test_another_format_is_said_to_be_none_of_this_one(tmp_path: Path):
    path = files(tmp_path, {"machine_usage.csv": "a,b\nc,d\n"})
    assert "is it alibaba-v2018?" in refused("alibaba-v2018", path, tmp_path)
    assert "machine_usage" in refused("google-2011", path, tmp_path)


def test_too_many_bad_rows_end_the_import_by_fault_with_the_first_line_of_each(tmp_path: Path):
    text = usage(5000) + "m_1,x,1,1,,,,,5\n" * 60 + "m_1,2e6,nan,1,,,,,5\n" * 60
    message = refused("alibaba-v2018", files(tmp_path / "from", {"machine_usage.csv": text}), tmp_path)
    assert "60 x time_stamp is not a number (first: from/machine_usage.csv line 5001)" in message
    assert "41 x cpu_util_percent is not a finite number (first: from/machine_usage.csv line 5061)" in message


# --- imported --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
@pytest.mark.parametrize("form", SAMPLES)
def test_an_imported_trace_reads_as_the_published_one(form: str, fmt: str, tmp_path: Path):
    if fmt == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow (perphd[export])")
    folder = files(tmp_path / "from", SAMPLES[form])
    place = Folder(tmp_path / "imported")
    import_trace(FORMATS[form](), [folder], place, fmt, Tally())
    assert sorted(map(repr, read_records(place))) == sorted(map(repr, read(form, folder)))


def test_memory_does_not_grow_with_the_length_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tools.traces.imported.PART_BYTES", 1 << 17)

    def peak(count: int) -> int:
        folder = files(tmp_path / str(count), {"machine_usage.csv": usage(count, 1)})
        tracemalloc.start()
        import_trace(
            FORMATS["alibaba-v2018"](), [folder], Folder(tmp_path / f"{count} imported"), "csv", Tally()
        )
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    short, long = peak(4_000), peak(24_000)
    assert long < 1.3 * short
    assert len(read_manifest(Folder(tmp_path / "24000 imported")).parts) > 5


def test_an_import_over_a_dataset_is_refused_and_the_command_says_what_it_left_out(tmp_path: Path, capsys):
    text = usage(200) + "m_1,9e5,nan,1,,,,,5\n"
    source = files(tmp_path / "from", {"machine_usage.csv": text, "README.md": "hello"})
    arguments = ["import", "--format", "alibaba-v2018", str(source), str(tmp_path / "to")]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "machine_usage: 200 rows" in said
    assert (
        "bad rows, left out: 1 x cpu_util_percent is not a finite number (first: from/machine_usage.csv line 201)"
        in said
    )
    assert "not read: from/README.md" in said
    assert main(arguments) == 1
    assert "choose another name" in capsys.readouterr().err
    assert rows_module.MOST_BAD == 100
