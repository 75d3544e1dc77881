"""What a scene measured, and whether it is true."""

from __future__ import annotations

import json
from collections.abc import Iterable
from statistics import fmean
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]

TRUE_WITHIN: Final = 0.03
"""MIPS of an arrangement against the truth: what the mean of its samples may differ by."""
SAMPLE_WITHIN: Final = 0.08
"""The same of one sample: the truth is read a moment apart, and the kernel accounts usage by ticks of 4 ms."""


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


def check_true(rows: list[Row], within: float = SAMPLE_WITHIN) -> None:
    """Assert that whatever is not flagged is true: each sample nearly, and the mean of every arrangement closely."""
    arrangements = {(row["label"], row["workload"]) for row in rows}
    assert arrangements
    for label, workload in sorted(arrangements):
        claimed = [row for row in known(of(rows, label, workload)) if row["label"] == label]
        for row in claimed:
            assert abs(row["mips"] - row["truth"]) <= within * row["truth"], row
        if claimed:
            mips, truth = fmean(row["mips"] for row in claimed), fmean(row["truth"] for row in claimed)
            assert abs(mips - truth) <= TRUE_WITHIN * truth, (label, workload, mips, truth)
            print(f"{label} {workload}: {mips:.1f} MIPS of {truth:.1f} in {len(claimed)} samples")
        flagged = [row for row in of(rows, label, workload) if row["quality"] and row["label"] == label]
        if flagged:
            print(f"{label} {workload}: {len(flagged)} samples flagged")
