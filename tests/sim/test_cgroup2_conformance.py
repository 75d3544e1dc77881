"""The simulated cgroup v2 answers every captured operation as the kernel did: errno, and contents afterwards.

Of what was captured, these are not in the table, because they are no operations on files of this tree, or the model
has nothing that they could show in:

- where the scheduler then ran a task (sched_setaffinity beside a cpuset), perf_event_open, poll of a PSI trigger:
  calls beside the file system; ``perphd.sim.perf`` answers for perf;
- what systemd does to the files (daemon-reload, AllowedCPUs=, Delegate=): no part of the kernel;
- hugetlb, rdma and misc at the root: not built into the simulated kernel;
- 6.12's partitions (cpuset.cpus.exclusive and remote partitions), and the lines that its memory.stat has in addition:
  the capture shows only where it differs, not the whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs
from perphd.sim.kernel.cgroup2 import Kernel
from tests.sim.cgroup2_replay import TABLE, MountedSimulation, RealKernel, Replay, Simulation

STEPS = sum(len(section["steps"]) for section in TABLE["section"])


def test_every_captured_operation_in_process() -> None:
    done = list(Replay(Simulation(Kernel())).run())
    assert len(done) == STEPS
    assert [reason for _, _, reason in done if reason] == []


def test_what_6_12_answers_otherwise() -> None:
    replay = Replay(Simulation(Kernel(version=(6, 12))), newer=True)
    newer = [step for _, step, _ in replay.run() if "on_6_12" in step]
    assert len(newer) == 5


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs FUSE in the kernel: there is no /dev/fuse")
@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="needs fusermount3 (Debian package fuse3)")
@pytest.mark.requires_root
def test_every_captured_operation_through_the_mount(tmp_path: Path) -> None:
    world = MountedSimulation(Kernel(), str(tmp_path))
    try:
        left_out = [reason for _, _, reason in Replay(world).run() if reason]
        assert left_out == ["FUSE does not hand an empty write on"] * 4
    finally:
        world.close()


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
def test_the_same_on_this_kernel_as_far_as_it_can_be_asked() -> None:
    unified = discover(RealFs()).unified
    assert unified is not None
    world = RealKernel(unified.mount)
    try:
        newer = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)
        asked = [step for _, step, reason in Replay(world, newer).run() if reason is None]
    finally:
        world.close()
    assert len(asked) > 30
