"""The batch workers for hosts without a C compiler: the same files and counting, with numpy instead of C.

usage: workers.py pi COUNTERS SLOT | workers.py stream COUNTERS SLOT MIB | workers.py forks COUNTERS SLOT
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys

import numpy as np

_SLOT_BYTES = 64
_PR_SET_PDEATHSIG = 1
_ROUND = 200_000


def main(kind: str, path: str, slot: int, mib: int = 0) -> None:
    """Work until killed, counting into the 64-bit slot of the shared file; die with the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(path, "r+b") as file:
        counters = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=np.uint64)
    done = counters[slot * _SLOT_BYTES // 8 :]
    if kind == "pi":
        _pi(done, slot)
    elif kind == "forks":
        _forks(done)
    else:
        _stream(done, mib)


def _pi(done: np.ndarray[tuple[int], np.dtype[np.uint64]], seed: int) -> None:
    random = np.random.default_rng(seed)
    while True:
        x, y = random.random(_ROUND), random.random(_ROUND)
        done[1] += np.uint64(np.count_nonzero(x * x + y * y <= 1.0))
        done[0] += np.uint64(_ROUND)


def _forks(done: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
    while True:
        subprocess.run([sys.executable, "-S", "-c", "sum(range(200000))"], check=True)
        done[0] += np.uint64(1)


def _stream(done: np.ndarray[tuple[int], np.dtype[np.uint64]], mib: int) -> None:
    count = mib * 2**20 // 8
    a, b, c = (np.full(count, float(value)) for value in range(3))
    while True:
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)
        done[0] += np.uint64(5 * count * 8)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *(int(text) for text in sys.argv[4:]))
