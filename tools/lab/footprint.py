"""The daemon's own effect on an LRA's tail latency: memcached at 5000 requests a second on a full host.

python -m tools.lab.footprint                      about five minutes; --out keeps the measurements
python -m tools.lab.footprint --pairs 5 about one minute

Batch fills all CPUs in the kernel's idle class. The daemon runs in a group with the weight of its own slice and
measures memcached by the TCP source. The lab stops (SIGSTOP) and continues it alternately, for some seconds each. While
it is stopped, all settings on the host stay, so a pair of turns compares the same settings with and without the daemon.
Latency is measured from the client's send to the kernel's receive timestamp of the answer. The first part of each turn
is not counted. The noise is reported as well: the same ratio for turns without the daemon.

Needs root, memcached and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tools.lab import groups as g
from tools.lab import processes
from tools.lab.groups import Groups
from tools.lab.processes import LabError, Ledger

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = Path(__file__).parent / "native" / "openloop.c"
CONNECTIONS: Final = 64
VALUE: Final = b"x" * 100
SPIN: Final = "while True: pass"
MOST_RATIO: Final = 1.05
CONFIG: Final = """\
[daemon]
mode = "{mode}"
state_dir = "{folder}/state"
socket = "{folder}/perphd.sock"

[[lra]]
name = "memcached"
cgroup = "{lra}"

[lra.sli]
source = "tcp"

[[batch]]
name = "batch"
cgroup = "{batch}"
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: ``learn`` of load before the first turn; ``settle`` and ``count`` (measured) of each turn."""

    learn: float = 25.0
    settle: float = 1.5
    count: float = 4.5


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: latencies on the wire, the daemon's CPU time, and batch's settings."""

    daemon: bool
    requests: int
    p50_us: float
    p99_us: float
    p999_us: float
    daemon_pct: float
    setting: str


def memcached(ledger: Ledger, groups: Groups, port: int) -> None:
    """Start it, and store the single value that clients request.

    Raises:
        LabError: it is not installed, or does not start.
    """
    program = shutil.which("memcached")
    if program is None:
        raise LabError("memcached is not installed (Debian package memcached)")
    words = [program, "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "64"]
    ledger.start(words, groups=groups.directories(g.LRA))
    deadline = time.monotonic() + 20.0
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5.0) as one:
                one.sendall(b"set k 0 0 %d\r\n%s\r\n" % (len(VALUE), VALUE))
                if one.recv(64) != b"STORED\r\n":
                    raise LabError("memcached did not store a value")
                return
        except OSError:
            if time.monotonic() > deadline:
                raise LabError("memcached did not start in time") from None
            time.sleep(0.1)


def perphd(ledger: Ledger, groups: Groups, folder: Path, mode: str) -> subprocess.Popen[bytes]:
    """Start the daemon as its unit does: weight, allocator, and its own priority."""
    (folder / "state").mkdir()
    config = folder / "perphd.toml"
    config.write_text(CONFIG.format(mode=mode, folder=folder, lra=g.LRA, batch=g.BATCH))
    program = "from perphd.commands.daemon import main; main()"
    env = {
        "PYTHONPATH": str(ROOT),
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_TRIM_THRESHOLD_": "262144",
    }  # values of the daemon's unit
    with (folder / "log").open("wb") as log:
        return ledger.start(
            [sys.executable, "-c", program, "run", "--config", str(config)],
            groups=groups.directories(g.DAEMON), stdout=log, stderr=log, env=env, end_signal="TERM",
        )  # fmt: skip


def measure(
    ledger: Ledger, groups: Groups, folder: Path, mode: str, rate_per_s: float, pairs: int, timing: Timing
) -> list[Turn]:
    """All turns, alternately with and without the daemon."""
    client = folder / "openloop"
    compiler = shutil.which("cc")
    if compiler is None:
        raise LabError("no C compiler (Debian package gcc)")
    subprocess.run([compiler, "-O2", "-o", str(client), str(SOURCE), "-lm"], check=True)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = int(taken.getsockname()[1])
    groups.reset()
    memcached(ledger, groups, port)
    for _ in range(2 * (os.cpu_count() or 1)):
        ledger.start([sys.executable, "-c", SPIN], groups=groups.directories(g.BATCH))
    if mode == "observe":
        groups.set_idle(g.BATCH, True)
    daemon = perphd(ledger, groups, folder, mode)
    turn_s = timing.settle + timing.count
    request, records = folder / "request", folder / "records"
    request.write_bytes(b"get k\r\n")
    seconds = timing.learn + 2 * pairs * turn_s + 1.0
    # sh: the client reads the request from stdin
    words = f'exec "$0" {port} {rate_per_s} {seconds} {CONNECTIONS} "$1" < "$2"'
    load = ledger.start(
        ["nice", "-n", "-20", "sh", "-c", words, str(client), str(records), str(request)],
        groups=groups.directories(g.CLIENT),
    )
    time.sleep(timing.learn)
    spans: list[tuple[bool, float, float, float, str]] = []
    for n in range(2 * pairs):
        runs = n % 4 in (0, 3)  # on, off, off, on: a drift does not look like an effect
        daemon.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
        time.sleep(timing.settle)
        began_s, used_s = time.monotonic(), groups.cpu_seconds(g.DAEMON)
        time.sleep(timing.count)
        ended_s, used_s = time.monotonic(), groups.cpu_seconds(g.DAEMON) - used_s
        setting = " ".join(f"{key} {value}" for key, value in groups.knobs(g.BATCH).items())
        spans.append((runs, began_s, ended_s, 100.0 * used_s / (ended_s - began_s), setting))
    daemon.send_signal(signal.SIGCONT)
    if daemon.poll() is not None:
        raise LabError(f"perphd ended: {(folder / 'log').read_text(errors='replace')[-500:]}")
    if load.wait(30.0):
        raise LabError(f"the load ended with status {load.returncode}")
    ledger.end(daemon, signal.SIGTERM, 30.0)
    seen = np.fromfile(records, dtype=np.int64).reshape(-1, 2)
    return [turn(seen, *span) for span in spans]


def turn(
    seen: npt.NDArray[np.int64], runs: bool, began_s: float, ended_s: float, daemon_pct: float, setting: str
) -> Turn:
    """Latencies of requests due between two moments (monotonic); ``seen``: rows of due time and latency, in ns."""
    within = seen[(seen[:, 0] >= began_s * 1e9) & (seen[:, 0] < ended_s * 1e9), 1] / 1000.0
    if not len(within):
        raise LabError("no request was answered in a turn")
    p50, p99, p999 = (float(value) for value in np.quantile(within, (0.5, 0.99, 0.999)))
    return Turn(runs, len(within), p50, p99, p999, daemon_pct, setting)


def lines(turns: Sequence[Turn]) -> list[str]:
    """The report: both cases, their ratio within pairs of the same setting, and the noise."""
    told = [
        "| | p50 us | p99 us, median (least to most) | p99.9 us | requests | the daemon's CPU time |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in (("with the daemon", True), ("without", False)):
        some = [item for item in turns if item.daemon == runs]
        p99 = [item.p99_us for item in some]
        told.append(
            f"| {name} | {statistics.median(t.p50_us for t in some):.0f} | {statistics.median(p99):.0f} "
            f"({min(p99):.0f} to {max(p99):.0f}) | {statistics.median(t.p999_us for t in some):.0f} "
            f"| {sum(t.requests for t in some)} | {statistics.fmean(t.daemon_pct for t in some):.1f} % |"
        )
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    same = [
        sorted(pair, key=lambda item: item.daemon) for pair in pairs if pair[0].setting == pair[1].setting
    ]
    without = [item for item in turns if not item.daemon]
    told.append(f"pairs of the same setting: {len(same)} of {len(pairs)}")
    if same:
        told += [
            _ratio("p99 with the daemon over without", [on.p99_us / off.p99_us for off, on in same]),
            _ratio("p99.9", [on.p999_us / off.p999_us for off, on in same]),
        ]
    if len(without) > 1:
        told.append(
            _ratio(
                "noise: p99 of successive turns without",
                [b.p99_us / a.p99_us for a, b in pairwise(without)],
            )
        )
    return told


def _ratio(name: str, values: Sequence[float]) -> str:
    middle = statistics.median(values)
    if len(values) < 4:
        return f"{name}: {middle:.3f}"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    within = sum(value <= MOST_RATIO for value in values)
    told = f"{name}: {middle:.3f} (quartiles {low:.3f} to {high:.3f})"
    return f"{told}, at most {MOST_RATIO} in {within} of {len(values)}"


def main() -> int:
    """Measure, print, and keep the measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lab.footprint", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=20, help="pairs of turns, 12 s each")
    parser.add_argument("--rate", type=float, default=5000.0, help="requests per second")
    parser.add_argument(
        "--mode", default="observe", choices=("observe", "enforce"),
        help="observe: the bench sets the idle class; enforce: the daemon decides all settings",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help="file of JSON lines to append to; the report covers all of it"
    )
    options = parser.parse_args()
    if processes.running():
        print("lab: another lab runs", file=sys.stderr)
        return 1
    earlier: list[Turn] = []
    if options.out is not None and options.out.exists():
        earlier = [Turn(**json.loads(line)) for line in options.out.read_text().splitlines()]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="perphd-footprint-") as folder,
            closing(Ledger()) as ledger,
            Groups() as groups,
        ):
            groups.shelter()
            turns = measure(ledger, groups, Path(folder), options.mode, options.rate, options.pairs, Timing())
    except LabError as exc:
        print(f"lab: {exc}", file=sys.stderr)
        return 1
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.writelines(json.dumps(asdict(item)) + "\n" for item in turns)
    print("\n".join(lines([*earlier, *turns])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
