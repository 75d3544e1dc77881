"""A virtual machine by hand: python -m tools.vm build | boot | run COMMAND... | put FILE FOLDER | reset | stop.

``boot`` prints the value of PERPHD_VM for the tests in tests/vm.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from tools.vm.image import image
from tools.vm.machine import Machine
from tools.vm.making import SUITES, VmError


def main() -> int:
    """Run one command. Exit status 1: it failed; the reason is on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tools.vm", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default=SUITES[0])
    parser.add_argument("--out", type=Path, default=Path("out/vm"), help="folder of images and machines")
    parser.add_argument("do", choices=("build", "boot", "run", "put", "reset", "stop"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        built = image(options.suite, options.out.resolve())
        machine = Machine(built, options.out.resolve() / f"run-{options.suite}")
        match options.do:
            case "boot":
                print(f"answers after {machine.boot():.0f} s, process {machine.pid}")
                print(f"export PERPHD_VM={shlex.quote(shlex.join(machine.ssh))}")
            case "run":
                return subprocess.run(["ssh", *machine.ssh, " ".join(options.words)], check=False).returncode
            case "put":
                machine.put(Path(options.words[0]), options.words[1])
            case "reset":
                machine.reset()
            case "stop":
                machine.stop()
    except VmError as exc:
        print(f"tools.vm: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
