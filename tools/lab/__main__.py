"""The real experiment: a server, a load, a batch job, and the schemes that run them on one machine.

python -m tools.lab --list               every cell, and what it is
python -m tools.lab                      the usual cells (about 40 minutes), report in out/lab
python -m tools.lab --only paper         those in which the Perph paper reports figures; all: every cell
python -m tools.lab --quick              one repetition with short windows
python -m tools.lab --only open-pi4 --schemes alone,native,perphd --reps 5
python -m tools.lab --unattended         a bigger host: all, after a safety check; repeated, it goes on
python -m tools.lab --cleanup            undo what a killed lab left
"""

from __future__ import annotations

import argparse
import math
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
from tools.lab import processes, report, unattended, usage
from tools.lab.batch import JOBS
from tools.lab.catalogue import CELLS, GROUPS, LOADS, Cell
from tools.lab.experiment import Bench, Timing
from tools.lab.groups import PARENT_SHARES, Groups
from tools.lab.kept import Kept
from tools.lab.processes import LabError, Ledger
from tools.lab.records import Run
from tools.lab.schemes import SCHEMES, Scheme
from tools.lab.servers.seam import Unavailable
from tools.lab.stats import rotated

T = TypeVar("T")
OUT = Path("out/lab")
_QUICK = Timing(warm=3.0, learn=12.0, window=15.0)
_BETWEEN_RUNS_S = 1.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIET_CORES = 0.1
_DISTURBED_CORES = 0.2
_AGAIN = 2
_DATA_BYTES = 4 << 30
"""Bytes for a server's data, multiplied by the scale."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lab. Returns the exit status: 0, 1 when it could not run, 130 when interrupted."""
    options = _options(arguments)
    if options.cleanup:
        return _cleanup()
    if options.list:
        return _list()
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
        signal.signal(ending, signal.SIG_IGN)  # cleaning up must not be interrupted
    raise KeyboardInterrupt


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.lab", description=__doc__.partition("\n")[0])
    parser.add_argument("--reps", type=_positive, default=None, metavar="N", help="repetitions (default 2)")
    parser.add_argument("--quick", action="store_true", help="one repetition, short windows")
    parser.add_argument("--only", type=_cells, default=None, metavar="CELL,...",
                        help=f"cells to run, see --list; or {' or '.join(GROUPS)}")  # fmt: skip
    usual = [scheme for scheme in SCHEMES if not scheme.on_request]
    parser.add_argument("--schemes", type=_schemes, default=None, metavar="SCHEME,...",
                        help=f"schemes to run: {','.join(scheme.name for scheme in SCHEMES)}; "
                        f"by default {','.join(scheme.name for scheme in usual)}")  # fmt: skip
    parser.add_argument(
        "--window", type=_positive, default=None, metavar="S", help="measured seconds per run"
    )
    parser.add_argument("--learn", type=_positive, default=None, metavar="S",
                        help="seconds in which perphd sees the load alone")  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where the report goes ({OUT})")
    parser.add_argument("--scale", type=_positive, default=None, metavar="N",
                        help="factor on clients, rates, batch processes (1; unattended: half of the CPUs)")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="continue with the runs in DIR")
    parser.add_argument(
        "--minutes", type=float, default=None, metavar="M", help="start no run after M minutes"
    )
    parser.add_argument("--others", type=float, default=_DISTURBED_CORES, metavar="CPUS",
                        help=f"repeat a run if others used more CPUs meanwhile ({_DISTURBED_CORES})")  # fmt: skip
    parser.add_argument("--unattended", action="store_true",
                        help="check for safety, run all cells and schemes with --resume, pack the results")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="only list the cells")
    parser.add_argument("--patience", type=int, default=30, metavar="S",
                        help="longest wait for a quiet machine before a run (default 30)")  # fmt: skip
    parser.add_argument("--cleanup", action="store_true", help="only undo what a killed lab left")
    options = parser.parse_args(arguments)
    if options.unattended:
        options.resume = True
        options.reps = options.reps or 3
        options.scale = options.scale or max(1, len(os.sched_getaffinity(0)) // 2)
    options.only = options.only or [cell for cell in CELLS if cell.usual or options.unattended]
    options.schemes = options.schemes or (list(SCHEMES) if options.unattended else usual)
    options.scale = options.scale or 1
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return value


def _cells(text: str) -> list[Cell]:
    names = [name for word in text.split(",") for name in GROUPS.get(word, (word,))]
    return _chosen(",".join(names), {cell.name: cell for cell in CELLS}, "cell")


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
        raise LabError("the lab creates control groups and needs root: sudo make lab")
    if processes.running():
        raise LabError(f"another lab is running ({processes.REMEMBERED}); wait for it, or end it")
    processes.undo()
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # where servers are, even if su or sudo reduced PATH
    if options.unattended:
        unattended.check()
    timing, repetitions = _timing(options), options.reps or (1 if options.quick else 2)
    shared = {"timing": timing, "scale": options.scale}
    kept = Kept(options.out / "runs.jsonl", shared, resume=options.resume)
    until_s = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    command = "python -m tools.lab " + shlex.join(sys.argv[1:])
    with ExitStack() as stack:
        ledger = Ledger()
        stack.callback(ledger.close)
        groups = stack.enter_context(Groups())
        stack.callback(ledger.end_all)  # before the groups are removed, because they must be empty
        folder = ledger.folder(Path(tempfile.mkdtemp(prefix="perphd-lab-")))
        memory = _memory_folder(_DATA_BYTES * options.scale)
        data = ledger.folder(Path(tempfile.mkdtemp(prefix="perphd-lab-", dir=memory))) if memory else folder
        groups.shelter()
        load_average = os.getloadavg()[0]
        bench = Bench(ledger, groups, folder, data, timing, options.out / "perphd", options.scale)
        plan = [
            (repetition, cell, scheme)
            for repetition, cell, scheme in _plan(options.only, options.schemes, repetitions)
            if not kept.has(cell.name, scheme.name, repetition)
        ]
        left_s = sum(timing.of(LOADS[cell.load], scheme) + _BETWEEN_RUNS_S for _, cell, scheme in plan)
        software: dict[str, str] = {}
        lacking: dict[str, str] = {}
        for number, (repetition, cell, scheme) in enumerate(plan, 1):
            left_s -= timing.of(LOADS[cell.load], scheme) + _BETWEEN_RUNS_S
            server = LOADS[cell.load].server
            if server in lacking:
                continue
            if time.monotonic() > until_s:
                print(f"lab: {len(plan) - number + 1} runs are left; repeat with --resume", flush=True)
                break
            try:
                software[server] = bench.server(LOADS[cell.load]).version()
            except Unavailable as exc:
                lacking[server] = str(exc)
                print(f"lab: {server} is left out: {exc}", flush=True)
                continue
            print(
                f"lab: [{number}/{len(plan)}] repetition {repetition + 1}: {cell.name} {scheme.name} "
                f"({_minutes(left_s)} left after it)", flush=True,
            )  # fmt: skip
            kept.add(_undisturbed(bench, cell, scheme, repetition, float(options.patience), options.others))
            described = machines.describe(
                cgroups=groups.layout, software=tuple(software.values()), batch_language=bench.programs.language,
                lab_shares=PARENT_SHARES, load_average=load_average, scale=options.scale,
            )  # fmt: skip
            report.write(
                options.out, kept.runs, described, timing, command.strip()
            )  # an interrupted lab has a report, too
            time.sleep(_BETWEEN_RUNS_S / 2)
        bench.end_server()
    if not (options.out / "report.md").exists():
        raise LabError("no cell could run: " + "; ".join(lacking.values()))
    if options.unattended:
        packed = unattended.pack(options.out, unattended.private_words())
        print(f"lab: results without host names, to be sent: {packed}")
        return
    print((options.out / "report.md").read_text())
    print(f"lab: report, data and plot are in {options.out}/")


def _undisturbed(
    bench: Bench, cell: Cell, scheme: Scheme, repetition: int, patience_s: float, others_cores: float
) -> Run:
    """Run when the machine is quiet, and repeat if other processes used the CPUs, regardless of the result."""
    attempt = 0
    while True:
        usage.wait_for_quiet(_QUIET_CORES, patience_s)
        run = bench.run(cell, scheme, repetition, attempt)
        print(f"lab:     {_line(run)}", flush=True)
        if run.cores.others is None or run.cores.others < others_cores or attempt == _AGAIN:
            return run
        print(f"lab:     others used {run.cores.others:.2f} CPUs meanwhile: once more", flush=True)
        attempt += 1


def _memory_folder(needed_bytes: int) -> Path | None:
    """A tmpfs for servers' data, because stalls of a disk would mask the effect under study."""
    for candidate in (Path("/dev/shm"), Path("/run")):
        try:
            room = os.statvfs(candidate)
        except OSError:
            continue
        if room.f_bavail * room.f_frsize >= needed_bytes:
            return candidate
    print("lab: there is no tmpfs with room for the servers: their data are on disk", flush=True)
    return None


def _plan(
    cells: Sequence[Cell], schemes: Sequence[Scheme], repetitions: int
) -> list[tuple[int, Cell, Scheme]]:
    """All runs in order, interleaved so that a drift over time affects every scheme.

    Servers follow one another, because only one runs at a time.
    """
    by_name = {scheme.name: scheme for scheme in schemes}
    return [
        (repetition, cell, by_name[name])
        for server in dict.fromkeys(LOADS[cell.load].server for cell in cells)
        for repetition in range(repetitions)
        for cell in cells
        if LOADS[cell.load].server == server
        for name in rotated(list(by_name), repetition)
    ]


def _line(run: Run) -> str:
    latency = ""
    if run.whole.p95_ms is not None:
        latency = f"p50 {run.whole.p50_ms:.2f}  p95 {run.whole.p95_ms:.2f}  p99 {run.whole.p99_ms:.2f} ms, "
    problem = f"  ({run.daemon_problem})" if run.daemon_problem else ""
    return f"{run.whole.tps:.3g}/s, {latency}batch {run.whole.batch:.1f}{problem}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _list() -> int:
    for cell in CELLS:
        load = LOADS[cell.load]
        usual = " (usual)" if cell.usual else ""
        print(f"{cell.name}{usual}\n    {load.server}: {load.text}\n    beside {JOBS[cell.job].text}")
    for name, cells in GROUPS.items():
        print(f"{name}: {len(cells)} cells" if name == "all" else f"{name}: {', '.join(cells)}")
    return 0


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
