"""``python -m tools.bench.weeks``: coverage of the reports' bands over weeks, each in observe and in enforce.

Every week is a folder in the output, so an interrupted run continues. Prints the calibration
(``perphd.report.calibration``), and the number of weeks that lie within the bands derived from the other weeks.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from perphd.domain.workload import Mode
from perphd.monitor.report_rows import read_history
from perphd.report.calibration import doubt
from perphd.report.summary import Report, summarise
from tools.bench.weeks.fit import Pair, Week, calibrate, coverage
from tools.bench.weeks.world import live

_ALL_S = 1e9


def main(words: Sequence[str] | None = None) -> None:
    """Simulate missing weeks, then calibrate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/weeks"))
    parser.add_argument("--weeks", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(words)
    with ProcessPoolExecutor(given.jobs) as pool:
        weeks = list(pool.map(week, [given.out] * given.weeks, range(given.weeks)))
    found = calibrate(weeks)
    held, held_own = coverage(weeks), [found.holds(one) for one in weeks]
    print(json.dumps(asdict(found), indent=1))
    print(f"{len(weeks)} weeks; all bands of a week hold, calibrated on the others: {sum(held)}")
    print(f"calibrated on all: {sum(held_own)}")


def week(out: Path, seed: int) -> Week:
    """The observed and the enforced run of one week, simulated if missing."""
    observed, enforced = (_report(out, seed, mode) for mode in Mode)
    # Exclude time missed even without batch, which perphd cannot affect, from both sides.
    pairs = tuple(
        Pair(
            was.observed.pct + was.inherent_pct, then.enforced.pct + was.inherent_pct, doubt(was.inherent_pct)
        )
        for was, then in zip(observed.lras, enforced.lras, strict=True)
        if was.observed is not None and then.enforced is not None
    )
    batch = None
    if observed.batch.observed_cores and enforced.batch.enforced_cores is not None:
        touched = observed.batch.touched_pct
        batch = Pair(touched, 100.0 * enforced.batch.enforced_cores / observed.batch.observed_cores)
    return Week(seed, pairs, batch)


def _report(out: Path, seed: int, mode: Mode) -> Report:
    folder = out / f"{seed:04}-{mode}"
    if not (folder / "done").exists():
        logging.disable(logging.CRITICAL)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        live(seed, mode, folder)
        (folder / "done").touch()
    return summarise(read_history(folder / "perphd.db", _ALL_S))


if __name__ == "__main__":
    main()
