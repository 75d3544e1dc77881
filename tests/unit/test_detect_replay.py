"""Every kind of decision replays bit for bit: several LRAs and where they are placed, precaution, quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.admission.features.quarantine import Quarantine
from perphd.admission.perph import PerphMemory, PerphPolicy
from perphd.admission.settings import PolicySettings
from perphd.domain.decision import Decision
from perphd.domain.policy import Snapshot, TargetState
from perphd.sim.node.machine import Machine
from tools.bench.policies import scenarios
from tools.bench.policies.driver import run
from tools.bench.policies.scene import Actor, Scenario
from tools.replay.recording import Recorder, replay

TWO_SOCKETS = Machine(2, 3, 2, llc_ways=6, l3_bytes=8 << 20, memory_bytes_per_s=20e9)
ONE = Machine(1, 4, 1, llc_ways=4, l3_bytes=8 << 20, memory_bytes_per_s=20e9, mba_levels_pct=(10, 50, 100))

Rounds = list[tuple[Snapshot, TargetState]]


def scene(machine: Machine, *actors: Actor, seconds: float) -> Scenario:
    return Scenario("replayed", "test", "", machine, actors, seconds, step_s=0.5)


def crowd() -> Scenario:
    batch = scenarios.batch("batch-thrash", threads=12, starts_s=8.0)
    lras = [
        scenarios.service(TWO_SOCKETS, name, share) for name, share in (("masstree", 0.5), ("xapian", 0.4))
    ]
    return scene(TWO_SOCKETS, *lras, batch, seconds=40.0)


def one_lra() -> Scenario:
    job = scenarios.batch("batch-thrash", threads=8, starts_s=12.0)
    return scene(ONE, scenarios.service(ONE, "masstree", 0.5), job, seconds=30.0)


class Doubted(PerphPolicy):
    """From the tenth round on, failures are held against every model."""

    def decide(self, snapshot: Snapshot) -> TargetState:
        memory = snapshot.memory
        if snapshot.tick == 9 and isinstance(memory, PerphMemory):
            held = Quarantine(until_s=1e6, times=1)
            lras = {name: replace(state, quarantine=held) for name, state in memory.lras.items()}
            snapshot = replace(snapshot, memory=replace(memory, lras=lras))
        return super().decide(snapshot)


def decisions(rounds: Rounds) -> list[Decision]:
    return [decision for _, target in rounds for decision in target.decisions]


def has_own_cores(rounds: Rounds) -> bool:
    memories = [t.memory for _, t in rounds if isinstance(t.memory, PerphMemory)]
    placed = [m.partitioned.placed for m in memories if m.partitioned is not None]
    alone = {d.workload for d in decisions(rounds) if d.chosen.cpu.own_cores is not None}
    return any(len(p) == 2 for p in placed) and alone == {"masstree", "xapian"}


def was_cautious(rounds: Rounds) -> bool:
    return any("the target is expected to be missed beside it" in d.reason for d in decisions(rounds))


def was_quarantined(rounds: Rounds) -> bool:
    return any("the next rung of the ladder" in d.reason for d in decisions(rounds))


@pytest.mark.parametrize(
    ("scenario", "policy", "happened"),
    [
        (crowd, PerphPolicy, has_own_cores),
        (one_lra, PerphPolicy, was_cautious),
        (one_lra, Doubted, was_quarantined),
    ],
)
def test_it_is_decided_again_bit_for_bit(
    tmp_path: Path,
    scenario: Callable[[], Scenario],
    policy: type[PerphPolicy],
    happened: Callable[[Rounds], bool],
) -> None:
    path, rounds = tmp_path / "run.jsonl", Rounds()
    with path.open("w") as file:
        recorder = Recorder(policy(), file)
        run(scenario(), recorder, 1.0, 0, models=True, watch=lambda *item: rounds.append(item))
    assert happened(rounds)
    assert replay(path, policy()) == (len(rounds), [])
    _, differences = replay(path, policy(PolicySettings(precaution=False, confirm_ticks=9, evaluate_ticks=9)))
    assert differences, "with other settings it would have been decided otherwise"


def test_a_recording_of_before_a_field_of_decisions_replays(tmp_path: Path) -> None:
    path, rounds = tmp_path / "run.jsonl", Rounds()
    with path.open("w") as file:
        run(
            one_lra(),
            Recorder(PerphPolicy(), file),
            1.0,
            0,
            models=True,
            watch=lambda *item: rounds.append(item),
        )
    begin, *lines = path.read_text().splitlines()
    values = [json.loads(line) for line in lines]
    for value in values:
        for decision in value["target"]["decisions"]:
            del decision["to_best"], decision["target_provisional"]
    path.write_text("\n".join([begin, *map(json.dumps, values)]))
    assert replay(path, PerphPolicy()) == (len(rounds), [])
