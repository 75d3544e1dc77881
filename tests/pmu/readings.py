"""What a scene measured, and whether it is true."""

from __future__ import annotations

import json
from collections.abc import Iterable
from statistics import fmean
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]

TRUE_WITHIN: Final = 0.03
"""What MIPS may differ by from the truth, which lies between ``least`` and ``most``."""
MOST_DOUBT: Final = 0.1
"""Mean of (most - least) / most over a scene: above that the machine is too disturbed to tell anything."""


def rows_of(output: str) -> list[Row]:
    """The samples that a scene printed."""
    rows: list[Row] = json.loads(output.strip().splitlines()[-1])
    return rows


def of(rows: Iterable[Row], label: str, workload: str = "") -> list[Row]:
    """Samples of one arrangement (the beginning of its label) and one workload."""
    return [row for row in rows if row["label"].startswith(label) and workload in ("", row["workload"])]


def known(rows: Iterable[Row]) -> list[Row]:
    """Samples that claim a figure and carry no flag."""
    return [row for row in rows if not row["quality"] and isinstance(row["mips"], float | int)]


def check_true(rows: list[Row]) -> None:
    """Assert that whatever is not flagged is true: every sample, and the mean of every arrangement."""
    arrangements = sorted({(row["label"], row["workload"]) for row in rows})
    assert arrangements
    disturbed = fmean((row["most"] - row["least"]) / row["most"] for row in rows if row["most"] > 0)
    assert disturbed <= MOST_DOUBT, f"least and most differ by {disturbed:.0%}: this host is too busy"
    for label, workload in arrangements:
        mine = [row for row in of(rows, label, workload) if row["label"] == label]
        claimed = known(mine)
        for row in claimed:
            assert (1 - TRUE_WITHIN) * row["least"] <= row["mips"] <= (1 + TRUE_WITHIN) * row["most"], row
        print(f"{label}, {workload}: {len(mine) - len(claimed)} of {len(mine)} flagged or missing", end="")
        if claimed:
            mips, least, most = (fmean(row[name] for row in claimed) for name in ("mips", "least", "most"))
            truth = (least + most) / 2
            # Readings in between cancel out: what remains of the doubt is that of the first and the last.
            doubt = (most - least) / (2 * len(claimed))
            assert abs(mips - truth) <= TRUE_WITHIN * truth + doubt, (label, workload, mips, truth, doubt)
            apart = f" ({mips / truth - 1:+.1%})" if truth else ""
            print(f"; {mips:.1f} MIPS, true {truth:.1f} +- {doubt:.1f}{apart}", end="")
        print()


def check_mean(rows: list[Row]) -> None:
    """Assert that the mean is true: for samples of which the store keeps no truth beside them."""
    claimed = [row for row in known(rows) if row["most"]]
    mips, truth = fmean(row["mips"] for row in claimed), fmean(row["most"] for row in claimed)
    assert abs(mips - truth) <= TRUE_WITHIN * truth, (mips, truth)
    print(f"{len(claimed)} samples: {mips:.1f} MIPS, true {truth:.1f}")
