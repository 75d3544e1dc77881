"""A machine with a PMU by hand: python -m tools.pmu build | boot | run COMMAND... | stop."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.pmu.image import ROOT, pmu_image
from tools.pmu.machine import PmuMachine
from tools.vm.making import SUITES, VmError


def main() -> int:
    """Run one command. Exit status 1: it failed; the reason is on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tools.pmu", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default=SUITES[0])
    parser.add_argument(
        "--out", type=Path, default=Path("out/pmu"), help="folder of images and machines"
    )
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("do", choices=("build", "boot", "run", "stop"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        image = pmu_image(options.suite, options.out.resolve())
        machine = PmuMachine(image, options.out.resolve() / f"run-{options.suite}", options.cpus)
        match options.do:
            case "boot":
                print(f"answers after {machine.boot(ROOT):.0f} s, process {machine.pid}")
            case "run":
                print(machine.run(" ".join(options.words)), end="")
            case "stop":
                machine.stop()
    except VmError as exc:
        print(f"tools.pmu: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
