"""Queries read and nothing else; exports hold what the store holds."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perphd.dataset.stores as stores_module
from perphd.domain.reading import Unavailable
from perphd.domain.sample import READINGS, Sample
from perphd.monitor.export import export
from perphd.monitor.query import QueryError, fetch, reading, run_query
from perphd.monitor.schema import TABLES
from perphd.monitor.store import Store

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("query") / "per phd?.db"  # a name that a careless URI would misread
    store = Store(made, 1e9, 1 << 30)
    store.start()
    for n in range(6000):
        missing = Unavailable('no PMU, or "none", \nat all')
        store.add_samples(1e9 + n, [Sample("db", float(n), 1.0, cpu_usage_cores=n / 7, mips=missing)])
    store.close()
    return made


def test_columns_rows_and_truncation(path: Path):
    result = run_query(path, "SELECT at_s, mips FROM samples ORDER BY at_s", limit=2)
    assert result.columns == ("at_s", "mips")
    assert result.rows == ((0.0, None), (1.0, None))
    assert result.truncated
    assert not run_query(path, "SELECT 1 UNION SELECT 2", limit=2).truncated
    assert run_query(path, "SELECT 1 WHERE 0").rows == ()
    assert len(run_query(path, "PRAGMA table_info(samples)").rows) == len(READINGS) + 7


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM samples",
        "INSERT INTO events VALUES (1, 'x', 'y')",
        "UPDATE samples SET mips = 1",
        "DROP TABLE samples",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "ATTACH DATABASE '/tmp/other.db' AS other",
        "VACUUM INTO '/tmp/copy.db'",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = ON",
        "SELECT load_extension('/tmp/x.so')",
        "BEGIN EXCLUSIVE",
        "ANALYZE",
        "REINDEX",
    ],
)
def test_anything_but_reading_is_refused(path: Path, sql: str):
    before = path.read_bytes()
    with pytest.raises(QueryError, match=r"only be read|refused|not authorized"):
        run_query(path, sql)
    assert path.read_bytes() == before
    assert run_query(path, "SELECT count(*) FROM samples").rows == ((6000,),)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT 1; DELETE FROM samples", "one statement"),
        ("SELECT * FROM nowhere", "no such table"),
        ("", "no result"),
        ("-- only a comment", "no result"),
        ("SELECT zeroblob(100000000)", "too big"),
        ("SELECT 'a' LIKE printf('%.*c', 201, '%')", "pattern too complex"),
        ("SELECT '\x00", "cannot be run"),
        ("SELECT \ud800", "cannot be run"),
    ],
)
def test_wrong_queries_say_why(path: Path, sql: str, why: str):
    with pytest.raises(QueryError, match=why):
        run_query(path, sql)


def test_endless_query_ends(path: Path):
    with pytest.raises(QueryError, match=r"exceeded its limit of 0\.1 s"):
        run_query(path, ENDLESS, timeout_s=0.1)


def test_large_answers_are_cut(path: Path):
    result = run_query(path, "SELECT zeroblob(1000000) FROM samples", limit=10_000)
    assert result.truncated
    assert len(result.rows) < 100


@given(sql=st.text(max_size=60))
def test_any_text_is_answered_or_refused(path: Path, sql: str):
    try:
        run_query(path, sql, timeout_s=1.0)
    except QueryError as exc:
        assert str(exc)  # noqa: PT017


@pytest.mark.parametrize(("limit", "timeout_s"), [(0, 1.0), (1, 0.0)])
def test_bounds_are_needed(path: Path, limit: int, timeout_s: float):
    with pytest.raises(QueryError):
        run_query(path, "SELECT 1", limit, timeout_s)


def test_no_store_and_no_database(tmp_path: Path):
    with pytest.raises(QueryError, match="there is no store"):
        run_query(tmp_path / "missing.db", "SELECT 1")
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text.db").write_text("hello, this is not a database, not even a small one" * 50)
    with pytest.raises(QueryError, match="not a database"):
        run_query(tmp_path / "text.db", "SELECT 1")


def test_reading_while_the_daemon_writes(tmp_path: Path):
    path = tmp_path / "live.db"
    store = Store(path, 1e9, 1 << 30)
    store.start()
    while not path.exists():
        store.add_samples(1e9, [Sample("db", 0.0, 1.0)])
    for n in range(50):
        store.add_samples(1e9 + n, [Sample("db", float(n), 1.0)] * 50)
    try:
        while run_query(path, "SELECT count(*) FROM samples").rows[0][0] == 0:
            pass
    except QueryError as exc:
        assert "no such table" in str(exc)  # noqa: PT017 - asked before the first commit
    store.close()
    assert store.problem is None


# -- export -------------------------------------------------------------------------------------------------


def test_csv_round_trip(path: Path, tmp_path: Path):
    out = tmp_path / "samples.csv"
    assert export(path, "samples", out, "csv") == 6000
    with open(out, encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["cpu_usage_cores"]) for row in read] == [n / 7 for n in range(6000)]
    assert {row["mips"] for row in read} == {""}
    assert read[0]["reasons"] == run_query(path, "SELECT reasons FROM samples LIMIT 1").rows[0][0]
    assert list(tmp_path.iterdir()) == [out]


def test_parquet_round_trip(path: Path, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "samples.parquet"
    assert export(path, "samples", out, "parquet") == 6000
    table = parquet.read_table(out)
    assert table.column("cpu_usage_cores").to_pylist() == [n / 7 for n in range(6000)]
    assert table.column("mips").null_count == 6000
    assert str(table.schema.field("workload").type) == "string"


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("fmt", ["csv", "jsonl", "parquet"])
def test_every_table_exports_even_when_empty(path: Path, tmp_path: Path, table: str, fmt: str):
    if fmt == "parquet":
        pytest.importorskip("pyarrow")
    assert export(path, table, tmp_path / "out", fmt) == (6000 if table == "samples" else 0)
    assert (tmp_path / "out").stat().st_size > 0 or fmt == "jsonl"


def test_json_lines_round_trip(path: Path, tmp_path: Path):
    out = tmp_path / "samples.jsonl"
    assert export(path, "samples", out, "jsonl") == 6000
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["cpu_usage_cores"] for row in rows] == [n / 7 for n in range(6000)]
    assert {row["mips"] for row in rows} == {None}


def test_parquet_without_pyarrow_says_what_to_install(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(
        QueryError, match=r"csv and jsonl work without it. To get it: pip install 'perphd\[export\]'"
    ):
        export(path, "samples", tmp_path / "out", "parquet")
    monkeypatch.setattr(stores_module, "__file__", "/usr/lib/perphd/perphd/dataset/stores.py")
    with pytest.raises(QueryError, match="pip install --upgrade --target /usr/local/lib/perphd 'pyarrow<25'"):
        export(path, "samples", tmp_path / "out", "parquet")
    assert list(tmp_path.iterdir()) == []


def test_refused_exports(path: Path, tmp_path: Path):
    out = tmp_path / "out"
    for table, fmt, why in (
        ("sqlite_master", "csv", "not a table"),
        ("samples", "xml", "csv, jsonl, parquet"),
    ):
        with pytest.raises(QueryError, match=why):
            export(path, table, out, fmt)
    with pytest.raises(QueryError, match="cannot be written"):
        export(path, "samples", tmp_path / "no" / "such" / "out", "csv")
    with pytest.raises(QueryError, match="there is no store"):
        export(tmp_path / "missing.db", "samples", out, "csv")
    assert not out.exists()


def test_a_query_is_given_up_for_a_reason_of_the_callers(path: Path):
    asked: list[str] = []

    def stop() -> str:
        asked.append("")
        return "no more" if len(asked) == 3 else ""

    with pytest.raises(QueryError, match=r"^no more$"):
        run_query(path, ENDLESS, timeout_s=600.0, stop=stop)


SPILLS = """
    WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
    SELECT length(b) FROM (SELECT x, zeroblob(900000) AS b FROM c ORDER BY x DESC, b)
"""
"""It sorts without end, some 700 MB per second of CPU time."""


@pytest.mark.skipif(
    not Path("/proc/thread-self/io").exists(), reason="this kernel does not count written bytes"
)
def test_temporary_files_are_bounded(path: Path):
    with (
        pytest.raises(QueryError, match=r"more than 8\.0 MiB of temporary files"),
        reading(path, 60.0, most_spilled_bytes=8 << 20) as connection,
    ):
        fetch(connection, SPILLS, 10)
    with reading(path, 60.0, most_spilled_bytes=8 << 20) as connection:
        found = fetch(connection, "SELECT at_s FROM samples ORDER BY cpu_usage_cores DESC", 1)
    assert found.rows == ((5999.0,),)
