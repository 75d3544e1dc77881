"""The machine with Intel RDT of tests/rdt: booted here, as ``make test-rdt`` asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rdt.bed import Bed, compiled
from tests.vm.conftest import installed
from tests.vm.guest import Vm, booted
from tools.vm.machine import Machine
from tools.vm.rdt import rdt_emulator

__all__ = ["installed"]


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Four processors in two sockets, each with a cache and memory of its own that can be divided."""
    with booted("run-rdt", reused=True, emulator=rdt_emulator, cpus=4, sockets=2, memory_mb=2048) as made:
        yield made


@pytest.fixture(scope="session")
def bed(installed: Vm, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """The machine with perphd and the workloads' programs, nothing running."""
    made = Bed(installed)
    made.prepare(compiled(tmp_path_factory.mktemp("kit")))
    return made
