"""Type docs/tutorial.md as printed, at native speed: python -m tools.vm.tutorial [DEB]. Needs root.

The first two sections: from nothing to a MariaDB that perphd protects (in observe). Prints the time of each command,
and the time from the end of the last one until the daemon measures MariaDB, by a correct configuration and without a
problem. ``--whole`` types the rest, too, which keeps every CPU busy for a while. Exit status 1: something of that did
not work.

It happens in a container (tools/vm/container.py) with systemd as PID 1 and without a network. The packages lie in its
apt cache beforehand: the time to download them is not included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from tools.vm.container import Container, root_with
from tools.vm.making import SUITES, VmError

ROOT = Path(__file__).parents[2]
CONFIG = "/etc/perphd/conf.d/50-init.toml"
PROTECTED_S = 60.0
TICKS = 3
THREE, SECTIONS = 2, 6
"""The section with the three commands, and the last one."""


def commands(section: int, page: str | None = None) -> list[str]:
    """The commands of one section of the tutorial, each with its here-document."""
    body = re.split(r"(?m)^## ", (ROOT / "docs/tutorial.md").read_text() if page is None else page)[section]
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```$", body)
    whole = re.compile(r"(?ms)^(?:[^\n]*<<'END'\n.*?^END$|[^\n]+)")
    return [command for block in blocks for command in whole.findall(block)]


class _Operator:
    """Types commands in the container and notes how long each takes."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self.took: list[tuple[float, str]] = []

    def types(self, command: str) -> str:
        """Output of the command.

        Raises:
            VmError: it failed.
        """
        began_s = time.monotonic()
        done = self._container.run(f"export DEBIAN_FRONTEND=noninteractive\n{command}")
        took_s = time.monotonic() - began_s
        self.took.append((took_s, command))
        print(f"{took_s:7.1f} s  $ {command.splitlines()[0]}", flush=True)
        if done.returncode:
            raise VmError(
                f"{command}\nended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout

    def sees(self, command: str) -> str:
        """Output of a command that is no part of the tutorial; empty if it failed."""
        done = self._container.run(command)
        return done.stdout if done.returncode == 0 else ""

    def waits_for_protection(self) -> float:
        """Until the daemon measures MariaDB; returns the seconds taken.

        Raises:
            VmError: it does not, or there is a problem.
        """
        began_s = time.monotonic()
        said = "no answer"
        while time.monotonic() - began_s < PROTECTED_S:
            said = _lacking(json.loads(self.sees("perphctl --json status") or "{}"))
            if not said:
                return time.monotonic() - began_s
            time.sleep(0.2)
        raise VmError(
            f"MariaDB is not protected after {PROTECTED_S:.0f} s: {said}\n{self.sees('perphctl status')}"
        )


def _lacking(status: dict[str, Any]) -> str:
    """Why this status shows no protected MariaDB; empty if it does."""
    if not status:
        return "the daemon does not answer"
    found = {each["spec"]["name"]: each for each in status["workloads"]}
    mariadb = found.get("mariadb")
    if mariadb is None:
        return f"there is no LRA mariadb, but {', '.join(found) or 'nothing'}"
    if not mariadb["present"] or mariadb["sample"] is None or status["tick"] < TICKS:
        return "the daemon does not measure it"
    if mariadb["spec"]["cgroup"] != "/system.slice/mariadb.service":
        return f"its group is {mariadb['spec']['cgroup']}"
    if status["mode"] != "observe":
        return f"the mode is {status['mode']}"
    return "; ".join(status["problems"])


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tools.vm.tutorial", description=__doc__)
    parser.add_argument("deb", type=Path, nargs="?", help="the package; by default the newest in out/deb")
    parser.add_argument("--suite", choices=SUITES, default=SUITES[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out/vm", help="folder of the root file system and the container"
    )
    parser.add_argument("--whole", action="store_true", help="type sections 3 to 6, too")
    options = parser.parse_args()
    try:
        _run(options.deb or _newest(options.suite), options.suite, options.out.resolve(), options.whole)
    except VmError as exc:
        print(f"tools.vm.tutorial: {exc}", file=sys.stderr)
        return 1
    return 0


def _newest(suite: str) -> Path:
    folders = (ROOT / "out/deb" / suite, ROOT / "out/deb")
    debs = next((found for folder in folders if (found := list(folder.glob("perphd_*.deb")))), [])
    if not debs:
        raise VmError(f"no package: make deb SUITE={suite}")
    return max(debs, key=lambda path: path.stat().st_mtime)


def _run(deb: Path, suite: str, out: Path, whole: bool) -> None:
    root = root_with(suite, out, deb, ["mariadb-server"])
    container = Container(root, out / f"tutorial-{suite}")
    booted_s = container.boot()
    try:
        print(
            f"{suite}, systemd as PID 1, control groups {container.layout}, {os.cpu_count()} CPUs; "
            f"up after {booted_s:.1f} s"
        )
        container.put(deb, "/root")
        operator = _Operator(container)
        for command in commands(1):
            operator.types(command)
        began_s = time.monotonic()
        for command in commands(THREE):
            operator.types(command)
        typed_s = time.monotonic() - began_s
        waited_s = operator.waits_for_protection()
        print(
            f"{len(commands(THREE))} commands in {typed_s:.1f} s; {waited_s:.1f} s later MariaDB is measured by a "
            "correct configuration, without a problem"
        )
        print(operator.sees(f"cat {CONFIG}; perphctl status"))
        for section in range(THREE + 1, SECTIONS + 1) if whole else ():
            for command in commands(section):
                said = operator.types(command)
                if re.search("perphctl (status|explain)", command):
                    print(said)
    finally:
        container.stop()


if __name__ == "__main__":
    sys.exit(main())
