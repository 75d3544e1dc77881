"""The lab's groups and processes on this kernel: made, set, and gone afterwards whatever happened."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tools.lab import groups as g
from tools.lab import processes
from tools.lab.groups import Groups
from tools.lab.processes import LabError, Ledger, start_time, undo
from tools.lab.watch import Watcher

pytestmark = pytest.mark.requires_root


@pytest.fixture
def groups():
    if processes.running():
        pytest.skip("a lab is running on this machine")
    try:
        made = Groups()
    except LabError as exc:
        pytest.skip(str(exc))
    with made:
        yield made
    assert not any(os.path.exists(d) for d in made.directories(g.PARENT))


@pytest.fixture
def ledger(tmp_path):
    found = Ledger(tmp_path / "ledger.json")
    yield found
    found.close()


def test_groups_start_equal_and_return_to_that(groups):
    fresh = groups.knobs(g.BATCH)
    assert fresh == groups.knobs(g.LRA)
    groups.set_shares(g.BATCH, 64)
    groups.set_cpus(g.BATCH, groups.all_cpus().split("-")[0].split(",")[0])
    groups.set_idle(g.BATCH, True)
    assert groups.knobs(g.BATCH) != fresh
    assert groups.knobs(g.BATCH)["idle"] == "1"
    groups.reset()
    assert groups.knobs(g.BATCH) == fresh


def test_a_process_starts_inside_its_group_in_every_hierarchy(groups, ledger):
    process = ledger.start(["sleep", "60"], groups=groups.directories(g.BATCH))
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n" and time.monotonic() < deadline:
        time.sleep(0.01)
    for directory in groups.directories(g.BATCH):
        assert str(process.pid) in Path(directory, "cgroup.procs").read_text().split()
    assert ledger.end(process) == -9
    assert start_time(process.pid) is None


def test_the_lab_shelters_and_leaves(groups):
    before = Path("/proc/self/cgroup").read_text()
    groups.shelter()
    assert "/perphd-lab/client" in Path("/proc/self/cgroup").read_text()
    groups.leave()
    assert Path("/proc/self/cgroup").read_text() == before


def test_changes_are_seen_with_their_time(groups):
    with Watcher(groups, [g.LRA, g.BATCH]) as watcher:
        time.sleep(0.3)
        groups.set_shares(g.BATCH, 512)
        time.sleep(0.5)
    assert [setting.group for setting in watcher.seen] == [g.LRA, g.BATCH, g.BATCH]
    assert watcher.seen[1].knobs["shares"] != watcher.seen[2].knobs["shares"]


def test_removing_ends_what_is_left_inside(groups, ledger):
    process = ledger.start(["sleep", "60"], groups=groups.directories(g.LRA))
    time.sleep(0.1)
    groups.remove()
    assert process.wait(10) == -9
    groups.remove()  # nothing to do is no error


def test_what_a_killed_lab_left_is_undone_by_identity(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ours = ledger.start(["sleep", "60"])
    folder = ledger.folder(tmp_path / "data")
    folder.mkdir()
    other = subprocess.Popen(["sleep", "60"])
    try:
        content = (tmp_path / "ledger.json").read_text()
        # A pid that was given to another process since: its start time differs.
        (tmp_path / "ledger.json").write_text(content.replace('"pids": {', f'"pids": {{"{other.pid}": 1, '))
        done = undo(tmp_path / "ledger.json")
        assert start_time(ours.pid) is None
        assert other.poll() is None
        assert not folder.exists()
        assert len(done) == 2
        assert undo(tmp_path / "ledger.json") == []
    finally:
        other.kill()
        other.wait()


def test_a_running_lab_is_known_by_its_start_time(tmp_path):
    path = tmp_path / "ledger.json"
    assert not processes.running(path)
    Ledger(path)
    assert processes.running(path)
    path.write_text(
        path.read_text().replace(f'"lab": [{os.getpid()}, {start_time(os.getpid())}]', '"lab": [1, 2]')
    )
    assert not processes.running(path)
