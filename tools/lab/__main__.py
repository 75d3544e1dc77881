"""The real experiment: a database, a load, a batch job, and the ways to run them on one machine.

python -m tools.lab                      the whole experiment (about 40 minutes), report in out/lab
python -m tools.lab --quick              one repetition with short windows
python -m tools.lab --only open-pi4 --schemes alone,native,perphd --reps 5
python -m tools.lab --cleanup            undo what a killed lab left
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TypeVar

from tools.lab import machine as machines
from tools.lab import processes, report, usage
from tools.lab.experiment import CELLS, Bench, Cell, Timing
from tools.lab.groups import PARENT_SHARES, Groups
from tools.lab.mariadb import DATA_BYTES
from tools.lab.processes import LabError, Ledger
from tools.lab.records import Run
from tools.lab.schemes import SCHEMES, Scheme
from tools.lab.stats import rotated

T = TypeVar("T")
OUT = Path("out/lab")
_QUICK = Timing(warm=3.0, learn=12.0, window=15.0)
_BETWEEN_RUNS_S = 1.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIET_CORES = 0.1
_DISTURBED_CORES = 0.2
_AGAIN = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lab. Returns the exit status: 0, 1 when it could not run, 130 when interrupted."""
    options = _options(arguments)
    if options.cleanup:
        return _cleanup()
    for number in _ENDING:
        signal.signal(number, _interrupt)
    try:
        _experiment(options)
    except LabError as exc:
        print(f"lab: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; everything was cleaned up", file=sys.stderr)
        return 130
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)  # cleaning up is not interrupted again
    raise KeyboardInterrupt


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.lab", description=__doc__.partition("\n")[0])
    parser.add_argument("--reps", type=_positive, default=None, metavar="N", help="repetitions (default 2)")
    parser.add_argument("--quick", action="store_true", help="one repetition, short windows")
    parser.add_argument("--only", type=_cells, default=list(CELLS), metavar="CELL,...",
                        help=f"cells to run: {','.join(cell.name for cell in CELLS)}")  # fmt: skip
    usual = [scheme for scheme in SCHEMES if not scheme.on_request]
    parser.add_argument("--schemes", type=_schemes, default=usual, metavar="SCHEME,...",
                        help=f"schemes to run: {','.join(scheme.name for scheme in SCHEMES)}; "
                        f"by default {','.join(scheme.name for scheme in usual)}")  # fmt: skip
    parser.add_argument(
        "--window", type=_positive, default=None, metavar="S", help="measured seconds of a run"
    )
    parser.add_argument("--learn", type=_positive, default=None, metavar="S",
                        help="seconds that perphd sees the load alone")  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where the report goes ({OUT})")
    parser.add_argument("--patience", type=int, default=30, metavar="S",
                        help="longest wait for a quiet machine before a run (default 30)")  # fmt: skip
    parser.add_argument(
        "--cleanup", action="store_true", help="undo what a killed lab left, and do nothing else"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return value


def _cells(text: str) -> list[Cell]:
    return _chosen(text, {cell.name: cell for cell in CELLS}, "cell")


def _schemes(text: str) -> list[Scheme]:
    return _chosen(text, {scheme.name: scheme for scheme in SCHEMES}, "scheme")


def _chosen(text: str, known: dict[str, T], what: str) -> list[T]:
    wanted = text.split(",")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {what} {unknown[0]!r} (there are: {', '.join(known)})")
    return [item for name, item in known.items() if name in wanted]


def _timing(options: argparse.Namespace) -> Timing:
    base = _QUICK if options.quick else Timing()
    return Timing(base.warm, float(options.learn or base.learn), float(options.window or base.window))


def _experiment(options: argparse.Namespace) -> None:
    if os.geteuid() != 0:
        raise LabError("the lab makes control groups and needs root: sudo make lab")
    if processes.running():
        raise LabError(f"another lab is running ({processes.REMEMBERED}); wait for it, or end it")
    processes.undo()
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # where servers are, whatever su or sudo left
    timing, repetitions = _timing(options), options.reps or (1 if options.quick else 2)
    runs: list[Run] = []
    command = "python -m tools.lab " + shlex.join(sys.argv[1:])
    with ExitStack() as stack:
        ledger = Ledger()
        stack.callback(ledger.close)
        groups = stack.enter_context(Groups())
        stack.callback(ledger.end_all)  # before the groups are removed: they must be empty
        folder = ledger.folder(Path(tempfile.mkdtemp(prefix="perphd-lab-")))
        memory = _memory_folder()
        data = ledger.folder(Path(tempfile.mkdtemp(prefix="perphd-lab-", dir=memory))) if memory else folder
        groups.shelter()
        print("lab: starting MariaDB and loading its tables", flush=True)
        load_average = os.getloadavg()[0]
        bench = Bench(ledger, groups, folder, data, timing, options.out / "perphd")
        described = machines.describe(
            cgroups=groups.layout, mariadb=bench.server.version(), batch_language=bench.programs.language,
            lab_shares=PARENT_SHARES, load_average=load_average,
        )  # fmt: skip
        plan = _plan(options.only, options.schemes, repetitions)
        left_s = sum(timing.of(scheme) + _BETWEEN_RUNS_S for _, _, scheme in plan)
        for number, (repetition, cell, scheme) in enumerate(plan, 1):
            print(
                f"lab: [{number}/{len(plan)}] repetition {repetition + 1}: {cell.name} {scheme.name} "
                f"({_minutes(left_s)} left)", flush=True,
            )  # fmt: skip
            runs.append(_undisturbed(bench, cell, scheme, repetition, float(options.patience)))
            left_s -= timing.of(scheme) + _BETWEEN_RUNS_S
            report.write(
                options.out, runs, described, timing, command.strip()
            )  # an interrupted lab has a report too
            time.sleep(_BETWEEN_RUNS_S / 2)
    print((options.out / "report.md").read_text())
    print(f"lab: report, data and plot are in {options.out}/")


def _undisturbed(bench: Bench, cell: Cell, scheme: Scheme, repetition: int, patience_s: float) -> Run:
    """Run when the machine is quiet, and again when somebody else used the CPUs meanwhile, whatever came out."""
    attempt = 0
    while True:
        usage.wait_for_quiet(_QUIET_CORES, patience_s)
        run = bench.run(cell, scheme, repetition, attempt)
        print(f"lab:     {_line(run)}", flush=True)
        if run.cores.others is None or run.cores.others < _DISTURBED_CORES or attempt == _AGAIN:
            return run
        print(f"lab:     others used {run.cores.others:.2f} CPUs meanwhile: once more", flush=True)
        attempt += 1


def _memory_folder() -> Path | None:
    """A tmpfs with room for the database: on a disk, its stalls would hide what is measured."""
    for candidate in (Path("/dev/shm"), Path("/run")):
        try:
            room = os.statvfs(candidate)
        except OSError:
            continue
        if room.f_bavail * room.f_frsize >= DATA_BYTES:
            return candidate
    print("lab: there is no tmpfs with room for the database: its data are on disk", flush=True)
    return None


def _plan(
    cells: Sequence[Cell], schemes: Sequence[Scheme], repetitions: int
) -> list[tuple[int, Cell, Scheme]]:
    """All runs in their order: interleaved, so that what drifts with time meets every scheme."""
    by_name = {scheme.name: scheme for scheme in schemes}
    return [
        (repetition, cell, by_name[name])
        for repetition in range(repetitions)
        for cell in cells
        for name in rotated(list(by_name), repetition)
    ]


def _line(run: Run) -> str:
    latency = ""
    if run.whole.p95_ms is not None:
        latency = f"p50 {run.whole.p50_ms:.2f}  p95 {run.whole.p95_ms:.2f}  p99 {run.whole.p99_ms:.2f} ms, "
    problem = f"  ({run.daemon_problem})" if run.daemon_problem else ""
    return f"{run.whole.tps:.0f}/s, {latency}batch {run.whole.batch:.1f}{problem}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _cleanup() -> int:
    if processes.running():
        print("lab: a lab is running; end it (SIGTERM) and it cleans up itself", file=sys.stderr)
        return 1
    done = processes.undo()
    Groups().remove()
    for line in done:
        print(f"lab: {line}")
    print("lab: nothing of the lab is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
