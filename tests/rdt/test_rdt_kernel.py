"""The captured operations of resctrl, replayed on the machine's own kernel: it still answers as the simulated tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rdt.bed import RESCTRL, Bed

pytestmark = pytest.mark.requires_vm
ROOT = Path(__file__).parents[2]
COPIED = ("perphd/__init__.py", "perphd/domain", "perphd/sim", "tests/sim")


def test_the_kernel_answers_as_captured(bed: Bed) -> None:
    folder = "/root/checkout"
    for name in COPIED:
        bed.vm.machine.put(ROOT / name, f"{folder}/{Path(name).parent}")
    done = bed.vm.try_(
        f"cd {folder} && PYTHONPATH={folder}:/usr/lib/perphd python3 -m tests.sim.resctrl_replay", 600.0
    )
    bed.vm.sh(f"umount {RESCTRL}; rm -rf {folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = int(done.stdout.split()[0])
    assert asked > 250, done.stdout
