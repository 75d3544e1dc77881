"""The operator's brake: what a pause covers, how long it lasts, and that it outlives the daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from perphd.agent.announcer import Announcer
from perphd.agent.pauses import FILE, Pauses
from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError
from perphd.domain.event import EventKind


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_pause_that_nobody_requested_is_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(Records(None, lambda: 0.0), RoundClock())
    with caplog.at_level(logging.INFO, logger="perphd"):
        announcer.tell(EventKind.PAUSE, "all workloads: paused by the file /etc/perphd/pause")
        announcer.tell(EventKind.PAUSE, "db: the pause has ended", "db")
        announcer.tell(EventKind.PAUSE, "db: resumed", "db", Actor("ann", 1000, 77, "perphctl"))
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["all workloads: paused by the file /etc/perphd/pause", "db: the pause has ended"]
    assert said[2].startswith("db: resumed; by ann")


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_pause_ends_by_itself_and_says_so_once(tmp_path: Path, clock: Clock) -> None:
    pauses = Pauses(tmp_path, clock)
    await pauses.begin("db", 60.0, "maintenance", "root")
    assert pauses.of("db") is not None
    assert pauses.of("web") is None
    clock.now_s += 59.0
    assert pauses.look() == ()
    assert pauses.of("db") is not None
    clock.now_s += 1.0
    assert pauses.of("db") is None, "a pause that has ended holds for nobody, looked at or not"
    assert pauses.look() == ("db: the pause has ended",)
    assert pauses.look() == ()


async def test_a_pause_outlives_the_daemon(tmp_path: Path, clock: Clock) -> None:
    await Pauses(tmp_path, clock).begin("", None, "incident 4711", "root")
    again = Pauses(tmp_path, clock)
    found = again.of("anything")
    assert found is not None
    assert (found.reason, found.by, found.until_unix_s) == ("incident 4711", "root", None)
    assert await again.end(None) == (found,)
    assert Pauses(tmp_path, clock).all() == ()


async def test_the_loop_goes_on_while_the_disk_keeps_a_pause_waiting(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop and the disk are beside each other: a sync that takes long holds no round up."""
    synced, real = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        synced.wait(30.0)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    pauses = Pauses(tmp_path, clock)
    begun = asyncio.create_task(pauses.begin("db", 60.0, "", "root"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert pauses.of("db") is None, "a pause that is not stored yet is not in force"
    synced.set()
    await begun
    assert pauses.of("db") is not None
    synced.clear()
    clock.now_s += 60.0
    assert pauses.look() == ("db: the pause has ended",)
    synced.set()
    pauses.close()
    assert Pauses(tmp_path, clock).all() == ()


async def test_a_pause_that_ends_while_others_change_neither_comes_back_nor_takes_them_away(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        synced.wait(30.0)
        real(descriptor)

    pauses = Pauses(tmp_path, clock)
    await pauses.begin("short", 60.0, "", "root")
    await pauses.begin("old", None, "", "root")
    monkeypatch.setattr(os, "fsync", slow)
    changes = [
        asyncio.create_task(pauses.begin("db", None, "", "root")),
        asyncio.create_task(pauses.end("old")),
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    clock.now_s += 60.0
    assert pauses.look() == ("short: the pause has ended",)
    synced.set()
    await asyncio.gather(*changes)
    pauses.close()
    for each in (pauses, Pauses(tmp_path, clock)):
        assert [pause.workload for pause in each.all()] == ["db"]
    assert "short" not in (tmp_path / FILE).read_text()


async def test_a_declaration_covers_what_was_found_for_it(tmp_path: Path, clock: Clock) -> None:
    pauses = Pauses(tmp_path, clock)
    await pauses.begin("jobs", None, "", "root")
    assert pauses.of("jobs.0", "jobs") is not None
    assert pauses.of("other.0", "other") is None


async def test_the_pause_file_pauses_everything_while_it_exists(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "pause"
    pauses = Pauses(tmp_path, clock, str(file))
    assert pauses.look() == ()
    file.write_text("deployment running\nsecond line\n")
    assert pauses.look() == (f"all workloads: paused by the file {file}",)
    found = pauses.of("db")
    assert found is not None
    assert found.reason == "deployment running"
    assert found.by == f"the file {file}"
    assert await pauses.end(None) == (), "what a file has set ends with the file"
    assert pauses.of("db") is not None
    file.unlink()
    assert pauses.look() == (f"all workloads: no longer paused by the file {file}",)
    assert pauses.of("db") is None


def test_a_pause_file_that_cannot_be_read_pauses(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "pause"
    file.mkdir()
    pauses = Pauses(tmp_path, clock, str(file))
    pauses.look()
    assert pauses.of("db") is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pauses": [{"workload": "db"}]}'])
async def test_a_damaged_record_pauses_everything_until_resume(
    tmp_path: Path, clock: Clock, text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    pauses = Pauses(tmp_path, clock)
    found = pauses.of("db")
    assert found is not None
    assert FILE in found.reason
    await pauses.end(None)
    assert Pauses(tmp_path, clock).of("db") is None


async def test_a_pause_that_cannot_be_kept_is_refused(tmp_path: Path, clock: Clock) -> None:
    state = tmp_path / "state"
    state.mkdir()
    pauses = Pauses(state, clock)
    state.rmdir()
    state.write_text("")  # not a directory any more
    with pytest.raises(ConfigError, match="cannot be written"):
        await pauses.begin("db", None, "", "root")
    assert pauses.of("db") is None


async def test_a_pause_that_ends_while_the_disk_is_full_ends(tmp_path: Path, clock: Clock) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    pauses = Pauses(state_dir, clock)
    await pauses.begin("db", 60.0, "", "root")
    (state_dir / FILE).unlink()
    state_dir.rmdir()
    clock.now_s += 60.0
    assert pauses.look() == ("db: the pause has ended",)
    assert pauses.of("db") is None


def test_a_pause_file_that_is_a_named_pipe_does_not_hang_the_daemon(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "pause"
    os.mkfifo(file)
    pauses = Pauses(tmp_path, clock, str(file))
    looking = threading.Thread(target=pauses.look, daemon=True)
    looking.start()
    looking.join(30.0)
    assert not looking.is_alive()
    assert pauses.of("db") is not None
