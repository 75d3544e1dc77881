"""Memory fits of real processes: python -m tools.lab.sizing.memfit [--cases file,hog,anon,java] [--hot 320M] ...

Needs root and the memory controller on cgroup v2. Every case is a process with a known hot set in a group of its own,
and a perphd that searches its limit:

- ``file``: pages of a file, which the kernel drops and reads again;
- ``hog``: the same, and for a minute after the pilot a busy process on each CPU;
- ``anon``: anonymous memory; with swap it is a search like the others, without swap it ends at the present use;
- ``java``: a JVM that uses all of a heap of a fixed size (--java names the program, --classes holds Hold.class).

The process uses twice its hot set at first. The result must lie within [W, 1.15 W], and memory pressure must be near
zero once the result is in force. A JVM needs memory outside its heap as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from perphd.domain.units import format_bytes, parse_size_bytes
from tools.lab.processes import LabError
from tools.lab.sizing.arms import Daemon, Tree, save

CASES: Final = ("file", "hog", "anon", "java")
AFTER_S: Final = 20.0
PATIENCE_S: Final = 3600.0
SETTLED_S: Final = 240.0
HOG_S: Final = 60.0
TOUCHED_S: Final = 30.0
MIB: Final = 1 << 20
_CONFIG: Final = """
[[lra]]
name = "hot"
cgroup = "{top}/hot"
shape = "elastic"
[lra.sli]
source = "file"
path = "{counter}"
"""
_YOUNG_MIB: Final = 32
"""A small young generation, because the second survivor space of a large one is hardly ever touched."""
_SPIN: Final = "while True: pass"


def run_case(case: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One search, from the start of the process to 20 s with its result in force."""
    counter = folder / "work"
    counter.write_text("work_total = 0\n")
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(Tree(f"perphd-lab-fit-{case}-{os.getpid()}", ("hot", "hog"), None))
        daemon = Daemon(folder / "state", options.period, _CONFIG.format(top=tree.top, counter=counter))
        stack.callback(daemon.stop)
        process = tree.start("hot", _command(case, options, counter, folder))
        _wait(counter, process)
        touched = _touched_bytes(process.pid) if case == "java" else None
        before = tree.settable()
        daemon.start()
        time.sleep(3 * options.period)
        daemon.client.send("PUT", "memfit/hot", {"samples": options.samples})
        steps = _search(case, daemon, tree)
        last = steps[-1]
        lifted = _pressure(tree)
        daemon.client.send("POST", "memfit/hot/apply", {})
        time.sleep(5 * options.period)
        began = _pressure(tree)
        time.sleep(AFTER_S)
        full_pct = 100.0 * (_pressure(tree) - began) / AFTER_S
        limit = _read(tree, "memory.high")
        daemon.kill()
        daemon.restore()
        after = tree.settable()
        process.kill()
    hot = options.heap if case == "java" else options.hot
    return {
        "case": case,
        "hot_bytes": hot,
        "touched_bytes": touched,
        "recommended_bytes": last["recommended_bytes"],
        "ratio": last["recommended_bytes"] / hot,
        "crashes": last["crashes"],
        "epochs": last["epochs"],
        "witness": last["witness"],
        "reason": last["reason"],
        "seconds": steps[-1]["at_s"],
        "full_pressure_pct_after": full_pct,
        "full_pressure_s_of_search": lifted,
        "memory_high_applied": limit,
        "restored": all(after.get(path) == text for path, text in before.items()),
        "steps": steps,
    }


def _command(case: str, options: argparse.Namespace, counter: Path, folder: Path) -> list[str]:
    if case == "java":
        heap = f"{options.heap // MIB}m"
        live = str(int(options.heap // MIB * 0.6))
        memory = [
            f"-Xms{heap}",
            f"-Xmx{heap}",
            f"-Xmn{_YOUNG_MIB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
        ]
        return [options.java, *memory, "-cp", str(options.classes), "Hold", live, str(counter)]
    kind = "anon" if case == "anon" else "file"
    program = str(Path(__file__).with_name("hot.py"))
    return [sys.executable, "-S", program, str(options.hot // MIB), kind, str(counter), str(folder / "data")]


def _touched_bytes(pid: int) -> int:
    """Memory that a process touches within ``TOUCHED_S``: its hot set, if it does not report one."""
    Path(f"/proc/{pid}/clear_refs").write_text("1\n")
    time.sleep(TOUCHED_S)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Referenced:"):
            return int(line.split()[1]) << 10
    raise LabError("the kernel does not report which pages are in use (CONFIG_PROC_PAGE_MONITOR)")


def _wait(counter: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process works."""
    deadline = time.monotonic() + SETTLED_S
    while int(counter.read_text().split()[-1]) < 100:
        if process.poll() is not None or time.monotonic() > deadline:
            raise LabError("the process with the hot set makes no progress")
        time.sleep(0.2)


def _search(case: str, daemon: Daemon, tree: Tree) -> list[dict[str, Any]]:
    """Every change of the search, until it has converged."""
    steps: list[dict[str, Any]] = []
    hogs: list[subprocess.Popen[bytes]] = []
    began_s, hogs_began_s = time.monotonic(), None
    try:
        while time.monotonic() - began_s < PATIENCE_S:
            answer = daemon.ask("memfit")
            now = dict(answer["searches"][0]) if answer is not None and answer["searches"] else {}
            changed = not steps or any(
                now.get(key) != steps[-1].get(key) for key in ("phase", "epochs", "limit_bytes", "reason")
            )
            if now and changed and "the epoch continues" not in now["reason"]:
                now["at_s"] = time.monotonic() - began_s
                steps.append(now)
                limit, use = now["limit_bytes"] or 0, tree.used_bytes("hot")
                line = f"limit {limit / MIB:6.0f} MiB, use {use / MIB:6.0f} MiB: {now['reason']}"
                print(f"{case} {now['at_s']:6.0f} s  {now['phase']:<9} {line}", flush=True)
            if now.get("phase") == "converged":
                return steps
            if case == "hog" and now.get("phase") == "search" and hogs_began_s is None:
                hogs_began_s = time.monotonic()
                hogs = [
                    tree.start("hog", [sys.executable, "-S", "-c", _SPIN]) for _ in range(os.cpu_count() or 1)
                ]
            if hogs and hogs_began_s is not None and time.monotonic() - hogs_began_s > HOG_S:
                _end(hogs)
            time.sleep(0.3)
    finally:
        _end(hogs)
    raise LabError(f"{case}: the search has not converged after {PATIENCE_S:.0f} s")


def _end(hogs: list[subprocess.Popen[bytes]]) -> None:
    while hogs:
        hog = hogs.pop()
        hog.kill()
        hog.wait()


def _pressure(tree: Tree) -> float:
    """Seconds so far in which all tasks of the group waited for memory."""
    text = _read(tree, "memory.pressure")
    return int(text.splitlines()[1].rpartition("total=")[2]) / 1e6


def _read(tree: Tree, file: str) -> str:
    return Path(tree.memory.path(f"{tree.top}/hot", file)).read_text().strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Exit status 1: it cannot run here, or a result is out of bounds."""
    parser = argparse.ArgumentParser(prog="python -m tools.lab.sizing.memfit", description=__doc__)
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), default=["file", "hog"], help=",".join(CASES)
    )
    parser.add_argument("--hot", type=parse_size_bytes, default=parse_size_bytes("320M"))
    parser.add_argument("--heap", type=parse_size_bytes, default=parse_size_bytes("512M"))
    parser.add_argument("--samples", type=int, default=60, help="of one epoch")
    parser.add_argument("--period", type=float, default=0.5, help="of the daemon, in seconds")
    parser.add_argument("--java", default="java")
    parser.add_argument("--classes", type=Path, default=Path("out/lab/classes"))
    parser.add_argument("--out", type=Path, default=Path("out/lab/memfit.json"))
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # files and groups are removed on exit
    found = []
    try:
        for case in options.cases:
            with tempfile.TemporaryDirectory(prefix="perphd-lab-", dir="/var/tmp") as folder:
                found.append(run_case(case, options, Path(folder)))
            save(options.out, found)
    except LabError as exc:
        print(f"memfit: {exc}", file=sys.stderr)
        return 1
    for each in found:
        print(
            f"{each['case']:<5} hot {format_bytes(each['hot_bytes'])}, found {format_bytes(each['recommended_bytes'])} "
            f"({each['ratio']:.3f}), {each['crashes']} crash-zone epochs of {each['epochs']}, "
            f"full pressure after {each['full_pressure_pct_after']:.2f} %, restored {each['restored']}"
        )
    good = all(
        1.0 <= each["ratio"] <= 1.15 and each["crashes"] <= 1 and each["full_pressure_pct_after"] < 1.0
        for each in found
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
