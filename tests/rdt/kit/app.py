"""app.py INDICATORS BATCH: an application that batch slows down through cache and memory bandwidth alone.

It is asked 60 requests a second and answers them all. The time that a request takes follows from what the control group
allows in which the main thread of the control group BATCH really is: the mean share of the ways, and of the bandwidth,
over the domains of the processors that the application itself may run on now. Batch that may have everything makes it
2.5 times slower. It is blind to CPU contention: an emulated host has enough of that, and it would say nothing about
resctrl. Its own traffic is made by ``traffic`` in its unit.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ALONE_MS = 10.0
CACHE_SHARE = BANDWIDTH_SHARE = 0.75
RESCTRL = Path("/sys/fs/resctrl")
CPUS = Path("/sys/devices/system/cpu")


def domain_of_each_cpu() -> dict[int, str]:
    """The last-level cache of every processor."""
    indexes = [
        index for index in CPUS.glob("cpu*/cache/index*") if (index / "level").read_text().strip() == "3"
    ]
    return {int(index.parts[-3].removeprefix("cpu")): (index / "id").read_text().strip() for index in indexes}


def values(schemata: str, domains: set[str]) -> Iterator[tuple[str, str]]:
    """(resource, value) of every line in these domains."""
    for line in schemata.splitlines():
        name, _, rest = line.strip().partition(":")
        for part in rest.split(";"):
            domain, _, value = part.partition("=")
            if domain in domains:
                yield name, value.strip()


def allowed(thread: str, domains: set[str]) -> tuple[float, float]:
    """The shares of ways and of bandwidth that a thread's control group leaves it; all, where there is no resctrl."""
    try:
        group = Path(f"/proc/{thread}/cpu_resctrl_groups").read_text().splitlines()[0].removeprefix("res:")
        schemata = RESCTRL.joinpath(group.strip("/"), "schemata").read_text()
        mask = next(RESCTRL.glob("info/L3*/cbm_mask")).read_text()
    except (OSError, IndexError, StopIteration):
        return 1.0, 1.0
    all_ways = int(mask, 16).bit_count()
    found = list(values(schemata, domains))
    ways = [int(value, 16).bit_count() / all_ways for name, value in found if name != "MB"]
    bandwidth = [min(1.0, int(value) / 100) for name, value in found if name == "MB"]
    return mean(ways), mean(bandwidth)


def mean(shares: list[float]) -> float:
    return sum(shares) / len(shares) if shares else 1.0


def slowdown(batch: Path, domains: set[str]) -> float:
    """How many times longer a request takes now."""
    try:
        first = (batch / "cgroup.procs").read_text().split()[0]
    except (OSError, IndexError):
        return 1.0
    ways, bandwidth = allowed(first, domains)
    return 1.0 + CACHE_SHARE * ways + BANDWIDTH_SHARE * bandwidth


def main(indicators: str, batch: str) -> None:
    chance, domain_of = random.Random(0), domain_of_each_cpu()
    while True:
        domains = {domain_of[cpu] for cpu in os.sched_getaffinity(0)}
        took_ms = ALONE_MS * slowdown(Path("/sys/fs/cgroup" + batch), domains) * chance.gauss(1.0, 0.01)
        latency = f"latency_p50_ms = {took_ms:.3f}\nlatency_p95_ms = {took_ms * 1.6:.3f}\n"
        Path(indicators + ".new").write_text(f"work_rate_per_s = 60\nload_per_s = 60\n{latency}")
        os.rename(indicators + ".new", indicators)
        time.sleep(0.4)


if __name__ == "__main__":
    main(*sys.argv[1:])
