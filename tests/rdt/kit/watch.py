"""watch.py SECONDS NAME=FOLDER...: what the kernel's counters in these mon_data folders say, again and again.

Prints one JSON list of [monotonic seconds, name, occupancy, total bytes], both summed over the domains.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(seconds: float, *named: str) -> None:
    rows: list[tuple[float, str, int, int]] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for words in named:
            name, _, folder = words.partition("=")
            held = sum(int(file.read_text()) for file in Path(folder).glob("mon_L3_*/llc_occupancy"))
            moved = sum(int(file.read_text()) for file in Path(folder).glob("mon_L3_*/mbm_total_bytes"))
            rows.append((time.monotonic(), name, held, moved))
        time.sleep(0.1)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
