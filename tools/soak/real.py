"""The daemon as a process on control groups of the soak's own, for a chosen time."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from perphd.control.client import Client, Refused, Unreachable
from perphd.host.cgroup.hierarchy import Hierarchy, discover
from perphd.host.fs import RealFs
from tools.soak import churn, inside, meter
from tools.soak.churn import Happens, Step

STATE_BELOW = "/var/tmp"
READ_EVERY_S = 5.0
ASK_EVERY_S = 0.5
START_WAIT_S = 30.0
STOP_WAIT_S = 60.0
CEILING_CORES = 0.3
"""CPU limit of all groups together, so that a soak can run beside other work."""
_BURSTS = "import time\nwhile True:\n    sum(range(4000))\n    time.sleep(0.02)"
_SPIN = "while True: pass"
_NEEDED = ("cpu", "cpuset", "memory")
_CONFIG = """
[daemon]
mode = "enforce"
period_s = {period_s}
state_dir = "{state}"
socket = "{state}/perphd.sock"
read_group = "root"
admin_group = "root"
[tuning.daemon]
model_save_s = 30.0
[store]
max_size = "{store}"
[tuning.policy]
confirm_ticks = 1
settle_s = 0.5
evaluate_ticks = 2
shrink_after_s = 5.0
probe_after_s = 5.0
regret_s = 5.0
"""


class SoakError(Exception):
    """The soak cannot run here, or the daemon failed; the text states the reason."""


class Groups:
    """``/perphd-soak-PID/wNNN``, a process in each; created and removed while the daemon runs. Removes all of them at
    the end.
    """

    def __init__(self, places: int) -> None:
        hierarchies = discover(RealFs())
        absent = [name for name in _NEEDED if hierarchies.of(name) is None]
        if absent or os.geteuid() != 0:
            raise SoakError(f"needs root and cgroup hierarchies with {', '.join(absent or _NEEDED)}")
        wanted = (*_NEEDED, "cpuacct")
        trees = {tree.mount: tree for name in wanted if (tree := hierarchies.of(name)) is not None}
        if any(tree.version == 2 for tree in trees.values()):
            raise SoakError("needs the controllers on cgroup v1 (on cgroup v2 systemd owns the groups)")
        self._trees = tuple(trees.values())
        self._top = f"/perphd-soak-{os.getpid()}"
        self._places = places
        self._inside: dict[str, subprocess.Popen[bytes]] = {}
        self._made: set[str] = set()

    def path(self, name: str) -> str:
        """The cgroup of this workload."""
        return f"{self._top}/{name}"

    def __enter__(self) -> Groups:
        for tree in self._trees:
            self._make(tree, self._top)
            if "cpu" in tree.controllers:
                quota = Path(tree.path(self._top, "cpu.cfs_quota_us"))
                quota.write_text(str(int(CEILING_CORES * 100_000)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._made):
            self.remove(name)
        for tree in self._trees:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(tree.path(self._top))

    def make(self, name: str, place: int) -> None:
        """A group with one process: a few work, most sleep."""
        self._made.add(name)
        for tree in self._trees:
            self._make(tree, self.path(name))
        command = ["sleep", "infinity"]
        if place < 3 * churn.LRA_SHARE and churn.is_lra(place):
            command = [sys.executable, "-c", _BURSTS]
        elif place in (1, 2, 3):
            command = [sys.executable, "-c", _SPIN]
        process = self._inside[name] = subprocess.Popen(command)
        for tree in self._trees:
            Path(tree.path(self.path(name), "cgroup.procs")).write_text(str(process.pid))

    def remove(self, name: str) -> None:
        """End its process and remove it."""
        process = self._inside.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
        for tree in self._trees:
            _rmdir(tree.path(self.path(name)))
        self._made.discard(name)

    def _make(self, tree: Hierarchy, path: str) -> None:
        directory = Path(tree.path(path))
        directory.mkdir()
        if "cpuset" in tree.controllers:
            for knob in ("cpuset.mems", "cpuset.cpus"):
                (directory / knob).write_text((directory.parent / knob).read_text())


def _rmdir(path: str) -> None:
    give_up_s = time.monotonic() + 10.0
    while True:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.01)
        else:
            return


def run(
    seconds: float,
    places: int,
    per_s: float,
    rate_hz: float,
    store: str,
    seed: int,
    told: Callable[[meter.Reading], None],
) -> None:
    """Soak the daemon for this time; every reading is reported at once.

    Raises:
        SoakError: it cannot run here, the daemon ended, or did not restore everything.
    """
    with (
        Groups(places) as groups,
        tempfile.TemporaryDirectory(prefix="perphd-soak-", dir=STATE_BELOW) as folder,
    ):
        state = Path(folder, "state")
        state.mkdir(mode=0o700)
        config = Path(folder, "perphd.toml")
        lines = [_CONFIG.format(state=state, store=store, period_s=1.0 / rate_hz)]
        for place, name in enumerate(churn.first_names(places)):
            groups.make(name, place)
            kind = "lra" if churn.is_lra(place) else "batch"
            lines.append(f'[[{kind}]]\nname = "{name}"\ncgroup = "{groups.path(name)}"\n')
        config.write_text("\n".join(lines))
        config.chmod(0o600)
        log = Path(folder, "log")
        with _daemon(config, state, log) as daemon:
            client = Client(str(state / "perphd.sock"))
            _watch(daemon, client, state, groups, seconds, places, per_s, seed, told, log)


_AS_A_SERVICE: Final = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "262144"}
"""The allocator settings of systemd/perphd.service."""


@contextlib.contextmanager
def _daemon(config: Path, state: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-m", "tools.soak.inside"]
    environment = dict(os.environ) | _AS_A_SERVICE | {inside.BLOCKS: str(_blocks(state))}
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [*program, "run", "--config", str(config)], stdout=output, stderr=output, env=environment
        )
    try:
        client, give_up_s = Client(str(state / "perphd.sock")), time.monotonic() + START_WAIT_S
        while True:
            try:
                client.get("status")
                _blocks(state).stat()
                break
            except (Unreachable, FileNotFoundError):
                if daemon.poll() is not None or time.monotonic() > give_up_s:
                    raise SoakError(f"the daemon did not start:\n{_tail(log)}") from None
                time.sleep(0.1)
        yield daemon
        daemon.terminate()
        if daemon.wait(STOP_WAIT_S) != 0:
            raise SoakError(f"the daemon ended with status {daemon.returncode}:\n{_tail(log)}")
    finally:
        if daemon.poll() is None:
            daemon.kill()
            daemon.wait()


def _watch(
    daemon: subprocess.Popen[bytes],
    client: Client,
    state: Path,
    groups: Groups,
    seconds: float,
    places: int,
    per_s: float,
    seed: int,
    told: Callable[[meter.Reading], None],
    log: Path,
) -> None:
    began = read_at = time.monotonic()
    plan = churn.steps(places, int(seconds), seed, per_s)
    step = next(plan, None)
    chance = random.Random(seed)
    ask_s = 0.0
    while (now_s := time.monotonic() - began) < seconds:
        is_due = step is not None and step.at_s <= now_s
        if step is not None and is_due:
            _do(step, groups, client)
            step = next(plan, None)
        if now_s >= ask_s:
            ask_s = now_s + ASK_EVERY_S
            _ask(client, chance)
        if daemon.poll() is not None:
            raise SoakError(f"the daemon ended with status {daemon.returncode}:\n{_tail(log)}")
        if time.monotonic() >= read_at:
            read_at = max(read_at + READ_EVERY_S, time.monotonic())
            churned_s = min(now_s, step.at_s) if step is not None else now_s
            told(meter.read(daemon.pid, state, now_s, churned_s, float(_blocks(state).read_text())))
        if not is_due:
            time.sleep(0.1)


def _do(step: Step, groups: Groups, client: Client) -> None:
    if step.what is Happens.VANISHES:
        groups.remove(step.name)
    elif step.what is Happens.RETURNS:
        groups.make(step.name, step.place)
    else:
        kind = "lra" if churn.is_lra(step.place) else "batch"
        client.send("DELETE", f"workloads/{step.name}")
        groups.remove(step.name)
        groups.make(step.newcomer, step.place)
        body = {"kind": kind, "name": step.newcomer, "cgroup": groups.path(step.newcomer)}
        client.send("POST", "workloads", body)


def _ask(client: Client, chance: random.Random) -> None:
    """Send requests like those of operators and monitoring, including invalid and aborted ones."""
    with contextlib.suppress(Refused, http.client.HTTPException):
        match chance.randrange(6):
            case 0:
                client.get("status")
            case 1:
                client.get("models")
            case 2:
                client.get("explain", workload="no-such-workload")
            case 3:
                client.send("POST", "query", {"sql": "SELECT count(*) FROM decisions"})
            case 4:
                next(client.events())
            case _:
                client.get("workloads")


def _blocks(state: Path) -> Path:
    """The file for the daemon's number of blocks, outside the measured state directory."""
    return state.parent / "blocks"


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
