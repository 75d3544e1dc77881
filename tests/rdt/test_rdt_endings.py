"""However perphd ends, the kernel's resctrl is as it was: killed, restored half-way, purged. Runs last."""

from __future__ import annotations

import random

import pytest

from tests.rdt.bed import APP, HOG, RESCTRL, Bed
from tests.vm.guest import INSTALL_S

pytestmark = pytest.mark.requires_vm
MOMENTS = 10
ALONE = "/etc/systemd/system/perphd.service.d/alone.conf"
"""A daemon that nobody starts again, and after which nobody cleans up."""


@pytest.fixture(scope="module")
def ending(bed: Bed) -> Bed:
    bed.mount_if_needed()
    bed.set_up([APP, HOG])
    bed.vm.sh(f"mkdir {RESCTRL}/theirs && echo 'L3:0=f;1=f' > {RESCTRL}/theirs/schemata")
    bed.start()
    bed.batch("hog")
    return bed


def test_killed_at_ten_moments(ending: Bed) -> None:
    bed, chance = ending, random.Random(17)
    for moment in range(MOMENTS):
        if moment % 4 == 0:
            bed.wait_until(bed.is_narrowed, f"batch was not narrowed, killed {moment} times")
        bed.vm.sh(f"sleep {chance.uniform(0.0, 4.0):.2f}; systemctl reset-failed perphd")
        before = bed.vm.sh("systemctl show perphd --value -p InvocationID")
        bed.vm.sh("systemctl kill --kill-whom=main --signal=KILL perphd")
        again = f'[ "$(systemctl show perphd --value -p InvocationID)" != {before} ] && systemctl -q is-active perphd'
        bed.vm.wait_until(again, f"not started again after kill {moment}", INSTALL_S, 1.0)
    bed.wait_until(bed.is_narrowed, "batch was not narrowed after the last start")
    bed.vm.sh("systemctl stop perphd", INSTALL_S)
    assert bed.restored(), bed.trouble()
    assert bed.groups() == ["theirs"]


def test_a_restore_that_is_killed_and_repeated(ending: Bed) -> None:
    bed, chance = ending, random.Random(4)
    bed.vm.write(ALONE, "[Unit]\nOnFailure=\n[Service]\nRestart=no\nExecStopPost=\n")
    bed.vm.sh(
        "systemctl daemon-reload; systemctl mask -q perphd-restore.service; systemctl stop perphd.socket"
    )
    try:
        bed.start()
        bed.wait_until(bed.is_narrowed, "batch was not narrowed")
        bed.vm.sh("systemctl kill --kill-whom=main --signal=KILL perphd")
        bed.vm.wait_until("! systemctl -q is-active perphd", "it lives")
        assert not bed.restored(), "something else restored"
        for _ in range(3):
            bed.vm.try_(f"timeout -s KILL {chance.uniform(1.0, 8.0):.2f} perphd restore", INSTALL_S)
        done = bed.vm.try_("perphd restore", INSTALL_S)
        assert done.returncode == 0, done.stdout + done.stderr
        assert bed.restored(), done.stdout
        again = bed.vm.try_("perphd restore", INSTALL_S)
        assert again.returncode == 0
        assert "nothing to restore" in again.stdout + again.stderr
        assert bed.groups() == ["theirs"]
    finally:
        bed.vm.sh(f"systemctl unmask -q perphd-restore.service; rm -f {ALONE}; systemctl daemon-reload")


def test_purged_with_groups_in_force(ending: Bed) -> None:
    bed = ending
    bed.vm.sh("systemctl reset-failed; systemctl start perphd.socket; true")
    bed.start()
    bed.wait_until(bed.is_narrowed, "batch was not narrowed")
    bed.vm.sh("DEBIAN_FRONTEND=noninteractive apt-get purge -y -q perphd", INSTALL_S)
    assert bed.restored()
    assert bed.groups() == ["theirs"]
    assert bed.values("theirs")["L3"] == {0: 0xF, 1: 0xF}
    places = "/var/lib/perphd /etc/perphd /run/perphd /usr/lib/perphd"
    assert bed.vm.sh(f"ls -d {places} 2>/dev/null || true") == ""
    drop_ins = (
        "find /run/systemd/system.control /run/systemd/transient -mindepth 1 ! -name 'session-*' 2>/dev/null"
    )
    assert bed.vm.sh(f"{drop_ins} | grep -v 'session-' || true") == "", "drop-ins of the workloads' units"
    assert bed.vm.sh("systemctl is-active app hog") == "active\nactive"
    bed.vm.sh(f"rmdir {RESCTRL}/theirs && umount {RESCTRL}")
