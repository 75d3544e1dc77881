"""What starts at every call, and what must give back when all else is broken, does not load numbers or servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "imported",
    ["perphd.commands.daemon", "perphd.commands.cli, perphd.config.file", "perphd.isolation.restore"],
)
def test_programs_start_without_numpy_and_aiohttp(imported: str) -> None:
    code = f"import sys, {imported}; print(*({{'numpy', 'aiohttp', 'pyroute2'}} & sys.modules.keys()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


def test_a_daemon_carries_neither_a_queue_nor_a_cluster_unasked() -> None:
    code = (
        "import sys, perphd.agent.service, perphd.agent.composition, perphd.control.server;"
        "print(*(name for name in sys.modules if name.startswith(('perphd.batch', 'perphd.cluster', 'perphd.qos', "
        "'perphd.sim', 'perphd.agent.queue.batch_queue', 'perphd.agent.queue.planning', 'perphd.control.openapi'))))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


UNUSED = (
    "psutil", "difflib", "pydoc", "doctest", "unittest", "multiprocessing", "xml", "prometheus_client", "pyroute2",
    "dbus_fast", "rich", "textual", "pyarrow", "lightgbm", "river", "scipy", "statsmodels", "sklearn", "highspy",
    "msgspec",
    "numpy.ma", "numpy.fft", "numpy.random", "numpy.polynomial", "numpy.testing", "numpy.f2py",
    "perphd.adapters", "perphd.batch", "perphd.cluster", "perphd.dataset", "perphd.qos", "perphd.report", "perphd.sim",
    "perphd.agent.queue.batch_queue", "perphd.agent.demo", "perphd.agent.proposal", "perphd.agent.profiling.run",
    "perphd.agent.queue.planning", "perphd.agent.simulated", "perphd.commands.cli", "perphd.commands.dashboard",
    "perphd.control.forecast_cycle", "perphd.control.hooks", "perphd.control.openapi", "perphd.commands.top",
    "perphd.forecast.following", "perphd.forecast.history",
    "perphd.federated", "perphd.predictor.federated", "perphd.agent.federated",
)  # fmt: skip
"""What a plain daemon on a real host does not carry: each of these has cost memory in it or would."""


def test_a_daemon_carries_nothing_that_its_loop_does_not_use() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import perphd.commands.daemon, perphd.control.servers, perphd.agent.service, perphd.agent.composition\n"
        "print(*sys.modules.keys() - before)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    carried = told.stdout.split()
    assert [
        name for name in carried if any(name == part or name.startswith(f"{part}.") for part in UNUSED)
    ] == []


def test_no_bench_stands_before_the_standard_library() -> None:
    """pyperf runs tools/bench/micro.py as a script: modules beside it are found before all others."""
    beside = {path.stem for path in (Path(__file__).parents[2] / "tools/bench").iterdir()}
    assert not beside & (sys.stdlib_module_names - {"__init__", "__main__"})
