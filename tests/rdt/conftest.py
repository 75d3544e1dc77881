"""The machine with Intel RDT of tests/rdt: booted here, as ``make test-rdt`` asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rdt.bed import Bed, compiled
from tests.vm.conftest import installed
from tests.vm.guest import Vm
from tools.vm.image import VmError, image
from tools.vm.machine import Machine
from tools.vm.rdt import rdt_emulator

__all__ = ["installed"]

ROOT = Path(__file__).parents[2]
KEEP = "PERPHD_VM_KEEP" in os.environ


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Four processors in two sockets, each with a cache and memory of its own that can be divided."""
    suite = os.environ.get("PERPHD_VM_SUITE")
    if not suite:
        pytest.skip("needs a machine that it may install on: make test-rdt")
    out = Path(os.environ.get("PERPHD_VM_OUT", ROOT / "out/vm")).resolve()
    try:
        emulator = rdt_emulator(out)
        built = image(suite, out)
    except VmError as exc:
        pytest.skip(str(exc))
    booted = Machine(built, out / f"run-rdt-{suite}", cpus=4, sockets=2, memory_mb=2048, emulator=emulator)
    if KEEP and booted.pid is not None:
        yield booted
        return
    booted.stop()
    try:
        booted.boot()
        yield booted
    finally:
        if not KEEP:
            booted.stop()


@pytest.fixture(scope="session")
def bed(installed: Vm, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    """The machine with perphd and the workloads' programs, nothing running."""
    made = Bed(installed)
    made.prepare(compiled(tmp_path_factory.mktemp("kit")))
    return made
