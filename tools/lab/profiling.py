"""``perphd profile`` of a real, loaded server, with the loss that its clients see meanwhile, and the model's error.

python -m tools.lab.profiling redis,postgresql [--out out/profiling] [-- options of perphd profile]

Each server runs in a control group of the lab under a closed loop of four clients, which are protected as in the lab.
``perphd profile`` explores it. The lab then sets ten allocations of CPU time halfway between two visited ones,
alternating with no limit at all, and compares the clients' rate with the profile's prediction.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Final

import numpy as np

from perphd.predictor.ogbrt.forest import Forest
from perphd.predictor.profile.file import Profile, from_text
from tools.lab import groups as g
from tools.lab import processes
from tools.lab.groups import Groups
from tools.lab.processes import LabError, Ledger

ROOT: Final = Path(__file__).resolve().parents[2]
OTHERS: Final = 10
"""Allocations that the profile did not visit."""
WARM_S, SETTLE_S, MEASURE_S = 8.0, 2.0, 5.0
_POSTGRES: Final = Path("/usr/lib/postgresql/15/bin")
_CONFIG: Final = """\
[daemon]
state_dir = "{folder}/state"
socket = "{folder}/perphd.sock"

[[lra]]
name = "{name}"
cgroup = "{group}"

[lra.sli]
source = "{name}"
socket = "{socket}"
"""


@dataclass(frozen=True, slots=True)
class Served:
    """The clients' rate over an interval that ended at ``at_s`` (monotonic): requests per second."""

    at_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Found:
    """The result for one server. Losses are parts of the rate before exploring; ``beyond``: share of the time in which
    the clients lost more than was allowed; ``errors``: of the predictions, relative, one for each allocation.
    """

    server: str
    took_s: float
    visited: int
    r2: float
    signed_off: bool
    loss_mean: float
    loss_worst_second: float
    allowed: float
    beyond: float
    errors: tuple[float, ...]

    @property
    def text(self) -> str:
        """One row of a table."""
        return (
            f"| {self.server} | {self.visited} | {self.took_s / 60:.1f} min | {self.r2:.2f} | "
            f"{'yes' if self.signed_off else 'no'} | {median(self.errors):.1%}, {max(self.errors):.0%} | "
            f"{self.loss_mean:.0%} | {self.loss_worst_second:.0%} | {self.beyond:.1%} |"
        )


class Clients:
    """A load generator that prints its rate about once a second."""

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes], rate: re.Pattern[str]) -> None:
        self.seen: list[Served] = []
        self._process, self._stream, self._rate = process, stream, rate
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            if found := self._rate.search(line.decode(errors="replace")):
                self.seen.append(Served(time.monotonic(), float(found[1])))

    def rate(self, since_s: float, until_s: float | None = None) -> float:
        """Mean of the clients' rates in this time."""
        if self._process.poll() is not None:
            raise LabError("the load generator ended by itself")
        rates = [s.rate for s in self.seen if since_s < s.at_s <= (until_s or time.monotonic())]
        if not rates:
            raise LabError("the load generator printed no rate")
        return len(rates) / sum(1.0 / max(rate, 1e-9) for rate in rates)


@dataclass(frozen=True, slots=True)
class Server:
    """``start``: the server, in the LRA's group, with the path of its socket; ``load``: its clients."""

    name: str
    start: Callable[[Ledger, Groups, Path], Path]
    load: Callable[[Ledger, Groups, Path], Clients]


def _redis(ledger: Ledger, groups: Groups, folder: Path) -> Path:
    socket = folder / "redis.sock"
    argv = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    ledger.start(argv, groups=groups.directories(g.LRA))
    _wait(socket.exists)
    return socket


def _redis_load(ledger: Ledger, groups: Groups, socket: Path) -> Clients:
    argv = ["redis-benchmark", "-s", str(socket), "-t", "get", "-c", "4", "-n", "20000", "--csv", "-l"]
    return _clients(ledger, groups, ["stdbuf", "-oL", *argv], re.compile(r'^"GET","([0-9.]+)"'))


def _postgresql(ledger: Ledger, groups: Groups, folder: Path) -> Path:
    shutil.chown(folder, "postgres")
    initdb = [str(_POSTGRES / "initdb"), "-D", f"{folder}/data", "-A", "trust", "-U", "perphd", "--no-sync"]
    subprocess.run(initdb, user="postgres", cwd=folder, check=True, stdout=subprocess.DEVNULL)
    settings = (
        "fsync=off",
        "shared_buffers=256MB",
        "dynamic_shared_memory_type=mmap",
    )  # no files outside the folder
    options = ["-k", str(folder), "-h", "", *(word for one in settings for word in ("-c", one))]
    argv = [str(_POSTGRES / "postgres"), "-D", f"{folder}/data", *options]
    ledger.start(argv, groups=groups.directories(g.LRA), user="postgres")
    socket = folder / ".s.PGSQL.5432"
    ready = ["pg_isready", "-q", "-h", str(folder)]
    _wait(lambda: subprocess.run(ready, check=False).returncode == 0)
    prepare = ["pgbench", "-h", str(folder), "-U", "perphd", "-i", "-q", "-s", "10", "postgres"]
    subprocess.run(prepare, check=True, capture_output=True)
    return socket


def _postgresql_load(ledger: Ledger, groups: Groups, socket: Path) -> Clients:
    argv = [
        "pgbench",
        "-h",
        str(socket.parent),
        "-U",
        "perphd",
        "-n",
        "-c",
        "4",
        "-T",
        "3000",
        "-P",
        "1",
        "postgres",
    ]
    return _clients(ledger, groups, argv, re.compile(r"progress: [0-9.]+ s, ([0-9.]+) tps"))


SERVERS: Final = {
    "redis": Server("redis", _redis, _redis_load),
    "postgresql": Server("postgresql", _postgresql, _postgresql_load),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lab.profiling", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("servers", help=f"of {','.join(SERVERS)}")
    parser.add_argument("--out", type=Path, default=Path("out/profiling"), help="folder of the results")
    parser.add_argument("--max-loss", type=float, default=30.0, help="per cent, as of perphd profile")
    parser.add_argument("--when-it-suffers", default="skip", help="as of perphd profile")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if processes.running():
        print(f"another lab is running ({processes.REMEMBERED})", file=sys.stderr)
        return 1
    processes.undo()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.servers.split(","):
        with ExitStack() as stack:
            ledger = Ledger()
            stack.callback(ledger.close)
            groups = stack.enter_context(Groups())
            stack.callback(ledger.end_all)
            folder = ledger.folder(Path(tempfile.mkdtemp(prefix="perphd-lab-", dir="/dev/shm")))
            groups.shelter()
            found = _one(ledger, groups, folder, SERVERS[name], options)
        print(found.text, flush=True)
        with (options.out / "profiling.jsonl").open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")
    return 0


def _one(ledger: Ledger, groups: Groups, folder: Path, server: Server, options: argparse.Namespace) -> Found:
    data = folder / server.name
    data.mkdir()
    folder.chmod(0o755)
    socket = server.start(ledger, groups, data)
    clients = server.load(ledger, groups, socket)
    config = folder / "perphd.toml"
    config.write_text(_CONFIG.format(folder=folder, name=server.name, group=g.LRA, socket=socket))
    (folder / "state").mkdir()
    time.sleep(WARM_S)
    before = clients.rate(time.monotonic() - WARM_S + SETTLE_S)
    began_s = time.monotonic()
    program = "from perphd.commands.daemon import main; main()"
    argv = [
        sys.executable, "-c", program, "profile", server.name, "--config", str(config), "--max-loss",
        str(options.max_loss), "--when-it-suffers", options.when_it_suffers,
    ]  # fmt: skip
    with (options.out / f"{server.name}.log").open("wb") as log:
        process = ledger.start(
            argv, groups=groups.directories(g.CLIENT), stdout=log, stderr=log, env={"PYTHONPATH": str(ROOT)}
        )
        process.wait()
    ended_s = time.monotonic()
    rates = "".join(f"{s.at_s - began_s:.1f} {s.rate:.0f}\n" for s in clients.seen)
    (options.out / f"{server.name}.clients").write_text(rates)
    path = folder / "state" / "profiles" / f"{server.name}.json"
    if not path.exists():
        raise LabError((options.out / f"{server.name}.log").read_text())
    shutil.copy(path, options.out / f"{server.name}.profile.json")
    profile = from_text(path.read_text())
    time.sleep(SETTLE_S + MEASURE_S)
    after = clients.rate(ended_s + SETTLE_S)
    print(f"{server.name}: {before:.0f}/s before, {after:.0f}/s after", flush=True)
    losses = _losses(clients, began_s, ended_s, (before + after) / 2.0)
    allowed = options.max_loss / 100.0
    return Found(
        server.name, ended_s - began_s, profile.origin.measured, profile.metrics.r2, profile.is_signed_off,
        sum(losses) / len(losses), max(losses), allowed, sum(loss > allowed for loss in losses) / len(losses),
        _errors(groups, clients, profile),
    )  # fmt: skip


def _losses(clients: Clients, since_s: float, until_s: float, usual: float) -> list[float]:
    """Share of the usual rate that the clients lost, by second."""
    found = []
    for start in np.arange(since_s, until_s - 1.0, 1.0):
        rates = [s.rate for s in clients.seen if start < s.at_s <= start + 1.0]
        if rates:
            found.append(1.0 - len(rates) / sum(1.0 / max(r, 1e-9) for r in rates) / usual)
    return found


def _errors(groups: Groups, clients: Clients, profile: Profile) -> tuple[float, ...]:
    """Relative errors of the profile's predictions between the CPU times that it visited."""
    if profile.features != ("cpu_share",):
        raise LabError(
            f"it explored {', '.join(profile.features)}: this comparison needs a host that sets only CPU time"
        )
    visited = np.unique(profile.x[:, 0] * profile.scale[0])
    middles = (visited[:-1] + visited[1:])[:-1] / 2.0  # the last one means no limit
    chosen = middles[np.unique(np.linspace(0, len(middles) - 1, OTHERS).round().astype(int))]
    model = Forest.compile(profile.trees)
    errors = []
    for cores in chosen:
        free = _at(groups, clients, None)
        seen = _at(groups, clients, float(cores)) / ((free + _at(groups, clients, None)) / 2.0)
        told = float(np.exp(model.predict(np.array([[cores / profile.scale[0]]]))[0]))
        print(f"  {cores:.3f} CPUs: {seen:.3f} of the rate, predicted {told:.3f}", flush=True)
        errors.append(abs(told / seen - 1.0))
    return tuple(errors)


def _at(groups: Groups, clients: Clients, cores: float | None) -> float:
    """The clients' rate with this CPU time."""
    groups.set_quota(g.LRA, cores)
    time.sleep(SETTLE_S)
    since_s = time.monotonic()
    time.sleep(MEASURE_S)
    return clients.rate(since_s)


def _clients(ledger: Ledger, groups: Groups, argv: list[str], rate: re.Pattern[str]) -> Clients:
    process = ledger.start(
        argv, groups=groups.directories(g.CLIENT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    return Clients(process, process.stdout, rate)


def _wait(done: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60.0
    while not done():
        if time.monotonic() > give_up_s:
            raise LabError("the server did not start in time")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
