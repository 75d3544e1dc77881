"""Wake-up latency of a band beside hogs of another, on this kernel's control groups.

    python -m tools.lab.wakeup [--seconds 5] [--repetitions 5]

A small program sleeps until a time and measures how late it runs, as cyclictest does. It lies in a group of the default
weight, as gold's and silver's do, and the hogs in one as copper has it (the least weight, the idle class where there is
one). Alone and beside the hogs are measured in turns, since other work on the machine comes and goes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "native" / "wakeup.c"
INTERVAL_US: Final = 1000
LEAST: Final = (("cpu.shares", "2"), ("cpu.weight", "1"), ("cpu.idle", "1"))
"""In this order: the weight of an idle group cannot be set."""


class WakeupError(Exception):
    """This machine cannot measure it."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of wake-up latency in microseconds."""

    p50_us: float
    p99_us: float
    most_us: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over the repetitions, and the greatest ratio of two repetitions alone: the machine's own noise."""

    alone: Latency
    beside: Latency
    noise: float

    @property
    def ratio(self) -> float:
        """p99 beside the hogs by p99 alone."""
        return self.beside.p99_us / self.alone.p99_us


def measured(seconds: float, repetitions: int, hogs: int, weighted: bool = True) -> Measured:
    """Measure in turns. ``weighted`` False: the hogs have the same weight as the program, for comparison.

    Raises:
        WakeupError: no compiler, no control groups.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program = folder / "wakeup"
        compiler = shutil.which("cc")
        if compiler is None:
            raise WakeupError("no C compiler")
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        kept, copper = (_group(stack, f"perphd-wakeup-{name}-{os.getpid()}") for name in ("band", "copper"))
        if weighted:
            for file, value in LEAST:
                if (copper / file).exists():
                    (copper / file).write_text(value)
        alone, beside = [], []
        for _ in range(repetitions):
            alone.append(_run(program, kept, seconds))
            burning = [_started([sys.executable, "-c", "while True: pass"], copper) for _ in range(hogs)]
            try:
                beside.append(_run(program, kept, seconds))
            finally:
                for each in burning:
                    each.kill()
                    each.wait()
        times = [each.p99_us for each in alone]
        return Measured(_middle(alone), _middle(beside), max(times) / min(times))


def _group(stack: ExitStack, name: str) -> Path:
    root = Path("/sys/fs/cgroup")
    parent = root if (root / "cgroup.controllers").exists() else root / "cpu"
    if not os.access(parent, os.W_OK):
        raise WakeupError(f"{parent}: no control group can be made there")
    group = parent / name
    group.mkdir()
    stack.callback(group.rmdir)
    return group


def _started(command: list[str], group: Path) -> subprocess.Popen[str]:
    entered = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return subprocess.Popen(
        ["/bin/sh", "-c", entered, str(group), *command], stdout=subprocess.PIPE, text=True
    )


def _run(program: Path, group: Path, seconds: float) -> Latency:
    count = max(1, int(seconds * 1e6 / INTERVAL_US))
    done = _started([str(program), str(INTERVAL_US), str(count)], group)
    out, _ = done.communicate()
    if done.returncode:
        raise WakeupError(f"the program ended with {done.returncode}")
    late_us = sorted(int(line) / 1000.0 for line in out.split())
    return Latency(late_us[len(late_us) // 2], late_us[int(0.99 * len(late_us))], late_us[-1])


def _middle(found: list[Latency]) -> Latency:
    return Latency(*(statistics.median(getattr(each, name) for each in found) for name in Latency.__slots__))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="tools.lab.wakeup", description="Wake-up latency beside copper hogs."
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--hogs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    print("| hogs | p50 alone | beside | p99 alone | beside | ratio of p99 | noise of p99 alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, weighted in (("copper", True), ("same weight", False)):
        one = measured(options.seconds, options.repetitions, options.hogs, weighted)
        print(
            f"| {name} | {one.alone.p50_us:.0f} us | {one.beside.p50_us:.0f} us | {one.alone.p99_us:.0f} us | "
            f"{one.beside.p99_us:.0f} us | {one.ratio:.2f} | {one.noise:.2f} |"
        )


if __name__ == "__main__":
    main()
