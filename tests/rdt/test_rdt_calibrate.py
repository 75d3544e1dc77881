"""``perphctl calibrate`` for real: it asks, is bounded, refuses on a busy host, leaves nothing, and its result is used.

How much each level delivers is not held against it: streams of emulated processors are not slowed by the throttle, and
share the processors of whoever emulates them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rdt.bed import APP, HOG, RESCTRL, Bed

pytestmark = pytest.mark.requires_vm
SAVED = "/var/lib/perphd/mba-calibration.json"
TRIES = 8
DISTURBED = (
    "another program uses the memory",
    "the host is busy",
    "some streams did not start within",
    "twice as long as planned",
    "it ended",
)
"""Neither idle processors nor a steady host can be had at every moment."""
FEWEST = "--cores 1"
"""One stream at a time."""


@pytest.fixture
def idle(bed: Bed) -> Iterator[Bed]:
    """resctrl is mounted, the application and perphd are there, and neither has anything to do."""
    bed.mount_if_needed()
    bed.set_up([APP, HOG])
    bed.vm.sh(f"systemctl stop app; rm -f {SAVED}")
    yield bed
    bed.vm.sh(f"rm -f {SAVED}")


def nothing_left(bed: Bed) -> bool:
    streams = bed.vm.sh("pgrep -f '[r]dt\\.probe' || true")
    return not streams and not [name for name in bed.groups() if name.startswith("rdtcal")]


def saved(bed: Bed) -> bool:
    return bed.vm.try_(f"test -e {SAVED}").returncode == 0


def calibrated(bed: Bed) -> dict[str, Any]:
    """What ``calibrate`` answers, tried again while others use the host that emulates the machine."""
    said = ""
    for _ in range(TRIES):
        done = bed.vm.try_(f"perphctl calibrate --yes --json {FEWEST}", 300.0)
        assert nothing_left(bed), done.stderr
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
        said += done.stderr
        assert not saved(bed), "a measurement that failed was saved"
        assert any(why in done.stderr for why in DISTURBED), done.stderr
    raise AssertionError(said)


def test_it_refuses_while_perphd_enforces_or_the_host_is_busy(idle: Bed) -> None:
    bed = idle
    bed.vm.sh("systemctl start perphd app", 1200.0)
    refused = bed.vm.try_("perphctl calibrate --yes")
    assert refused.returncode != 0
    assert "perphd enforces" in refused.stderr
    bed.vm.sh("perphctl mode observe && systemctl start hog")
    busy = bed.vm.try_("perphctl calibrate --yes")
    assert busy.returncode != 0
    assert "the host is busy" in busy.stderr
    bed.vm.sh("systemctl stop hog app perphd", 1200.0)
    assert nothing_left(bed)
    assert not saved(bed)


def test_it_says_what_it_would_do_asks_and_keeps_to_its_limit(idle: Bed) -> None:
    bed = idle
    told = bed.vm.sh(f"perphctl calibrate --dry-run {FEWEST}")
    assert "10 levels, 2 curves" in told
    assert "domain 1: streams on CPUs" in told
    no = bed.vm.try_(f"echo n | perphctl calibrate {FEWEST}")
    assert no.returncode != 0
    assert "Calibrate now?" in no.stdout + no.stderr
    long = bed.vm.try_(f"perphctl calibrate --yes --limit 5 {FEWEST}")
    assert long.returncode != 0
    assert "(limit 5 s)" in long.stderr
    assert nothing_left(bed)
    assert not saved(bed)


def test_a_calibration_that_is_ended_leaves_nothing(idle: Bed) -> None:
    bed = idle
    for signal in ("TERM", "INT"):
        begun = f"systemd-run -q --collect --unit=calibrating -p KillMode=process perphctl calibrate --yes {FEWEST}"
        streaming = f"grep -q . {RESCTRL}/rdtcal.probe/tasks 2>/dev/null"
        # Refused while a processor is busy, with whatever asks here, too: begun again.
        again = f"{streaming} || {{ systemctl -q is-active calibrating || {begun}; false; }}"
        bed.vm.wait_until(again, "no stream ran in the group", pause_s=4.0)
        bed.vm.sh(f"systemctl kill --kill-whom=main --signal={signal} calibrating")
        bed.vm.wait_until("! systemctl -q is-active calibrating", "it did not end", 60.0)
        assert nothing_left(bed), signal
        assert not saved(bed)


def test_a_daemon_that_runs_uses_what_it_learned(idle: Bed) -> None:
    bed = idle
    answer = calibrated(bed)
    useful = {100}
    for curve in answer["curves"]:
        found = {point["level"]: point["bytes_per_s"] for point in curve["points"]}
        assert set(found) == set(range(10, 101, 10))
        assert min(found.values()) > 0
        useful |= set(curve["useful_levels"])
        print(
            f"domain {curve['domain']}, by {curve['measured_by']}: {curve['useful_levels']} make a difference"
        )
    bed.vm.sh(f"mv {SAVED} /root/ && systemctl start app")
    bed.start()
    assert "never calibrated" in bed.doctor()["resctrl.mba_calibration"][1]
    bed.vm.sh(f"mv /root/{SAVED.rsplit('/', 1)[1]} {SAVED}")
    bed.wait_until(
        lambda: bed.doctor()["resctrl.mba_calibration"][0], "a running daemon does not use the calibration"
    )
    told = bed.doctor()["resctrl.mba_calibration"][1]
    assert told.endswith(f"2 curves; levels {' '.join(map(str, sorted(useful)))} %"), told
