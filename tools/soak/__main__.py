"""``python -m tools.soak real --minutes 20`` and ``python -m tools.soak sim --hours 2``: soak, and tell the slopes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Final

from tools.soak import real, simulated
from tools.soak.meter import Reading
from tools.soak.trend import BLOCKS, Trend, trend

WARM_UP_SHARE: Final = 0.3
"""So much of the time does not count: models fill their windows, the store its limit, the allocator its arenas."""
_MIB: Final = 1 << 20


def main() -> int:
    """Exit status 1: something surely grows, or the soak could not run."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{options.what}.jsonl").open("w") as lines:

        def told(reading: Reading) -> None:
            lines.write(json.dumps(asdict(reading)) + "\n")
            lines.flush()

        try:
            if options.what == "real":
                readings = real.run(
                    60.0 * options.minutes,
                    options.workloads,
                    options.churn,
                    options.rate,
                    options.store,
                    options.seed,
                    told,
                )
            else:
                soak = simulated.Soak(
                    3600.0 * options.hours,
                    options.workloads,
                    options.churn,
                    options.rate,
                    options.store,
                    options.seed,
                )
                readings = asyncio.run(soak.run(told))
        except real.SoakError as exc:
            print(f"soak: {exc}", file=sys.stderr)
            return 1
    found = trends(readings)
    text = report(options.what, found, options.workloads, options.rate, readings[-1].at_s)
    (options.out / f"{options.what}.md").write_text(text)
    print(text)
    return int(any(one.grows() for one in found))


def trends(readings: Sequence[Reading]) -> list[Trend]:
    """The trend of everything that was read, after the warm-up; of CPU the share of a core between readings."""
    kept = [item for item in readings if item.at_s >= WARM_UP_SHARE * readings[-1].at_s]
    at_s = [item.at_s for item in kept]
    found = [
        trend(name, at_s, [getattr(item, name) for item in kept])
        for name in Reading.names()
        if name != "cpu_s"
    ]
    shares = [
        100.0 * (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s) for before, after in pairwise(kept)
    ]
    return [trend("cpu_pct", at_s[1:], shares), *found]


def report(what: str, found: Sequence[Trend], workloads: int, rate_hz: float, seconds: float) -> str:
    """The table for people."""
    lines = [
        f"# Soak ({what}): {workloads} workloads, {rate_hz:g} Hz, {seconds / 60.0:.0f} minutes",
        "",
        f"The first {WARM_UP_SHARE:.0%} does not count. Slopes are lines through {BLOCKS} block means, with their 95 % "
        "confidence intervals.",
        "",
        "| what | first | last | most | slope per hour | 95 % interval | |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for one in found:
        scale, unit = (
            (_MIB, " MiB") if one.name.endswith("_bytes") else (1, " %" if one.name == "cpu_pct" else "")
        )
        first, last, most, slope, low, high = (
            f"{value / scale:.3g}"
            for value in (one.first, one.last, one.most, one.per_h, one.low_per_h, one.high_per_h)
        )
        verdict = "GROWS" if one.grows() else "flat" if one.low_per_h <= 0.0 <= one.high_per_h else "no leak"
        name = one.name.removesuffix("_bytes").removesuffix("_pct")
        lines.append(f"| {name}{unit} | {first} | {last} | {most} | {slope} | {low} to {high} | {verdict} |")
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.soak", description="Does perphd leak?")
    parser.add_argument("what", choices=("real", "sim"), help="the daemon on real cgroups, or virtual time")
    parser.add_argument("--minutes", type=float, default=20.0, help="of real time")
    parser.add_argument("--hours", type=float, default=2.0, help="of virtual time")
    parser.add_argument("--workloads", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0, help="samples a second")
    parser.add_argument("--churn", type=float, default=1.0, help="cgroups that vanish a second")
    parser.add_argument("--store", default="16M", help="limit of the time-series store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/soak"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
