"""What the daemon does for itself as a process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys

import pytest

from perphd.agent import upkeep
from perphd.agent.upkeep import Complaints

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


SLIM = """
import gc
from dataclasses import FrozenInstanceError, dataclass, replace
from perphd.agent.upkeep import slim_dataclasses

def classes():
    gc.collect()
    return sum(issubclass(type(found), type) and found.__name__ == "Point" for found in gc.get_objects())

@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

@dataclass(slots=True)
class Open:
    x: int


slim_dataclasses()
point, refused = Point(1), []
for change in (lambda: setattr(point, "x", 3), lambda: setattr(point, "z", 3), lambda: delattr(point, "x")):
    try:
        change()
    except FrozenInstanceError as exc:
        refused.append(str(exc))
other = Open(1)
other.x = 5
assert point == replace(Point(7), x=1) and hash(point) == hash(Point(1)) and other.x == 5
print(classes(), *refused, sep="|")
"""


def test_frozen_dataclasses_stay_frozen_with_one_class_each() -> None:
    done = subprocess.run([sys.executable, "-c", SLIM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "1|cannot assign to field 'x'|cannot assign to field 'z'|cannot delete field 'x'"
    )


def test_garbage_of_a_tick_is_collected_after_it() -> None:
    collected: list[str] = []
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    try:
        with upkeep.collecting_later():
            rings: list[list[object]] = [[] for _ in range(100 * gc.get_threshold()[0])]
            for ring in rings:
                ring.append(ring)
            assert not collected
            rings.clear()
        assert [[]]  # whatever is made next
        assert collected
    finally:
        gc.callbacks.pop()


async def test_what_fails_over_and_over_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    complaints = Complaints(lambda: now[0])
    loop = asyncio.get_running_loop()
    for second in range(100):
        now[0] = float(second)
        complaints(loop, {"message": "socket.accept() out of system resource"})
        if second == 50:
            complaints(loop, {"message": "something else"})
    said = [record.getMessage() for record in caplog.records]
    assert [text.splitlines()[0] for text in said] == [
        "socket.accept() out of system resource",
        "something else",
        "socket.accept() out of system resource: 59 more times since the last report",
        "socket.accept() out of system resource",
    ]


def test_it_has_as_many_descriptors_as_there_may_be() -> None:
    code = """
import resource
from perphd.agent.upkeep import protect_self
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
protect_self()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
