"""A process with a hot set: python hot.py MIB {anon|file} COUNTER [FILE]. It touches all of its pages repeatedly.

Standard library only. COUNTER holds the work done so far (one for each touched MiB), for an indicator of the source
``file``. ``anon``: anonymous memory; ``file``: pages of FILE, which it creates. At its start it uses twice that memory
once, as programs do.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

MIB = 1 << 20
TELL_S = 0.2


def main() -> None:
    """Touch the pages until killed."""
    size, kind, counter = int(sys.argv[1]) * MIB, sys.argv[2], sys.argv[3]
    if kind == "file":
        with open(sys.argv[4], "wb") as file:
            for _ in range(2 * size // MIB):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
        with open(sys.argv[4], "rb") as file:
            memory = mmap.mmap(file.fileno(), 2 * size, prot=mmap.PROT_READ)
    else:
        memory = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for place in range(0, 2 * size, mmap.PAGESIZE):
            memory[place] = 1
    total = work = 0
    told_s = time.monotonic()
    for place in range(size, 2 * size, mmap.PAGESIZE):  # the cold half, touched once
        total += memory[place]
    while True:
        for start in range(0, size, MIB):
            for place in range(start, start + MIB, mmap.PAGESIZE):
                total += memory[place]
            work += 1
            now_s = time.monotonic()
            if now_s - told_s >= TELL_S:
                told_s = now_s
                with open(f"{counter}.new", "w") as file:
                    file.write(f"work_total = {work}\n")
                os.replace(f"{counter}.new", counter)
            if work % 64 == 0:
                time.sleep(0.005)


if __name__ == "__main__":
    main()
