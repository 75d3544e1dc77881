"""Wake-up latency of a band beside hogs of another band, on this kernel's control groups.

    python -m tools.lab.wakeup [--seconds 1.5] [--repetitions 12] [--shielded] [--records FILE]

A small program sleeps until a time and measures how late it runs, as cyclictest does. It runs in a group of the default
weight, like gold's and silver's; the hogs run in a group like copper's (the least weight, and the idle class if
available). Silver shares its CPUs with the hogs. Gold has an exclusive CPU.

Every repetition measures all cases, in an order that changes, and ratios are taken within a repetition. Two cases put
the ratios into perspective:

* *alone, again*: the same measurement without hogs twice. Its ratio is the machine's noise.
* *by hand*: the best that the kernel offers. Every hog is itself in the idle class, and the program is in a real-time
class, which always preempts the hogs. The remaining loss is due to the hardware or the hypervisor, and no control group
can avoid it.

A measurement during which other work of the machine took more than a tenth of a CPU is repeated a few times. If that
does not help, the calmest one counts, and the table shows the amount of other work. ``--records`` appends to a file of
JSON lines and reports on all of its records.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tools.lab.stats import rotated

SOURCE: Final = Path(__file__).parent / "native" / "wakeup.c"
INTERVAL_US: Final = 1000
LEAST: Final = (("cpu.idle", "0"), ("cpu.shares", "2"), ("cpu.weight", "1"), ("cpu.idle", "1"))
GREATEST: Final = (("cpu.shares", "262144"), ("cpu.weight", "10000"))
DEFAULT: Final = (("cpu.idle", "0"), ("cpu.shares", "1024"), ("cpu.weight", "100"))
"""In this order: the weight of an idle group cannot be set."""
MOST_OTHER_CPUS: Final = 0.1
MOST_TRIES: Final = 4
SETTLES_S: Final = 0.2
MOST_RATIO: Final = 1.2


class WakeupError(Exception):
    """The measurement is impossible on this machine."""


class Hogs(StrEnum):
    """Scheduling of the hogs. BY_HAND: as copper, and each hog itself in the idle class."""

    NONE = "none"
    COPPER = "copper"
    BY_HAND = "by hand"
    SAME_WEIGHT = "same weight"


@dataclass(frozen=True, slots=True)
class Case:
    """``own_cpu``: the program has a CPU of its own, and the hogs all others."""

    name: str
    hogs: Hogs
    own_cpu: bool = False
    real_time: bool = False


CASES: Final = (
    *(
        Case(f"{band} {name}", hogs, own_cpu)
        for band, own_cpu in (("gold", True), ("silver", False))
        for name, hogs in (
            ("alone", Hogs.NONE),
            ("alone, again", Hogs.NONE),
            ("beside copper", Hogs.COPPER),
            ("beside idle-class hogs by hand", Hogs.BY_HAND),
        )
    ),
    Case("real time alone", Hogs.NONE, real_time=True),
    Case("real time beside copper", Hogs.COPPER, real_time=True),
    Case("silver beside hogs of its weight", Hogs.SAME_WEIGHT),
)
COMPARED: Final = (
    ("gold, alone twice (noise)", "gold alone, again", "gold alone"),
    ("gold beside copper / alone", "gold beside copper", "gold alone"),
    ("gold by hand / alone (the bound)", "gold beside idle-class hogs by hand", "gold alone"),
    ("gold beside copper / by hand", "gold beside copper", "gold beside idle-class hogs by hand"),
    ("silver, alone twice (noise)", "silver alone, again", "silver alone"),
    ("silver beside copper / alone", "silver beside copper", "silver alone"),
    ("silver by hand / alone (the bound)", "silver beside idle-class hogs by hand", "silver alone"),
    ("silver beside copper / by hand", "silver beside copper", "silver beside idle-class hogs by hand"),
    ("real time beside copper / alone (the bound)", "real time beside copper", "real time alone"),
    ("silver beside hogs of its weight / alone", "silver beside hogs of its weight", "silver alone"),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of wake-up latency in microseconds, and the CPU use of other work meanwhile."""

    p50_us: float
    p99_us: float
    most_us: float
    other_cpus: float


class Bench:
    """Two control groups and the program."""

    def __init__(self, program: Path, kept: Path, copper: Path, hogs: int, tries: int = MOST_TRIES) -> None:
        self._program, self._kept, self._copper, self._hogs = program, kept, copper, hogs
        self._tries = tries

    def latency(self, case: Case, seconds: float) -> Latency:
        """Measure this case until the machine is calm, at most a few times; else return the calmest measurement."""
        tries: list[Latency] = []
        while len(tries) < self._tries and all(each.other_cpus > MOST_OTHER_CPUS for each in tries):
            tries.append(self._once(case, seconds))
        return min(tries, key=lambda each: each.other_cpus)

    def _once(self, case: Case, seconds: float) -> Latency:
        cpus = sorted(os.sched_getaffinity(0))
        mine, theirs = (cpus[-1:], cpus[:-1]) if case.own_cpu else (cpus, cpus)
        _set(self._copper, DEFAULT if case.hogs is Hogs.SAME_WEIGHT else LEAST)
        burning = [
            _started(
                [sys.executable, "-c", "while True: pass"],
                self._copper,
                theirs,
                os.SCHED_IDLE if case.hogs is Hogs.BY_HAND else os.SCHED_OTHER,
            )
            for _ in range(self._hogs if case.hogs is not Hogs.NONE else 0)
        ]
        try:
            time.sleep(SETTLES_S)
            began_s, used_s, busy_s = time.monotonic(), _used_s(burning), _busy_s()
            late_us = self._run(seconds, mine, case.real_time)
            took_s = time.monotonic() - began_s
            other = (_busy_s() - busy_s - (_used_s(burning) - used_s)) / took_s
        finally:
            for each in burning:
                each.kill()
                each.wait()
        return Latency(
            late_us[len(late_us) // 2], late_us[int(0.99 * len(late_us))], late_us[-1], max(0.0, other)
        )

    def _run(self, seconds: float, cpus: list[int], real_time: bool) -> list[float]:
        count = max(1, int(seconds * 1e6 / INTERVAL_US))
        # A real-time program stays where it is: groups of cgroup v1 have no real-time budget unless given one.
        group, policy = (None, os.SCHED_FIFO) if real_time else (self._kept, os.SCHED_OTHER)
        done = _started([str(self._program), str(INTERVAL_US), str(count)], group, cpus, policy)
        out, _ = done.communicate()
        if done.returncode:
            raise WakeupError(f"the program ended with {done.returncode}")
        return sorted(int(line) / 1000.0 for line in out.split())


@contextmanager
def bench(hogs: int, tries: int = MOST_TRIES, shielded: bool = False) -> Iterator[Bench]:
    """Groups and program for the duration of the block.

    ``shielded``: the program's group has the greatest weight, so that other work of the machine waits for it.

    Raises:
        WakeupError: no compiler, no control groups, or a single CPU.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise WakeupError("this machine has only one CPU, which leaves none for the hogs")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        program = folder / "wakeup"
        compiler = shutil.which("cc")
        if compiler is None:
            raise WakeupError("no C compiler")
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        kept, copper = (_group(stack, f"perphd-wakeup-{name}-{os.getpid()}") for name in ("band", "copper"))
        if shielded:
            _set(kept, GREATEST)
        yield Bench(program, kept, copper, hogs, tries)


def measured(
    made: Bench, cases: Sequence[Case], seconds: float, repetitions: int
) -> Iterator[dict[str, Latency]]:
    """The cases of each repetition, by name."""
    by_name = {case.name: case for case in cases}
    for repetition in range(repetitions):
        order = rotated(list(by_name), repetition)
        yield {name: made.latency(by_name[name], seconds) for name in order}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(rounds: Sequence[dict[str, Latency]], case: str, reference: str) -> list[float]:
    """p99 of a case by that of its reference, in each repetition that has both."""
    return [each[case].p99_us / each[reference].p99_us for each in rounds if {case, reference} <= each.keys()]


def report(rounds: Sequence[dict[str, Latency]]) -> Iterator[str]:
    """Two tables in Markdown: the cases, and their ratios."""
    yield f"{len(rounds)} repetitions; median [quartiles] over repetitions"
    yield ""
    yield "| case | p50, us | p99, us | greatest, us | other work, CPUs |"
    yield "| --- | --- | --- | --- | --- |"
    for case in CASES:
        found = [each[case.name] for each in rounds if case.name in each]
        if found:
            cells = [
                _cell([getattr(each, name) for each in found], form)
                for name, form in (
                    ("p50_us", ".0f"),
                    ("p99_us", ".0f"),
                    ("most_us", ".0f"),
                    ("other_cpus", ".2f"),
                )
            ]
            yield f"| {case.name} | {' | '.join(cells)} |"
    yield ""
    yield f"| p99 compared within a repetition | ratio | at most {MOST_RATIO} in |"
    yield "| --- | --- | --- |"
    for name, case_name, reference in COMPARED:
        found_ratios = ratios(rounds, case_name, reference)
        if found_ratios:
            within = sum(each <= MOST_RATIO for each in found_ratios)
            yield f"| {name} | {_cell(found_ratios, '.2f')} | {within} of {len(found_ratios)} |"


def _cell(values: Sequence[float], form: str) -> str:
    low, middle, high = quartiles(values)
    return f"{middle:{form}} [{low:{form}} to {high:{form}}]"


def _set(group: Path, values: Sequence[tuple[str, str]]) -> None:
    for file, value in values:
        if (group / file).exists():
            (group / file).write_text(value)


def _group(stack: ExitStack, name: str) -> Path:
    root = Path("/sys/fs/cgroup")
    parent = root if (root / "cgroup.controllers").exists() else root / "cpu"
    if not os.access(parent, os.W_OK):
        raise WakeupError(f"{parent}: no control group can be created there")
    group = parent / name
    group.mkdir()
    stack.callback(group.rmdir)
    return group


def _used_s(processes: Sequence[subprocess.Popen[str]]) -> float:
    """CPU time of these processes."""
    return sum(int(Path(f"/proc/{each.pid}/schedstat").read_text().split()[0]) for each in processes) / 1e9


def _busy_s() -> float:
    """CPU time of everything on the machine since boot."""
    user, nice, system, _, _, irq, softirq, *_ = (
        int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _started(command: list[str], group: Path | None, cpus: list[int], policy: int) -> subprocess.Popen[str]:
    entered = 'exec "$@"' if group is None else 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    started = subprocess.Popen(
        ["/bin/sh", "-c", f"read go; {entered}", str(group), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(started.pid, cpus)
    try:
        os.sched_setscheduler(started.pid, policy, os.sched_param(1 if policy == os.SCHED_FIFO else 0))
    except PermissionError as exc:
        started.kill()
        raise WakeupError("the real-time class is not available here") from exc
    if started.stdin is not None:
        started.stdin.write("go\n")
        started.stdin.flush()
    return started


def _read(file: Path) -> list[dict[str, Latency]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [{name: Latency(**each) for name, each in json.loads(line).items()} for line in lines]


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(
        prog="tools.lab.wakeup", description="Wake-up latency beside copper hogs."
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--hogs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--tries", type=int, default=MOST_TRIES, help="most tries of a measurement until the machine is calm"
    )
    parser.add_argument(
        "--shielded",
        action="store_true",
        help="give the program's group the greatest weight, on a busy machine",
    )
    parser.add_argument("--records", type=Path, help="file of JSON lines to append to and report on")
    options = parser.parse_args()
    rounds = [] if options.records is None else _read(options.records)
    with bench(options.hogs, options.tries, options.shielded) as made:
        for one in measured(made, CASES, options.seconds, options.repetitions):
            rounds.append(one)
            if options.records is not None:
                with options.records.open("a") as file:
                    file.write(json.dumps({name: asdict(each) for name, each in one.items()}) + "\n")
    print("\n".join(report(rounds)))


if __name__ == "__main__":
    main()
