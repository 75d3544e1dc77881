"""A simulated fleet that is killed goes on from its last checkpoint, with the same results to the last byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.domain.errors import PerphError
from perphd.domain.workload import Objective
from perphd.qos.event_mode import CopperEvent
from perphd.sim.cluster import checkpoint
from perphd.sim.cluster.bands import CopperSettings
from perphd.sim.cluster.checkpoint import CheckpointRefused, Checkpoints, run_of
from perphd.sim.cluster.fleet_events import digest
from perphd.sim.cluster.fleet_results import FleetRun
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FleetShape, drawn
from perphd.sim.cluster.node_agents import NodeAgents
from perphd.sim.cluster.simulator import FleetSimulator

SHAPE = FleetShape(
    nodes=4, hours=0.25, service_requests=0.3, jobs_per_h=240, median_run_s=150, services=5, batches=4
)
UNTIL_S, EVERY_S = 900.0, 120.0
SETTINGS = {
    "optum, which learns": FleetSettings(PlacementSettings("optum"), learn=True, tick_s=60.0),
    "history of use": FleetSettings(PlacementSettings("n-sigma"), tick_s=60.0),
    "distributions": FleetSettings(PlacementSettings("distribution")),
    "schedulers that meet, on a fleet as it was found": FleetSettings(
        PlacementSettings("alignment"), schedulers=4, placed=True
    ),
    "copper with an event": FleetSettings(
        PlacementSettings("balanced"),
        schedulers=2,
        copper=CopperSettings(CopperEvent(300.0, 300.0, 0.3, 60.0)),
    ),
    "perphd on the nodes": FleetSettings(
        PlacementSettings("balanced"), agents=NodeAgents(Objective(), active=True)
    ),
}


def fresh(settings: FleetSettings) -> FleetSimulator:
    return FleetSimulator(drawn(SHAPE, 1), SHAPE.nodes, settings)


def results(run: FleetRun) -> tuple[object, ...]:
    arrays = ("started_s", "ended_s", "worst_stall", "work_done", "slow_share", "evictions")
    learned = run.learned
    return (
        digest(run.events),
        repr(run.ticks),
        run.decisions,
        run.conflicts,
        *(getattr(run, name).tobytes() for name in arrays),
        None if learned is None else repr(learned.usage),
        None if learned is None else [(name, law.tobytes()) for name, law in learned.laws.items()],
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_goes_on_from_any_checkpoint_ends_as_if_it_had_never_stopped(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    kept = Checkpoints(path, "r", EVERY_S)
    copies: list[bytes] = []

    def save(simulator: FleetSimulator) -> None:
        kept.after_cycle(simulator)
        if path.exists() and (not copies or path.read_bytes() != copies[-1]):
            copies.append(path.read_bytes())

    whole = results(fresh(SETTINGS[name]).run(UNTIL_S))
    assert results(fresh(SETTINGS[name]).run(UNTIL_S, after_cycle=save)) == whole, "saving changes nothing"
    assert len(copies) >= 4
    for copy in copies:
        path.write_bytes(copy)
        path.chmod(0o600)
        simulator = Checkpoints(path, "r", EVERY_S).load()
        assert simulator is not None
        assert simulator.now_s > 0.0
        assert results(simulator.run(UNTIL_S)) == whole


KILLED = """
import os, signal, sys
from pathlib import Path
from perphd.sim.cluster.checkpoint import Checkpoints
from perphd.sim.cluster.fleet_events import digest
from tests.unit.test_sim_cluster_checkpoint import EVERY_S, SETTINGS, UNTIL_S, fresh

kept, kill_s = Checkpoints(Path(sys.argv[1]), "r", EVERY_S), float(sys.argv[2])
simulator = kept.load() or fresh(SETTINGS["optum, which learns"])
began_s = simulator.now_s

def after_cycle(simulator):
    kept.after_cycle(simulator)
    if simulator.now_s >= kill_s:
        os.kill(os.getpid(), signal.SIGKILL)

print(began_s, digest(simulator.run(UNTIL_S, after_cycle=after_cycle).events))
"""


def test_a_killed_process_is_continued_by_another_one(tmp_path: Path) -> None:
    def go(kill_s: float, seed: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(kill_s)]
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        return subprocess.run(
            command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip

    assert go(300.0, "1").returncode == -signal.SIGKILL
    (tmp_path / ".run.new").write_bytes(b"half a checkp")  # killed while it wrote the next one
    assert go(600.0, "2").returncode == -signal.SIGKILL
    done = go(1e9, "3")
    assert done.returncode == 0, done.stderr
    began_s, log = done.stdout.split()
    assert 300.0 < float(began_s) < UNTIL_S
    assert log == digest(fresh(SETTINGS["optum, which learns"]).run(UNTIL_S).events)


def test_what_would_go_on_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    simulator = fresh(SETTINGS["distributions"])
    simulator.run(60.0)
    workload = simulator.workload
    run = run_of((workload.types, *workload.pods, SETTINGS["distributions"]))
    assert Checkpoints(path, run, EVERY_S).load() is None
    Checkpoints(path, run, EVERY_S).save(simulator)
    good = path.read_bytes()
    assert Checkpoints(path, run, EVERY_S).load() is not None
    fewer = run_of((workload.types, *workload.pods[1:], SETTINGS["distributions"]))
    other = run_of((workload.types, *workload.pods, replace(SETTINGS["distributions"], cycle_s=30.0)))
    for different in (fewer, other):
        with pytest.raises(CheckpointRefused, match="belongs to another run"):
            Checkpoints(path, different, EVERY_S).load()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "code_digest", lambda: "0" * 64)
        with pytest.raises(CheckpointRefused, match="another version of perphd, Python or numpy made it"):
            Checkpoints(path, run, EVERY_S).load()
    for damaged, why in (
        (good[:-1], "damaged"),
        (good[:-1] + bytes([good[-1] ^ 1]), "damaged"),
        (good[:40], "does not begin with"),
        (b"", "does not begin with"),
        (b"\x80\x05.", "does not begin with"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointRefused, match=why):
            Checkpoints(path, run, EVERY_S).load()
    path.write_bytes(good)
    path.chmod(0o622)
    with pytest.raises(CheckpointRefused, match="nobody else may write"):
        Checkpoints(path, run, EVERY_S).load()
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(CheckpointRefused, match="nobody else may write"):
        Checkpoints(path, run, EVERY_S).load()


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    simulator = fresh(SETTINGS["distributions"])
    kept = Checkpoints(path, "r", EVERY_S)
    kept.save(simulator)
    before = path.read_bytes()
    simulator.run(60.0)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PerphError, match="No space"):
        kept.save(simulator)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_a_full_disk_costs_checkpoints_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = results(fresh(SETTINGS["distributions"]).run(UNTIL_S))
    monkeypatch.setattr(os, "fsync", _full_twice(os.fsync))
    kept = Checkpoints(tmp_path / "run", "r", EVERY_S)
    assert results(fresh(SETTINGS["distributions"]).run(UNTIL_S, after_cycle=kept.after_cycle)) == wanted
    assert caplog.text.count("no checkpoint at 0.0") == 2
    assert "No space left on device" in caplog.text
    assert kept.load() is not None, "it is tried again when the next one is due"


def _full_twice(fsync: Callable[[int], None]) -> Callable[[int], None]:
    refused = iter((True, True))

    def full(descriptor: int) -> None:
        if next(refused, False):
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    return full
