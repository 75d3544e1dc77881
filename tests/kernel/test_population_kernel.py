"""A group that is no longer empty: told by this kernel, and silent about everything else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perphd.agent.composition import build_agent
from perphd.config.file import Config, DaemonConfig
from perphd.domain.errors import Gone
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.cgroup.population import PopulationWatch
from perphd.host.fs import RealFs

pytestmark = [pytest.mark.requires_root, pytest.mark.requires_cgroup_v2]
LONGEST_S = 30.0


@pytest.fixture
def group() -> Iterator[str]:
    unified = discover(RealFs()).unified
    assert unified is not None
    directory = unified.path(f"/perphd-test-population-{os.getpid()}")
    os.mkdir(directory)
    try:
        yield directory
    finally:
        for path in (f"{directory}/below", directory):
            with suppress(FileNotFoundError):
                os.rmdir(path)


def _enter(directory: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sleep", "infinity"])
    with open(f"{directory}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(process.pid))
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _is_populated(watch: PopulationWatch) -> bool:
    return watch.populated


async def test_the_first_process_is_told_every_time_also_of_a_group_below(group: str) -> None:
    started = asyncio.Event()
    watch = PopulationWatch(group, started.set)
    assert not _is_populated(watch)
    os.mkdir(f"{group}/below")
    try:
        for directory in (group, f"{group}/below"):
            process = _enter(directory)
            try:
                await asyncio.wait_for(started.wait(), LONGEST_S)
                assert _is_populated(watch)
                started.clear()
            finally:
                _end(process)
            for _ in range(3000):
                if not _is_populated(watch):
                    break
                await asyncio.sleep(0.01)
            assert not _is_populated(watch)
            assert not started.is_set(), "the last one that leaves is no news"
    finally:
        watch.close()
        watch.close()
    assert watch.closed


async def test_a_group_that_is_removed_is_silent_and_one_that_is_not_there_is_refused(group: str) -> None:
    watch = PopulationWatch(group, lambda: None)
    os.rmdir(group)
    await asyncio.sleep(0.05)
    watch.close()
    with pytest.raises(Gone, match=r"cgroup\.events"):
        PopulationWatch(group, lambda: None)


async def test_the_agent_looks_at_once_at_batch_that_starts(group: str, tmp_path: Path) -> None:
    config = Config(
        daemon=DaemonConfig(state_dir=str(tmp_path)),
        workloads=(WorkloadSpec("jobs", Kind.BATCH, f"/{os.path.basename(group)}"),),
    )
    agent = build_agent(config, clock=time.monotonic, store=False)
    try:
        assert agent.early_ticks is not None
        await agent.tick(time.monotonic())
        assert not agent.early_ticks.started
        process = _enter(group)
        try:
            await asyncio.wait_for(agent.early_ticks.requested(), LONGEST_S)
            assert set(agent.early_ticks.started) == {"jobs"}
        finally:
            _end(process)
        await agent.tick(time.monotonic())
        assert not agent.early_ticks.started, "that tick was the answer"
    finally:
        await agent.stop(restore=True)
