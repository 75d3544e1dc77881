"""What the daemon does for itself as a process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from perphd.agent import upkeep

# Holes of 64 KiB between pieces that stay: the end of the heap is in use, so glibc by itself gives nothing back.
HOLES = """
import os
from perphd.agent.upkeep import give_back_memory
def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
pieces = [bytearray(b"x" * (1 << 16)) for _ in range(1024)]
del pieces[::2]
before = resident_mib()
give_back_memory()
print(before - resident_mib(), sum(map(len, pieces)))
"""


def test_memory_in_the_midst_of_the_heap_is_given_back() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("needs glibc's malloc_trim")
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    given_mib, kept = done.stdout.split()
    assert float(given_mib) > 24.0, "of the 32 MiB that nobody uses"
    assert int(kept) == 512 << 16


def test_a_c_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_malloc_trim", lambda: None)
    upkeep.give_back_memory()
