"""A small version of tools/bench/trial: intervals cover the truth, nothing gets no credit, harm is stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.bench.trial.__main__ import main, summary
from tools.bench.trial.report import coverage
from tools.bench.trial.world import METRICS, WORLDS, run


def test_intervals_cover_the_truth_and_an_effect_is_claimed() -> None:
    results = [summary("short", seed, run(WORLDS["short"], seed)) for seed in range(24)]
    covered, known = coverage(results)
    assert known >= 23 * len(METRICS)
    # 120 intervals, about 6 of them beside the truth: 14 would be beyond any chance.
    assert covered >= known - 14
    assert all(any(metric["claimed"] for metric in result["metrics"]) for result in results)


def test_a_policy_that_does_nothing_is_credited_with_nothing() -> None:
    results = [summary("nothing", seed, run(WORLDS["nothing"], seed)) for seed in range(12)]
    assert sum(any(metric["claimed"] for metric in result["metrics"]) for result in results) <= 3


@pytest.mark.parametrize("seed", range(20))
def test_a_harmful_policy_is_stopped_within_two_enforced_blocks(seed: int) -> None:
    made = run(WORLDS["very-harmful"], seed)
    assert made.record.ending is not None
    assert made.record.ending.how == "harm"
    assert made.enforced_blocks <= 2


def test_the_bench_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path), "--trials", "2", "--jobs", "1", "--only", "very-harmful"]
    main(words)
    first = capsys.readouterr().out
    assert "| very-harmful | 2 |" in first
    file = tmp_path / "very-harmful-0000.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"enforced_blocks": 99}))
    main(words)
    assert "99" in capsys.readouterr().out, "what is there is not made again"
