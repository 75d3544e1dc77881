"""``python -m tools.calibrate DATA [programs|services|paper ...]``: fit, show the errors, and with --write keep the
result.

DATA is the folder with pbbcache/ and clite_hpca20/. Programs take seconds, services and the paper's ratios minutes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

from perphd.sim.node.archetypes import FOLDERS
from tools.calibrate import clite, paper, programs

_PROGRAM_FIELDS = ("cpi", "miss_cycles", "mpki_floor", "mpki_swing", "mpki_scale_bytes", "refs_pki")
_IN_REQUESTS = (
    "wait_ms",
    "spread",
    "bursts",
    "queue_limit",
    "serial_ms",
    "mix_cost",
    "mix_relief",
    "switch_cost",
)
_HEAD = """\
# Cache behaviour of 55 measured programs (SPEC CPU2000 and CPU2006), fitted by tools/calibrate to IPC and misses at
# 1..11 ways of 2.5 MB. Source: the pbbcache simulator's measurements (github.com/pbbcache/cachesim, commit 666c8ae7).
# error_pct: median relative error of IPC over all ways; held_out_error_pct: at 4, 6, 8 and 10 ways, by a fit without
# them. The fields are those of perphd.sim.node.workload.Code.

way_bytes = 2621440
"""


def fit_programs(data: Path, *, write: bool) -> None:
    """Fit all programs into profiles/programs/spec.toml."""
    fitted = [programs.fit(one) for one in programs.read(data / "pbbcache/metrics.csv")]
    for what in ("error_pct", "held_out_error_pct"):
        values = np.array([getattr(one, what) for one in fitted])
        print(
            f"{len(fitted)} programs, {what}: median {np.median(values):.2f}, p90 {np.quantile(values, 0.9):.2f}"
        )
    text = _HEAD
    for one in fitted:
        text += f"\n[{one.name}]\n"
        text += "".join(f"{name} = {getattr(one.code, name)}\n" for name in _PROGRAM_FIELDS)
        text += f"error_pct = {one.error_pct:.2f}\nheld_out_error_pct = {one.held_out_error_pct:.2f}\n"
    if write:
        folder = FOLDERS[0] / "programs"
        folder.mkdir(exist_ok=True)
        (folder / "spec.toml").write_text(text)


def fit_services(data: Path, *, write: bool) -> None:
    """Fit services to CLITE's figures."""
    curves, regions = clite.read_curves(data), clite.read_regions(data)
    for app in clite.PLANS:
        found = clite.fit(app, curves[app], regions.get(app))
        print(found)
        if write:
            keep(app, {"threads": found.threads, **found.parameters})


def fit_paper(*, write: bool) -> None:
    """Fit the paper's applications to its ratios."""
    for name, targets in paper.TARGETS.items():
        values, got = paper.fit(name)
        print(name, values, {key: (round(got[key], 3), round(wanted, 3)) for key, wanted in targets.items()})
        if write:
            keep(name, values)


def keep(name: str, values: dict[str, float]) -> None:
    """Write parameters into an archetype's file; the rest of the file stays unchanged."""
    path = FOLDERS[0] / f"{name}.toml"
    text = path.read_text()
    for key, value in values.items():
        line = f"{key} = {value:g}"
        text, count = re.subn(rf"(?m)^{key} = .*$", line, text)
        if not count:
            table = "[requests]" if key in _IN_REQUESTS else "[code]"
            text = text.replace(f"{table}\n", f"{table}\n{line}\n", 1)
    path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.calibrate", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with pbbcache/ and clite_hpca20/")
    parser.add_argument("what", nargs="*", default=["programs", "services", "paper"])
    parser.add_argument("--write", action="store_true", help="write the result to profiles/")
    args = parser.parse_args()
    for what in args.what:
        if what == "programs":
            fit_programs(args.data, write=args.write)
        elif what == "services":
            fit_services(args.data, write=args.write)
        elif what == "paper":
            fit_paper(write=args.write)
        else:
            parser.error(f"{what} is not a part (allowed: programs, services, paper)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
