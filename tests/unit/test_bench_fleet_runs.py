"""Runs of the fleet's bench: an interrupted one goes on where it was, and its report has tables and plots."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tools.bench.fleet.__main__ import Tables
from tools.bench.fleet.runs import BenchRuns, CaseRun

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")

CALLS: list[tuple[str, int]] = []


@dataclass(frozen=True, slots=True)
class Figures:
    value: float
    count: int


def run_of(case: str, seed: int) -> Figures:
    CALLS.append((case, seed))
    if case == "broken":
        raise RuntimeError("interrupted")
    return Figures(np.float64("nan") if case == "none" else np.float64(seed / 3), seed)


def test_an_interrupted_bench_repeats_only_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    CALLS.clear()
    with ThreadPoolExecutor(1) as pool:
        runs = BenchRuns(pool, tmp_path)
        with pytest.raises(RuntimeError, match="interrupted"):
            runs.of("toy", run_of, [("a", 1), ("none", 2), ("broken", 3)])
        found = BenchRuns(pool, tmp_path).of("toy", run_of, [("a", 1), ("none", 2), ("b", 3)])
    assert CALLS == [("a", 1), ("none", 2), ("broken", 3), ("b", 3)]
    assert found[0] == Figures(1 / 3, 1)
    assert found[1].value != found[1].value
    assert capsys.readouterr().err.splitlines()[-1] == "toy: 3 of 3 runs"


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        runs = BenchRuns(pool, None)
        found = runs.of("toy", run_of, [("a", 1)])
        runs.keep("toy", [CaseRun("a", 1, found[0])])
    assert not list(tmp_path.iterdir())


def test_a_table_becomes_parquet_a_plot_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from pyarrow import parquet

    with ThreadPoolExecutor(2) as pool:
        Tables(BenchRuns(pool, tmp_path), 2, 60).sizes()
    rows = parquet.read_table(tmp_path / "sizes.parquet").to_pylist()
    assert len(rows) == 16
    assert {row["seed"] for row in rows} == {0, 1}
    assert all(row["mean_s"] > 0 for row in rows)
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.splitlines()
    assert (tmp_path / "report.md").read_text().splitlines()[: len(printed)] == printed
    assert len(printed) == 10
