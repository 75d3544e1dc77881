"""The bench's own arithmetic and its report; what it measures is the machine's matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perphd.config.file import parse
from perphd.domain.workload import Kind, Mode
from tools.bench import report
from tools.bench.memory import _absolute
from tools.bench.reaction import Reaction, _quantile
from tools.bench.scene import configuration


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)]
)
def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    assert _quantile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_quantile_of_one_value_is_that_value() -> None:
    assert _quantile([3.0], 0.99) == 3.0


@pytest.mark.parametrize(
    ("name", "package", "level", "expected"),
    [
        ("numpy", "perphd", 0, "numpy"),
        ("agent", "perphd.agent", 1, "perphd.agent.agent"),
        ("host", "perphd.agent", 2, "perphd.host"),
        ("", "perphd.agent", 1, "perphd.agent"),
    ],
)
def test_relative_imports_are_charged_to_their_package(
    name: str, package: str, level: int, expected: str
) -> None:
    assert _absolute(name, {"__package__": package}, level) == expected


@pytest.mark.parametrize(("count", "lras"), [(1, 1), (4, 1), (50, 10), (200, 40)])
def test_the_measured_configuration_is_what_it_says(count: int, lras: int) -> None:
    config = parse(configuration([f"/bench/w{number}" for number in range(count)], Path("/state")), "bench")
    assert len(config.workloads) == count
    assert len(config.of_kind(Kind.LRA)) == lras
    assert config.daemon.mode is Mode.ENFORCE


def _whole(cpu_pct: float) -> dict[str, Any]:
    return {
        "workloads": 50, "seconds": 60.0, "cpu_pct": cpu_pct, "rss_bytes": 60 << 20, "rss_peak_bytes": 61 << 20,
        "pss_bytes": 0, "threads": 3, "open_fds": 700, "start_s": 0.5, "missed_ticks": 0, "tick_ms_p50": 4.0,
        "tick_ms_p99": 9.0,
        "imports": {"bare_bytes": 10 << 20, "total_bytes": 50 << 20, "packages_bytes": {"numpy": 15 << 20}},
    }  # fmt: skip


def _reaction(p99_ms: float) -> dict[str, Any]:
    return Reaction(50, 300, 80.0, 10.0, p99_ms, 40.0, 15.0, 45.0, 0.5, 4.0, 6.0).as_dict()


def test_the_report_holds_figures_against_their_budgets(tmp_path: Path) -> None:
    ticks = [report.Tick(50, {"whole": (0.004, 0.0002), "plan": (0.00002, 0.000001)})]
    text = report.write(tmp_path, "hybrid", ticks, _whole(1.5), [_reaction(19.9), _reaction(20.1)])
    assert "| 50 | 4.00 ± 0.20 | 0.020 ± 0.001 |" in text
    assert "| CPU, share of one core | 1.50 % | 1 % | **missed** |" in text
    assert "| resident memory (RSS) | 60.0 MiB | 80.0 MiB | kept |" in text
    assert "not told by this kernel" in text
    assert [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if "| 300 |" in line] == [
        "kept",
        "**missed**",
    ]
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["process"]["cpu_pct"] == 1.5
    assert content["budgets"] == {"cpu_pct": 1.0, "rss_bytes": 80 << 20, "reaction_p99_ms": 20.0}
    assert (tmp_path / "report.md").read_text().rstrip() == text.rstrip()


def test_a_part_that_was_not_measured_is_not_in_the_report(tmp_path: Path) -> None:
    text = report.write(tmp_path, "v2", [], None, [])
    assert "|" not in text
    assert "v2 cgroups" in text
