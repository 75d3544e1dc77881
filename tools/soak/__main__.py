"""``python -m tools.soak real --minutes 60``, ``... sim --hours 2``, ``... both``: soak, and report growth."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from perphd.domain.units import parse_size_bytes
from tools.soak import churn, real, simulated
from tools.soak.meter import Reading
from tools.soak.verdict import judge, report, warm_up_s


def main() -> int:
    """Run the soak. Exit status 1: something grows significantly or exceeds its limit, or the soak could not run."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that files and groups are removed
    logging.getLogger("perphd").setLevel(logging.ERROR)  # vanishing workloads are expected here
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "both":
        return _both(options.out)
    path = options.out / f"{options.what}.jsonl"
    with path.open("w") as lines:

        def told(reading: Reading) -> None:
            lines.write(json.dumps(asdict(reading)) + "\n")
            lines.flush()

        try:
            _run(options, told)
        except real.SoakError as exc:
            print(f"soak: {exc}", file=sys.stderr)
            return 1
    readings = [Reading(**json.loads(line)) for line in path.read_text().splitlines()]
    lras = sum(map(churn.is_lra, range(options.workloads)))
    skip_s = warm_up_s(options.workloads, options.churn)
    verdict = judge(readings, skip_s, parse_size_bytes(options.store), lras)
    text = report(options.what, verdict, options.workloads, options.rate, readings[-1].at_s)
    (options.out / f"{options.what}.md").write_text(text)
    print(text)
    return int(not verdict.passed)


def _run(options: argparse.Namespace, told: Callable[[Reading], None]) -> None:
    shape = (options.workloads, options.churn, options.rate, options.store, options.seed)
    if options.what == "real":
        real.run(60.0 * options.minutes, *shape, told)
    else:
        asyncio.run(simulated.Soak(3600.0 * options.hours, *shape).run(told))


def _both(out: Path) -> int:
    """Run the simulated soak at low priority beside the real one, each in its own process with its own report."""
    command = [sys.executable, "-m", "tools.soak"]
    with (out / "sim.log").open("w") as log:
        command_of_virtual = ["nice", "-n", "19", *command, "sim", "--out", str(out)]
        virtual = subprocess.Popen(command_of_virtual, stdout=log, stderr=log)
    try:
        failed = subprocess.run([*command, "real", "--out", str(out)], check=False).returncode
        failed |= virtual.wait()
    finally:
        if virtual.poll() is None:
            virtual.terminate()
            virtual.wait()
    print((out / "sim.log").read_text()[-10_000:])
    print(f"soak: {'FAILED' if failed else 'passed'}: {out}/real.md, {out}/sim.md")
    return int(failed != 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.soak", description="Does perphd leak?")
    parser.add_argument(
        "what",
        choices=("real", "sim", "both"),
        help="the daemon on real cgroups, virtual time, or both at once",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of real time")
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
