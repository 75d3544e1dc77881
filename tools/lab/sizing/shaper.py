"""The resource shaper on random walks: python -m tools.lab.sizing.shaper [--seconds 1800] [--memory 4G] ...

Every arm is a memory group with six walks that together may exceed it, and its own perphd:

- ``observe``: the reservation baseline; the shaper proposes and must write nothing;
- ``k1-100``: optimistic with K1 = 100 %; must write nothing;
- ``optimistic``: sizes follow forecasts, and no plan decides which workload makes room;
- ``pessimistic``: the plan decides before the kernel does.

All arms run at the same time on walks with the same seeds. A walk that ended restarts once the host has room for its
reservation, as a scheduler would do. Short: --seconds 60 --memory 256M --interval 2.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from perphd.domain.units import format_bytes, parse_size_bytes
from tools.lab.processes import LabError
from tools.lab.sizing.arms import Daemon, Tree, save

ARMS: Final = ("observe", "k1-100", "optimistic", "pessimistic")
WALKS: Final = 6
RESERVED_SHARE: Final = 0.3125
"""Reservation of one walk as a share of the group's memory: six of them reserve almost twice its memory."""
LEAST_SHARE: Final = 0.25
"""Lower bound and start of a walk, as a share of its reservation; the upper bound is the reservation."""
STEP_SHARE: Final = 18 / 1280
"""Standard deviation of a walk's step per second, as a share of its reservation."""
WAIT_S: Final = 10.0
DAEMON_BYTES: Final = 100 << 20
"""Memory for each arm's perphd."""
MIB: Final = 1 << 20
WALK: Final = Path(__file__).with_name("walk.py")


@dataclass(slots=True)
class Walk:
    """One walk: its process and its results."""

    name: str
    seed: int
    process: subprocess.Popen[bytes] | None = None
    ended_s: float = -1e9
    starts: int = 0


@dataclass(slots=True)
class Outcome:
    """The results of one arm."""

    arm: str
    oom_kills: int = 0
    ended: int = 0
    frozen_s: float = 0.0
    running_s: float = 0.0
    slack_bytes: list[float] = field(default_factory=list)
    violations: int = 0
    greatest_bytes: int = 0
    crashes_counted: int = 0


class Arm:
    """One arm while it runs."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path) -> None:
        self.name, self._options = name, options
        self.outcome = Outcome(name)
        self.walks = [Walk(f"w{i}", 1000 * options.seed + i) for i in range(WALKS)]
        self.reserved_bytes = int(options.memory * RESERVED_SHARE) // MIB * MIB
        self.tree = Tree(
            f"perphd-lab-{name}-{os.getpid()}", tuple(walk.name for walk in self.walks), options.memory
        )
        self.daemon = Daemon(folder / name, options.period, self._text())
        self._kills = 0

    def _text(self) -> str:
        mode = "optimistic" if self.name == "k1-100" else self.name
        k1_pct = 100 if self.name == "k1-100" else 5
        head = f'[sizing]\nshaper = "{mode}"\n'
        head += f"[tuning.sizing]\ninterval_s = {self._options.interval}\nk1_pct = {k1_pct}\n"
        return head + "".join(
            f'[[batch]]\nname = "{walk.name}"\ncgroup = "{self.tree.top}/{walk.name}"\nshape = "elastic"\n'
            f'reserved_memory = "{self.reserved_bytes // MIB}M"\n'
            for walk in self.walks
        )

    def start(self, walk: Walk) -> None:
        """Run a walk from its beginning."""
        most = self.reserved_bytes / MIB
        numbers = (
            walk.seed + 7919 * walk.starts,
            LEAST_SHARE * most,
            most - 12,
            LEAST_SHARE * most,
            STEP_SHARE * most,
        )
        walk.process = self.tree.start(
            walk.name, [sys.executable, "-S", str(WALK), *(f"{n:.3f}" for n in numbers)]
        )
        walk.starts += 1

    def look(self, now_s: float, passed_s: float) -> None:
        """Process one second's records, and restart walks that fit."""
        view = self.daemon.ask("shaper")
        rows = {row["workload"]: row for row in view["workloads"]} if view is not None else {}
        kills = sum(self.tree.kills(walk.name) for walk in self.walks)
        for walk in self.walks:
            if walk.process is not None and walk.process.poll() is not None:
                walk.process, walk.ended_s = None, now_s
                self.outcome.ended += 1
            if walk.process is None:
                continue
            row = rows.get(walk.name, {})
            frozen = row.get("makes_room_by") == "freeze"
            self.outcome.frozen_s += passed_s if frozen else 0.0
            self.outcome.running_s += 0.0 if frozen else passed_s
            used, target = self.tree.used_bytes(walk.name), row.get("target_bytes")
            if isinstance(target, float | int) and not frozen and used > MIB:
                held = self.reserved_bytes if self.name in ("observe", "k1-100") else target
                self.outcome.slack_bytes.append(held - used)
                self.outcome.violations += used > held
        self.outcome.oom_kills, self._kills = kills, kills
        self.outcome.crashes_counted = sum(row.get("crashes", 0) for row in rows.values())
        self.outcome.greatest_bytes = max(
            self.outcome.greatest_bytes, sum(self.tree.used_bytes(walk.name) for walk in self.walks)
        )
        self._start_again(view, now_s)

    def _start_again(self, view: Any, now_s: float) -> None:
        waiting = [walk for walk in self.walks if walk.process is None and now_s - walk.ended_s >= WAIT_S]
        if not waiting or view is None:
            return
        running = sum(walk.process is not None for walk in self.walks)
        room = view["reclaimable_bytes"]
        if self.name in ("observe", "k1-100"):
            room = self._options.memory - running * self.reserved_bytes
        if isinstance(room, float | int) and room >= self.reserved_bytes:
            self.start(min(waiting, key=lambda walk: walk.ended_s))

    def result(self) -> dict[str, Any]:
        """The outcome as numbers."""
        found = self.outcome
        slack = found.slack_bytes
        return {
            "arm": found.arm,
            "oom_kills": found.oom_kills,
            "ended_by_perphd": found.ended - found.oom_kills,
            "crashes_counted": found.crashes_counted,
            "mean_slack_mib": statistics.fmean(slack) / MIB if slack else None,
            "samples": len(slack),
            "above_target": found.violations,
            "walks_running": found.running_s / self._options.seconds,
            "frozen_s": found.frozen_s,
            "greatest_mib": found.greatest_bytes / MIB,
        }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All arms, at the same time.

    Raises:
        LabError: the host has too little memory for all groups, so that the host's shortage would be measured instead.
    """
    wanted, left = len(options.arms) * (options.memory + DAEMON_BYTES), psutil.virtual_memory().available
    if left < wanted:
        raise LabError(
            f"{len(options.arms)} groups need {format_bytes(wanted)} of memory, and {format_bytes(left)} is available "
            "(allowed: a smaller --memory, or fewer --arms)"
        )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perphd-lab-", dir="/var/tmp")))
        arms = [Arm(name, options, folder) for name in options.arms]
        for arm in arms:
            stack.enter_context(arm.tree)
            stack.callback(arm.daemon.stop)
        before = {arm.name: arm.tree.settable() for arm in arms}
        for arm in arms:
            arm.daemon.start()
        for arm in arms:
            for walk in arm.walks:
                arm.start(walk)
        began_s = last_s = told_s = time.monotonic()
        while (now_s := time.monotonic()) - began_s < options.seconds:
            for arm in arms:
                arm.look(now_s, now_s - last_s)
            last_s = now_s
            if now_s - told_s >= 60.0:
                told_s = now_s
                print(
                    f"{now_s - began_s:5.0f} s",
                    *(_line(arm.result()) for arm in arms),
                    sep="\n  ",
                    flush=True,
                )
            time.sleep(max(0.0, 1.0 - (time.monotonic() - now_s)))
        results = [_closed(arm, before[arm.name], options) for arm in arms]
    return {
        "kernel": os.uname().release,
        "cgroup_version": arms[0].tree.memory.version,
        "memory_bytes": options.memory,
        "seconds": options.seconds,
        "interval_s": options.interval,
        "seed": options.seed,
        "arms": results,
    }


def _closed(arm: Arm, before: dict[str, bytes], options: argparse.Namespace) -> dict[str, Any]:
    """The arm's result, with its daemon's writes and whether everything was restored after a kill -9."""
    result = arm.result()
    during = arm.tree.settable()
    result["files_that_differ"] = sum(during[path] != text for path, text in before.items() if path in during)
    result["writes"] = dict(arm.daemon.writes())
    result["daemon_cpu_pct"] = 100.0 * arm.daemon.cpu_s() / options.seconds
    result["daemon_rss_mib"] = arm.daemon.rss_bytes() / MIB
    arm.daemon.kill()
    result["restore"] = arm.daemon.restore().strip().splitlines()[-1:]
    after = arm.tree.settable()
    result["restored"] = all(after.get(path) == text for path, text in before.items())
    return result


def _line(result: dict[str, Any]) -> str:
    slack = result["mean_slack_mib"]
    return (
        f"{result['arm']:<12} OOM kills {result['oom_kills']:>2}  ended {result['ended_by_perphd']:>3}  "
        f"slack {'-' if slack is None else f'{slack:.0f} MiB':>9}  running {result['walks_running']:.2f}  "
        f"greatest {result['greatest_mib']:.0f} MiB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Exit status 1: it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tools.lab.sizing.shaper", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument(
        "--memory", type=parse_size_bytes, default=parse_size_bytes("4G"), help="of each arm's group"
    )
    parser.add_argument("--interval", type=float, default=10.0, help="of the shaper, in seconds")
    parser.add_argument("--period", type=float, default=1.0, help="of the daemon, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS), help=",".join(ARMS))
    parser.add_argument("--out", type=Path, default=Path("out/lab/shaper.json"))
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # files and groups are removed on exit
    try:
        found = run(options)
    except LabError as exc:
        print(f"shaper: {exc}", file=sys.stderr)
        return 1
    save(options.out, found)
    head = f"{format_bytes(options.memory)} and {WALKS} walks an arm, {options.seconds:.0f} s"
    print(f"{head}, cgroup v{found['cgroup_version']}")
    for result in found["arms"]:
        print(
            f"  {_line(result)}  files that differ {result['files_that_differ']}, writes {result['writes']}"
        )
        print(
            f"    restored after kill -9: {result['restored']}; daemon {result['daemon_cpu_pct']:.1f} % CPU"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
