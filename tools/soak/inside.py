"""The unmodified daemon with an additional thread that reports the memory blocks of Python's objects.

RSS alone does not distinguish a leak from an allocator that keeps free memory; blocks in use do.
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
"""Environment variable with the file for the number of blocks."""


def _tell(path: Path) -> None:
    new = path.with_suffix(".new")
    while True:
        new.write_text(str(sys.getallocatedblocks()))
        new.replace(path)
        time.sleep(TELL_EVERY_S)


def main() -> None:
    """Run the daemon with its own arguments."""
    threading.Thread(target=_tell, args=(Path(os.environ[BLOCKS]),), daemon=True).start()
    daemon()


if __name__ == "__main__":
    main()
