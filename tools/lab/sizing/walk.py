"""A process that uses a random walk's amount of memory: walk.py SEED LEAST_MIB MOST_MIB START_MIB STEP_MIB [PERIOD_S].

Standard library only. It touches every page that the walk gains and releases every page that it loses.
"""

from __future__ import annotations

import mmap
import random
import sys
import time

MIB = 1 << 20


def main() -> None:
    """Walk until killed."""
    seed, least, most, start, step = (float(word) for word in sys.argv[1:6])
    period_s = float(sys.argv[6]) if len(sys.argv) > 6 else 1.0
    source = random.Random(seed)
    memory = mmap.mmap(-1, int(most + 1) * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at, wanted = 0, start
    while True:
        pages = int(wanted * MIB) // mmap.PAGESIZE
        for page in range(at, pages):
            memory[page * mmap.PAGESIZE] = 1
        if pages < at:
            memory.madvise(mmap.MADV_DONTNEED, pages * mmap.PAGESIZE, (at - pages) * mmap.PAGESIZE)
        at = pages
        time.sleep(period_s)
        wanted += source.gauss(0.0, step)
        # Reflected at both ends, so that every amount between them is equally likely in the long run.
        wanted = 2 * least - wanted if wanted < least else 2 * most - wanted if wanted > most else wanted
        wanted = min(max(wanted, least), most)


if __name__ == "__main__":
    main()
