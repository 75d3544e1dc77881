"""The bench as a command, small: everything from scenarios to report, going on after an interruption, and its order."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.sim.node.machine import Machine
from tools.bench.policies import __main__ as bench
from tools.bench.policies import agentmode, grids, measure, oracle_units, results, scenarios
from tools.bench.policies.catalogue import ENTRANTS
from tools.bench.policies.driver import run
from tools.bench.policies.scene import Scenario

MACHINE = Machine(1, 6, 2, llc_ways=6, l3_bytes=8 << 20, memory_bytes_per_s=20e9)


def tiny() -> list[Scenario]:
    actors = (
        scenarios.service(MACHINE, "masstree", 0.5),
        scenarios.batch("batch-thrash", threads=12, starts_s=10.0),
    )
    plain = Scenario("tiny", "paper", "a small host", MACHINE, actors, 50.0, count_from_s=10.0, step_s=0.5)
    quiet = replace(
        plain, name="tiny-quiet", family="quiet", actors=actors[:1], oracle=False, duration_s=30.0
    )
    return [plain, quiet]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(scenarios, "quick", tiny)
    monkeypatch.setattr(results, "code_digest", lambda **_: "this code")

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--jobs", "1", "--out", str(tmp_path), *words])
        return bench.main()

    return call


def test_the_whole_command(call, tmp_path: Path, capsys):
    assert call("--policies", "none,parties,perph") == 0
    rows = {
        (row["scenario"], row["policy"]): row for row in csv.DictReader((tmp_path / "results.csv").open())
    }
    assert len(rows) == 6
    missed = {policy: float(rows["tiny", policy]["violation_s"]) for policy in ("none", "parties", "perph")}
    assert missed["none"] > 30.0, "without anybody's help the service suffers"
    assert missed["perph"] < missed["none"]
    assert missed["parties"] < 0.4 * missed["none"]
    assert 0.02 < float(rows["tiny", "perph"]["good_of_oracle"]) <= 1.03
    assert float(rows["tiny-quiet", "perph"]["violation_s"]) == 0.0
    for name in ("report.md", "report.html", "headline.md"):
        assert "perph" in (tmp_path / name).read_text()
    assert "could not be computed" not in capsys.readouterr().err
    # Again: nothing is left to compute. With a result lost: that one alone.
    kept = (tmp_path / "results.jsonl").read_text().splitlines()
    call("--policies", "none,parties,perph")
    assert (tmp_path / "results.jsonl").read_text().splitlines() == kept
    (tmp_path / "results.jsonl").write_text("\n".join(kept[:-1]) + '\n{"key": "cut sh')
    call("--policies", "none,parties,perph")
    lines = results.Lines(tmp_path / "results.jsonl", "this code")
    values = {json.loads(line)["key"]: json.loads(line)["value"] for line in kept}
    assert lines.known.keys() == values.keys()
    timed = {"decide_ms", "decide_p99_ms", "learn_ms"}
    for key, value in lines.known.items():
        assert {k: v for k, v in value.items() if k not in timed} == {
            k: v for k, v in values[key].items() if k not in timed
        }, f"{key}: computed anew, the same comes out"


def test_what_cannot_be_computed_is_told_and_the_rest_is_there(call, tmp_path: Path, capsys, monkeypatch):
    def broken(scene: Scenario, seed: int):
        raise RuntimeError("broken policy")

    monkeypatch.setitem(ENTRANTS, "static", replace(ENTRANTS["static"], make=broken))
    assert call("--policies", "none,static", "--scenarios", "tiny") == 1
    assert "tiny|static|0: RuntimeError: broken policy" in capsys.readouterr().err
    assert "**1 could not be computed**" in (tmp_path / "report.md").read_text()
    assert "tiny,paper,none" in (tmp_path / "results.csv").read_text()


def test_oracle_in_the_space_of_parts_is_not_beaten_there():
    actors = tuple(
        scenarios.service(MACHINE, name, 0.2, tolerance=grids.TOLERANCE) for name in ("masstree", "memcached")
    )
    scenario = Scenario(
        "cell", "grid", "", MACHINE, (*actors, scenarios.batch("batch-stream", threads=12)), 60.0, step_s=0.5
    )
    best = oracle_units.divided(measure.situation_at(scenario, 0.0))
    assert best.feasible
    assert best.how.startswith("parts: cores ")
    for policy in ("parties", "parties-literal"):
        entrant = ENTRANTS[policy]
        done = run(scenario, entrant.make(scenario, 0), 2.0, 0)
        missed, work = measure.tail(done, 20.0)
        assert missed > 0.1 or work <= best.work * 1.03, policy


def test_the_scene_that_speed_is_measured_in():
    scene = agentmode.scene(agentmode.SPEED)
    assert scene.machine.cores == 16
    assert len(scene.actors) == 3
