"""Reads a file past the page cache, in a control group, and prints the bytes of every second.

disk_load.py FILE BLOCK_BYTES THREADS sequential|random SECONDS GROUP_FOLDER...
"""

import mmap
import os
import random
import sys
import threading
import time


def main() -> None:
    """See the module."""
    path, block, threads, pattern, seconds = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        sys.argv[4],
        float(sys.argv[5]),
    )
    for folder in sys.argv[6:]:
        with open(f"{folder}/cgroup.procs", "w") as procs:
            procs.write("0")
    blocks = os.path.getsize(path) // block
    moved = [0] * threads
    end_s = time.monotonic() + seconds

    def read(n: int) -> None:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, block)
        at = 0
        while time.monotonic() < end_s:
            at = (at + 1) % blocks if pattern == "sequential" else random.randrange(blocks)
            moved[n] += os.preadv(file, [buffer], at * block)

    for n in range(threads):
        threading.Thread(target=read, args=(n,), daemon=True).start()
    last, before_s = 0, time.monotonic()
    while time.monotonic() < end_s:
        time.sleep(1.0)
        now, now_s = sum(moved), time.monotonic()
        print(f"{now_s:.2f} {(now - last) / (now_s - before_s):.0f}", flush=True)
        last, before_s = now, now_s


if __name__ == "__main__":
    main()
