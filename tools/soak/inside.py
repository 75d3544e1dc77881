"""The daemon as it is, with one thread more that tells how many blocks of memory Python's objects occupy.

RSS alone cannot tell a leak from an allocator that holds on to what it has: blocks in use can.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from perphd.commands.daemon import main as daemon

TELL_EVERY_S = 5.0
BLOCKS = "PERPHD_SOAK_BLOCKS"
"""Environment variable: the file that says how many."""


def _tell(path: Path) -> None:
    new = path.with_suffix(".new")
    while True:
        new.write_text(str(sys.getallocatedblocks()))
        new.replace(path)
        time.sleep(TELL_EVERY_S)


def main() -> None:
    """Run the daemon with the arguments that it takes."""
    threading.Thread(target=_tell, args=(Path(os.environ[BLOCKS]),), daemon=True).start()
    daemon()


if __name__ == "__main__":
    main()
