"""Hints: who is asked to use less of which device, and where it reads that."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from perphd.agent.devices.hints import NO_HINT, Hints, hints_file
from perphd.control.client import Client, Refused
from perphd.domain.contention import ContendedDevice, ContendedShare
from tests.unit.control_fake import PI, serving
from tests.unit.queue_world import World, spec

CONTENDED = (
    ContendedDevice(
        "disk",
        "8:0",
        1,
        (ContendedShare("scan", "hint", 20e6), ContendedShare("job-4", "device ceiling", 1e6)),
    ),
    ContendedDevice("link", "eth0", 2, (ContendedShare("scan", "device ceiling", 1.5e6),)),
)


def told(folder: Path, name: str) -> dict[str, str]:
    text = hints_file(folder, name).read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_taker_is_told_its_devices_and_limits_and_others_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "hints"
    hints = Hints(folder)
    previous = os.umask(0o077)
    try:
        assert hints.write(["scan", "job-4"], {"scan"}, CONTENDED) == ""
    finally:
        os.umask(previous)
    assert told(folder, "scan") == {
        "PERPHD_BACK_OFF": "disk:8:0,link:eth0",
        "PERPHD_BACK_OFF_BYTES_S": "20000000,1500000",
    }
    assert hints_file(folder, "job-4").read_text() == NO_HINT, "it is only observed"
    assert stat.S_IMODE(hints_file(folder, "scan").stat().st_mode) == 0o644
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_hint_ends_with_the_contention_and_its_file_with_the_workload_and_the_daemon(
    tmp_path: Path,
) -> None:
    hints = Hints(tmp_path)
    hints.write(["scan", "job-4"], {"scan", "job-4"}, CONTENDED)
    hints.write(["scan", "job-4"], {"scan", "job-4"}, ())
    assert hints_file(tmp_path, "scan").read_text() == NO_HINT
    hints.write(["scan"], {"scan"}, CONTENDED)
    assert [path.name for path in tmp_path.iterdir()] == ["scan.env"]
    hints.close()
    assert list(tmp_path.iterdir()) == []


def test_hints_of_a_daemon_that_was_killed_are_taken_back(tmp_path: Path) -> None:
    Hints(tmp_path).write(["scan", "gone.db"], {"scan", "gone.db"}, CONTENDED)
    assert Hints(tmp_path).write(["scan"], {"scan"}, ()) == ""
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"scan.env": NO_HINT}


def test_a_file_that_cannot_be_written_is_a_problem_and_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "hints"
    folder.write_text("in the way")
    hints = Hints(folder)
    assert "the hint cannot be written" in hints.write(["scan"], {"scan"}, CONTENDED)
    folder.unlink()
    assert hints.write(["scan"], {"scan"}, CONTENDED) == ""
    assert told(folder, "scan")["PERPHD_BACK_OFF"] == "disk:8:0,link:eth0"


async def test_a_job_that_takes_hints_finds_its_file_from_its_first_moment_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.daemon()
    await queue.submit([spec(hints=True), spec()])
    await world.look(queue)
    await world.look(queue)
    file = world.units.environments[1]["PERPHD_HINTS_FILE"]
    assert Path(file).name == "job-1.env"
    assert Path(file).read_text() == NO_HINT
    assert "PERPHD_HINTS_FILE" not in world.units.environments[2]
    assert {name: each.takes_hints for name, each in world.side.workloads.items()} == {
        "job-1": True,
        "job-2": False,
    }
    queue.close()


def test_a_workload_asks_through_the_socket_from_which_devices_to_back_off(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = Client(served.socket)
        assert client.get("contention") == {"devices": []}
        served.agent.devices = (
            ContendedDevice("disk", "8:0", 1, (ContendedShare(PI.name, "hint", 20e6),)),
            ContendedDevice("link", "eth0", 2, (ContendedShare("another", "cpu ceiling", 1.5e6),)),
        )
        assert [each["device"] for each in client.get("contention")["devices"]] == ["8:0", "eth0"]
        (mine,) = client.get("contention", workload=PI.name)["devices"]
        assert mine == {
            "kind": "disk",
            "device": "8:0",
            "round": 1,
            "restrictions": [{"workload": PI.name, "rung": "hint", "limit_bytes_s": 20e6}],
        }
        with pytest.raises(Refused, match="nobody"):
            client.get("contention", workload="nobody")
