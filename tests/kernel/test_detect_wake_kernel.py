"""A look between two ticks, asked for by this kernel's own pressure triggers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from perphd.agent.triggers import EarlyTicks
from perphd.config.tables import WakeConfig
from perphd.domain.reading import Unavailable
from perphd.host.cgroup import Hierarchies, discover
from perphd.host.fs import RealFs
from perphd.host.psi import pressure_at

FS = RealFs()
GROUP = f"/perphd-test-wake-{os.getpid()}"


@pytest.fixture
def hierarchies() -> Hierarchies:
    return discover(FS)


@pytest.fixture
def group(hierarchies: Hierarchies) -> Iterator[str]:
    assert hierarchies.unified is not None
    directory = hierarchies.unified.path(GROUP)
    os.mkdir(directory)
    try:
        found = pressure_at(FS, f"{directory}/cpu.pressure")
        if isinstance(found, Unavailable):
            pytest.skip(f"needs PSI: {found.reason}")
        yield directory
    finally:
        with suppress(FileNotFoundError):
            os.rmdir(directory)


def _contend(directory: str) -> list[subprocess.Popen[bytes]]:
    """Two processes of the group that want the same CPU."""
    cpu = min(os.sched_getaffinity(0))
    code = (
        f"import os\nopen('{directory}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        f"os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    )
    return [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]


@pytest.mark.requires_root
@pytest.mark.requires_cgroup_v2
async def test_an_lra_that_waits_for_a_processor_asks_for_a_look(
    hierarchies: Hierarchies, group: str
) -> None:
    assert hierarchies.unified is not None
    early_ticks = EarlyTicks(WakeConfig(stall_ms=50), hierarchies.unified.path, time.monotonic)
    workers: list[subprocess.Popen[bytes]] = []
    try:
        early_ticks.follow({"db": GROUP})
        assert early_ticks.armed == 3, early_ticks.refused
        workers = _contend(group)
        await asyncio.wait_for(early_ticks.requested(), 30)
        assert early_ticks.take() == {"db": "pressure on its cpu"}
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        early_ticks.close()
    assert early_ticks.armed == 0
