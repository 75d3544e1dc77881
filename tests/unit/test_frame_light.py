"""What starts at every call, and what must give back when all else is broken, does not load numbers or servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "imported",
    ["perphd.control.daemon", "perphd.control.cli, perphd.agent.config", "perphd.isolation.restore"],
)
def test_programs_start_without_numpy_and_aiohttp(imported: str) -> None:
    code = f"import sys, {imported}; print(*({{'numpy', 'aiohttp', 'pyroute2'}} & sys.modules.keys()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


def test_a_daemon_carries_neither_a_queue_nor_a_cluster_unasked() -> None:
    code = (
        "import sys, perphd.agent.service, perphd.agent.composition, perphd.control.server;"
        "print(*(name for name in sys.modules if name.startswith(('perphd.batch', 'perphd.cluster', 'perphd.qos', "
        "'perphd.sim', 'perphd.agent.batch_queue', 'perphd.agent.queue_planning', 'perphd.control.openapi'))))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


def test_no_bench_stands_before_the_standard_library() -> None:
    """pyperf runs tools/bench/micro.py as a script: modules beside it are found before all others."""
    beside = {path.stem for path in (Path(__file__).parents[2] / "tools/bench").iterdir()}
    assert not beside & (sys.stdlib_module_names - {"__init__", "__main__"})
