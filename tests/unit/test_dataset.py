"""Committed datasets: all or nothing after a crash at any operation, attempts that never mix, and no listing."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import perphd.dataset.stores as stores_module
from perphd.commands.cli import cli as perphctl
from perphd.commands.daemon import main as perphd
from perphd.commands.shipping import LATE_S, commit, contents, ship, unshipped
from perphd.dataset.attempt import Attempt, attempt, read_manifest, read_part
from perphd.dataset.manifest import (
    SUCCESS,
    Damaged,
    DatasetError,
    Manifest,
    NotCommitted,
    Part,
    decode,
    encode,
    new_attempt,
)
from perphd.dataset.stores import Folder, Objects, ObjectStore, inside, open_store
from perphd.domain.sample import Sample
from perphd.monitor.export import export_parts
from perphd.monitor.schema import TABLES
from perphd.monitor.store import Store as SampleStore
from tools import dataset as tool
from tools.bench.commits import Cost, cost, manifest_committer, renaming_committer
from tools.bench.object_server import ObjectServer, object_server

ROOT = Path(__file__).parents[2]
CONTENTS = {"first": b"1,2\n", "second": b"x" * 5000}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    for name in ("moto", "flask", "flask_cors"):
        pytest.importorskip(
            name, reason="needs an S3-compatible server (pip install 'moto[s3]' flask flask-cors)"
        )
    pytest.importorskip("pyarrow", reason="needs pyarrow (perphd[export])")
    with object_server() as made:
        yield made


def write(store: ObjectStore) -> Manifest:
    with attempt(store) as made:
        for source, data in CONTENTS.items():
            made.add(source, ".csv", lambda file, data=data: file.write(data) and None)  # type: ignore[misc]
        return made.commit()


def one_part(store: ObjectStore, content: Callable[[Any], None]) -> None:
    with attempt(store) as made:
        made.add("one", "", content)
        made.commit()


def read_all(store: ObjectStore) -> dict[str, bytes]:
    return {part.source: b"".join(read_part(store, part)) for part in read_manifest(store).parts}


class Crash(BaseException):
    """The process ended here."""


class DyingOs:
    """``os`` for a process that dies at its n-th call; nothing that it tries afterwards has an effect."""

    CALLS = ("open", "write", "fsync", "link", "replace", "close", "unlink", "mkdir")

    def __init__(self, dies_at: int, takes_effect: bool) -> None:
        self.calls: list[str] = []
        self._dies_at, self._takes_effect = dies_at, takes_effect
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._counted(name, found) if name in self.CALLS else found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                if name == "close":  # a dead process leaves no descriptors behind
                    return call(*args, **kwargs)
                raise Crash
            self.calls.append(name)
            if len(self.calls) == self._dies_at:
                self.dead = True
                if self._takes_effect or name == "close":
                    result = call(*args, **kwargs)
                    if name == "open":
                        os.close(result)
                raise Crash
            return call(*args, **kwargs)

        return run


def folder_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    living = DyingOs(0, takes_effect=False)
    with monkeypatch.context() as patch:
        patch.setattr(stores_module, "os", living)
        write(Folder(tmp_path / "whole"))
    return living.calls


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
def test_a_crash_at_any_operation_on_a_folder_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_effect: bool
):
    calls = folder_calls(tmp_path, monkeypatch)
    seen = set()
    for number in range(1, len(calls) + 1):
        folder = Folder(tmp_path / str(number))
        with monkeypatch.context() as patch:
            patch.setattr(stores_module, "os", DyingOs(number, takes_effect))
            with pytest.raises(Crash):
                write(folder)
        try:
            assert read_all(folder) == CONTENTS
            seen.add("all")
            with pytest.raises(DatasetError, match="another attempt has committed"):
                write(folder)
        except NotCommitted:
            seen.add("nothing")
            write(folder)  # the parts of the dead attempt are in nobody's way
        assert read_all(folder) == CONTENTS
    assert seen == {"all", "nothing"}


def test_parts_are_on_disk_before_the_manifest_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = [name for name in folder_calls(tmp_path, monkeypatch) if name != "write"]
    part = ["open", "fsync", "close"]
    # Two parts, the folder's names, the manifest without a name, its link, and the folder's names again.
    assert calls == [*part, *part, *part, "open", "fsync", "link", "close", *part]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EPERM])
def test_file_systems_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    folder = Folder(tmp_path / "made")
    write(folder)
    assert read_all(folder) == CONTENTS
    assert sorted(path.name[:5] for path in (tmp_path / "made").iterdir()) == [SUCCESS[:5], "part-", "part-"]
    with pytest.raises(DatasetError, match="another attempt has committed"):
        write(folder)


def test_a_crash_after_any_request_to_an_object_store_leaves_all_or_nothing(server: ObjectServer):
    server.revive()
    write(open_store(server.url("whole")))
    count, seen = len(server.requests), set()
    assert count == 3
    for number in range(count + 1):
        store = open_store(server.url(f"crash-{number}"))
        server.revive()
        server.dies_after = number
        with pytest.raises(DatasetError, match="the client is dead"):
            write(store)
        server.revive()
        try:
            assert read_all(store) == CONTENTS
            seen.add("all")
        except NotCommitted:
            seen.add("nothing")
            write(store)
        assert read_all(store) == CONTENTS
    assert seen == {"all", "nothing"}


def test_a_crash_within_an_upload_in_pieces(server: ObjectServer):
    store = open_store(server.url("pieces"))

    def big(file: Any) -> None:
        file.write(bytes(11 << 20))  # pyarrow begins an upload in pieces at 10 MiB

    server.revive()
    one_part(open_store(server.url("pieces-whole")), big)
    count = len(server.requests)
    assert count >= 5  # begin, two pieces or more, end, manifest
    for number in range(count):
        server.revive()
        server.dies_after = number
        with pytest.raises(DatasetError):
            one_part(store, big)
        server.revive()
        if number < count - 1:
            with pytest.raises(NotCommitted):
                read_manifest(store)


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_two_attempts_never_mix(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    """Whatever the order of their operations, readers see one attempt's parts alone."""
    orders = sorted(set(itertools.permutations("aaabbb")))
    orders = orders if kind == "folder" else orders[::4]
    for number, order in enumerate(orders):
        if kind == "folder":
            store: ObjectStore = Folder(tmp_path / str(number))
        else:
            store = open_store(request.getfixturevalue("server").url(f"two-{number}"))
        attempts = {name: Attempt(store) for name in "ab"}
        steps = dict.fromkeys("ab", 0)
        for name in order:
            if steps[name] < 2:
                text = f"{name}{steps[name]}".encode()
                attempts[name].add(str(steps[name]), "", lambda file, text=text: file.write(text) and None)  # type: ignore[misc]
            else:
                try:
                    attempts[name].commit()
                except DatasetError:
                    attempts[name].abort()
            steps[name] += 1
        found = read_all(store)
        assert found in ({"0": b"a0", "1": b"a1"}, {"0": b"b0", "1": b"b1"})


def test_a_listing_that_lies_does_not_matter(tmp_path: Path):
    fs = pytest.importorskip("pyarrow.fs")

    handler: Any = fs.FileSystemHandler

    class Lies(handler):  # type: ignore[misc]
        """Objects that are there are not listed; others are."""

        def __init__(self) -> None:
            self.local = fs.LocalFileSystem()
            self.asked: list[str] = []

        def get_type_name(self) -> str:
            return "liar"

        def normalize_path(self, path: str) -> str:
            return path

        def get_file_info(self, paths: list[str]) -> list[Any]:
            self.asked.extend(paths)
            return [fs.FileInfo(path, fs.FileType.NotFound) for path in paths]

        def get_file_info_selector(self, selector: Any) -> list[Any]:
            self.asked.append(selector.base_dir)
            return [fs.FileInfo(f"{selector.base_dir}/part-00000_attempt_ghost_1_1", fs.FileType.File)]

        def open_output_stream(self, path: str, metadata: Any) -> Any:
            return self.local.open_output_stream(path)

        def open_input_stream(self, path: str) -> Any:
            return self.local.open_input_stream(path)

        def delete_file(self, path: str) -> None:
            self.local.delete_file(path)

        def create_dir(self, *_: Any) -> None: ...

        def _never(self, *_: Any) -> None:
            raise AssertionError("nothing of the kind is needed")

        delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = _never
        open_input_file = open_append_stream = _never

    liar = Lies()
    store = Objects(fs.PyFileSystem(liar), str(tmp_path))
    with pytest.raises(NotCommitted):
        read_manifest(store)
    Attempt(store).add("left by a crash", "", lambda file: file.write(b"garbage") and None)
    write(store)
    assert read_all(store) == CONTENTS
    assert liar.asked == []


def test_requests_per_part_beside_committers_that_rename(server: ObjectServer):
    data = bytes(100_000)

    def job(commit: Callable[..., None], parts: int, *more: int) -> Cost:
        name = f"{commit.__name__}-{parts}-{more}"
        return cost(server, lambda name: commit(server, name, parts, data, *more), name, len(data))

    for parts in (1, 5):
        own = job(manifest_committer, parts)
        v2, v1 = (job(renaming_committer, parts, version) for version in (2, 1))
        assert own.requests == {"PUT": parts + 1}
        assert own.total <= 8 * parts
        assert 3 * own.total < v2.total < v1.total
        assert (own.times_written, v2.times_written, v1.times_written) == (parts, 2 * parts, 3 * parts)
    server.revive()
    read_all(open_store(server.url("manifest_committer-5-()")))
    kinds = [seen.method for seen in server.requests]
    assert kinds.count("GET") == 6
    assert len(kinds) <= 12  # pyarrow asks for the size of each first
    assert not any("list-type" in seen.query for seen in server.requests)


texts = st.text(max_size=20)
parts_ = st.builds(
    Part,
    st.integers(0, 10**6).map(lambda number: f"part-{number:05d}_attempt_0-a_1_2.csv"),
    texts,
    st.integers(0, 2**60),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.none() | st.integers(0, 2**60),
)
manifests = st.builds(
    Manifest,
    st.just("0-a_1_2"),
    texts,
    st.lists(parts_, max_size=4).map(tuple),
    st.dictionaries(texts, texts),
)


@settings(max_examples=30, deadline=None)
@given(manifests, st.data())
def test_a_manifest_is_read_whole_or_refused(manifest: Manifest, data: st.DataObject):
    encoded = encode(manifest)
    assert decode(encoded, "here") == manifest
    cut = data.draw(st.integers(0, len(encoded.rstrip()) - 1))
    with pytest.raises(Damaged, match="here: not a manifest"):
        decode(encoded[:cut], "here")


@settings(max_examples=50, deadline=None)
@given(st.binary() | st.recursive(st.none() | texts, st.lists).map(lambda value: json.dumps(value).encode()))
def test_other_files_are_no_manifests(data: bytes):
    with pytest.raises(Damaged):
        decode(data, "here")


@pytest.mark.parametrize("name", ["../other", "part-00000", "part-00000_attempt_another_1_1", "/etc/passwd"])
def test_a_manifest_cannot_point_elsewhere(name: str):
    part = Part(name, "", 1, "0" * 64)
    with pytest.raises(Damaged, match="not a part of attempt"):
        decode(encode(Manifest("boot_1_2", "perphd", (part,))), "here")


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"y" + data[1:]]
)
def test_a_changed_part_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]):
    folder = Folder(tmp_path)
    part = write(folder).parts[1]
    (tmp_path / part.name).write_bytes(change(CONTENTS["second"]))
    with pytest.raises(Damaged, match="differs from the manifest"):
        list(read_part(folder, part))
    (tmp_path / part.name).unlink()
    with pytest.raises(Damaged, match="missing from the store"):
        list(read_part(folder, part))


def test_an_attempt_that_fails_takes_its_parts_away(tmp_path: Path):
    def fail(file: Any) -> None:
        file.write(b"half")
        raise ValueError("no")

    folder = Folder(tmp_path / "made")
    with pytest.raises(ValueError, match="no"):
        one_part(folder, fail)
    assert list((tmp_path / "made").iterdir()) == []


def test_attempts_have_names_of_their_own():
    assert new_attempt("boot\n") != new_attempt("boot\n")
    assert re.fullmatch(r"boot_\d+_\d+", new_attempt("boot\n"))


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("ftp://host/x", "this kind of store is not supported"),
        ("s3://key:secret@bucket/x", "a URL with credentials is refused"),
        ("s3://bucket/x?access_key=1", "unknown key 'access_key' in the URL"),
    ],
)
def test_refused_places(where: str, why: str):
    with pytest.raises(DatasetError, match=why) as refused:
        open_store(where)
    assert "secret@" not in str(refused.value)


def test_object_stores_need_pyarrow(monkeypatch: pytest.MonkeyPatch):
    for name in ("pyarrow", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(
        DatasetError, match=r"an object store needs the Python package pyarrow.*perphd\[export\]"
    ):
        open_store("s3://bucket/x")


def test_places_below_a_place():
    assert inside("/srv/exports/", "db1", "now") == "/srv/exports/db1/now"
    assert inside("s3://b/x?region=eu", "db1") == "s3://b/x/db1?region=eu"


# --- telemetry ------------------------------------------------------------------------------------------------------


def sample_store(path: Path, samples: int, start_s: float = 1e9) -> Path:
    store = SampleStore(path, 1e9, 1 << 30)
    store.start()
    for n in range(samples):
        store.add_samples(start_s + n, [Sample("db", float(n), 1.0, cpu_usage_cores=n / 7)])
    store.close()
    return path


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    (folder / "models").mkdir()
    (folder / "models" / "db.model").write_bytes(b"a model")
    return sample_store(folder / "perphd.db", 12_000)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_large_table_becomes_several_whole_parts(telemetry: Path, tmp_path: Path, form: str):
    pandas = pytest.importorskip("pandas")
    folder = Folder(tmp_path)
    with attempt(folder) as made:
        assert export_parts(telemetry, ["samples", "outcomes"], made, form, part_bytes=1) == 12_000
        manifest = made.commit()
    assert [part.rows for part in manifest.parts] == [5000, 5000, 2000]
    assert {part.source for part in manifest.parts} == {"samples"}
    read = {
        "csv": pandas.read_csv,
        "jsonl": lambda path: pandas.read_json(path, lines=True),
        "parquet": pandas.read_parquet,
    }[form]
    frame = pandas.concat(read(tmp_path / part.name) for part in manifest.parts)
    assert frame["cpu_usage_cores"].tolist() == pytest.approx([n / 7 for n in range(12_000)])


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_memory_does_not_grow_with_the_table(tmp_path: Path, form: str):
    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.db"
        sample_store(path, 1)
        with sqlite3.connect(path) as db:
            db.execute(
                "INSERT INTO events WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?) "
                "SELECT n, 'kind', printf('%0200d', n) FROM c",
                (rows,),
            )
        db.close()
        tracemalloc.start()
        try:
            with attempt(Folder(tmp_path / f"out-{rows}")) as made:
                export_parts(path, ["events"], made, form, part_bytes=1 << 20)
                made.commit()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(11_000), peak(22_000)
    assert many < few + (1 << 20), "11 000 rows are 2.5 MB"


def test_export_to_a_folder_and_an_object_store(telemetry: Path, tmp_path: Path, server: ObjectServer):
    server.revive()
    for where in (str(tmp_path / "made"), server.url("cli/everything")):
        arguments = ["export", "all", "--format", "parquet", "--to", where, "--store", str(telemetry)]
        done = CliRunner().invoke(perphctl, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        manifest = read_manifest(open_store(where))
        assert (told["attempt"], told["rows"], told["parts"]) == (manifest.attempt, 12_000, 2)
        assert {part.source for part in manifest.parts} == {"samples", "models/db.model"}
        assert read_all(open_store(where))["models/db.model"] == b"a model"
        again = CliRunner().invoke(perphctl, arguments)
        assert again.exit_code == 1
        assert "holds a committed dataset" in again.output
        assert tool.main(["verify", where]) == 0
        assert tool.main(["get", where, str(tmp_path / "copy")]) == 0
        copied = [tmp_path / "copy" / part.name for part in manifest.parts]
        assert [path.stat().st_size for path in copied] == [part.bytes for part in manifest.parts]
    with pytest.raises(DatasetError, match="not a table"):
        contents("sqlite_master")


@pytest.mark.parametrize(
    "arguments",
    [["samples"], ["samples", "-o", "x", "--to", "y"], ["--to", "y"], ["--replay", "x", "--to", "y"]],
)
def test_export_says_where_to(arguments: list[str]):
    assert CliRunner().invoke(perphctl, ["export", *arguments]).exit_code == 2


def test_the_tool_commits_a_folder_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "results"
    (results / "raw").mkdir(parents=True)
    (results / "raw" / "run.json").write_text("{}")
    (results / "report.md").write_text("# report")
    assert tool.main(["put", str(results), str(tmp_path / "made")]) == 0
    assert read_all(Folder(tmp_path / "made")) == {"raw/run.json": b"{}", "report.md": b"# report"}
    assert tool.main(["put", str(results), str(tmp_path / "made")]) == 1
    assert "already committed" in capsys.readouterr().err
    assert tool.main(["verify", str(tmp_path / "nothing")]) == 1


@given(st.integers(0, 40), st.integers(0, 40), st.integers(-1, 40), st.floats(0, 3599), st.floats(0, 3599))
def test_windows_to_ship(now: int, oldest: int, committed: int, into_now_s: float, into_oldest_s: float):
    now_s, oldest_row_s = now * 3600.0 + into_now_s, oldest * 3600.0 + into_oldest_s
    found = unshipped(now_s, oldest_row_s, 3600.0, lambda start_s: start_s <= committed * 3600.0)
    assert found == sorted(found)
    for start_s in found:
        assert start_s % 3600.0 == 0.0
        assert start_s > committed * 3600.0  # none twice
        assert start_s + 3600.0 <= now_s - LATE_S  # complete
        assert start_s + 3600.0 > oldest_row_s  # not before anything was stored
    whole = {n * 3600.0 for n in range(oldest, now) if n > committed and (n + 1) * 3600.0 <= now_s - LATE_S}
    assert set(found) == whole  # all of them


def test_ship_commits_each_hour_once_and_goes_on_after_a_failure(telemetry: Path, server: ObjectServer):
    to = server.url("hosts")
    first_s = 1e9 // 3600 * 3600
    now_s = first_s + 4 * 3600 + LATE_S

    def run(now_s: float) -> list[str]:
        return list(ship(to, str(telemetry), "db1", 3600.0, "csv", now_s))

    server.revive()
    server.dies_after = (
        10  # five manifests are looked for with a request each, then it dies within the shipment
    )
    with pytest.raises(DatasetError):
        run(now_s)
    server.revive()
    told = run(now_s)
    assert 1 <= len(told) <= 4
    names = ["20010909T010000Z", "20010909T020000Z", "20010909T030000Z", "20010909T040000Z"]
    manifests = [read_manifest(open_store(inside(to, "db1", name))) for name in names]
    assert sum(part.rows or 0 for manifest in manifests for part in manifest.parts) == 11_600, (
        "400 s are not whole"
    )
    assert [part.source for part in manifests[-1].parts] == ["samples", "models/db.model"]
    assert run(now_s) == ["nothing to ship: all complete windows are committed"]
    assert len(run(now_s + 3600)) == 1


def test_the_command_that_the_timer_runs(tmp_path: Path):
    store = sample_store(tmp_path / "perphd.db", 1, time.time() - 2 * 86400)
    arguments = ["ship", "--store", str(store), "--format", "csv", "--host", "db1", "--every", "86400"]
    done = CliRunner().invoke(perphd, arguments, env={"PERPHD_SHIP_TO": str(tmp_path)})
    assert done.exit_code == 0, done.output
    folders = sorted(path.name for path in (tmp_path / "db1").iterdir())
    assert 1 <= len(folders) <= 3
    assert all((tmp_path / "db1" / name / SUCCESS).is_file() for name in folders)
    refused = CliRunner().invoke(
        perphd, [*arguments, "--host", "../x"], env={"PERPHD_SHIP_TO": str(tmp_path)}
    )
    assert refused.exit_code == 1
    assert "cannot name a host" in refused.output


def test_the_example_for_pandas_reads_what_was_committed(telemetry: Path, tmp_path: Path):
    pytest.importorskip("pandas")
    commit(Folder(tmp_path), str(telemetry), ["samples"], "parquet")
    page = (ROOT / "docs/how-to/export.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = example.replace("s3://telemetry/hosts/db1/20261123T030000Z", str(tmp_path))
    assert script != example
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "12000" in done.stdout


def test_names_cover_every_table():
    assert set(contents("all")) == {*TABLES, "models"}
