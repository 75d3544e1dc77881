"""Occupancy and bandwidth in perphd's samples against the kernel's counters, read beside it over the same seconds."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest

from tests.rdt.bed import APP, HOG, RESCTRL, Bed

pytestmark = pytest.mark.requires_vm
WATCHED_S = 30.0
CLOSE = 0.1
Row = tuple[float, int, int]


def test_samples_say_what_the_kernel_counts(bed: Bed) -> None:
    bed.vm.sh(f"mountpoint -q {RESCTRL} || mount -t resctrl resctrl {RESCTRL}")
    bed.set_up([APP, HOG])
    bed.start()
    bed.batch("hog")
    bed.wait_until(bed.is_narrowed, "batch was not narrowed")
    bed.wait_for_protection("before anything is measured")
    folders = {name: bed.counters_of(name) for name in ("app", "hog")}
    named = " ".join(f"{name}={RESCTRL}/{folder}" for name, folder in folders.items())
    told = json.loads(bed.vm.sh(f"python3 /opt/rdt/watch.py {WATCHED_S} {named}"))
    for name in folders:
        kernel = [(at_s, held, moved) for at_s, who, held, moved in told if who == name]
        samples = bed.samples(name, kernel[0][0], kernel[-1][0])
        assert len(samples) >= 5, f"{name}: {len(samples)} samples within {WATCHED_S} s"
        moved = [moved_between(kernel, one["at_s"] - one["interval_s"], one["at_s"]) for one in samples]
        said = [one["mbw_bytes_per_s"] * one["interval_s"] for one in samples]
        assert sum(said) == pytest.approx(sum(moved), rel=CLOSE), f"{name}: bandwidth"
        held = statistics.median(occupied for _, occupied, _ in kernel)
        shown = statistics.median(one["llc_occupancy_bytes"] for one in samples)
        assert shown == pytest.approx(held, rel=CLOSE), f"{name}: occupancy"
        print(
            f"{name}: {sum(said) / sum(moved):.3f} of the kernel's bytes, {shown / held:.3f} of its occupancy"
        )


def moved_between(rows: list[Row], from_s: float, to_s: float) -> float:
    return at(rows, to_s) - at(rows, from_s)


def at(rows: list[Row], when_s: float) -> float:
    """The bytes counted at this moment, between the two readings around it."""
    for (early_s, _, few), (late_s, _, many) in itertools.pairwise(rows):
        if early_s <= when_s <= late_s:
            return few + (many - few) * (when_s - early_s) / (late_s - early_s)
    raise AssertionError(f"nothing was read around {when_s}")
