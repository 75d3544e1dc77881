"""The batch queue with systemd, as an ordinary user: submit, wait, logs, deadline, cancel, kill -9, reboot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vm.guest import INSTALL_S, Vm

pytestmark = pytest.mark.requires_vm

CONFIG = """
[daemon]
mode = "observe"
period_s = 1.0
[tuning.daemon]
policy = "static"
[queue]
enabled = true
[tuning.queue]
cpu_risk = 1.0
"""
"""An emulated machine is busy with its daemon alone: whether there are CPUs for a job is not what is tested here."""
FRESH = "systemctl stop perphd; systemctl reset-failed perphd; rm -rf /var/lib/perphd/queue && systemctl start perphd"
"""These tests start the daemon more often than systemd lets anybody within five minutes, unless its count is reset."""
UNITS = "systemctl list-units --all --plain --no-legend 'perphd-job-*'"


@pytest.fixture(scope="module")
def vm(installed: Vm) -> Iterator[Vm]:
    # On a busy host an emulated machine's first tick may take longer than the watchdog allows.
    installed.be_patient("WatchdogSec=0")
    installed.sh("systemctl daemon-reload; systemctl stop perphd", INSTALL_S)
    installed.write("/etc/perphd/perphd.toml", CONFIG, 0o640)
    for user in ("queue-alice", "queue-bob"):
        installed.sh(f"id {user} 2>/dev/null || useradd -m -G perphd {user}")
    installed.sh("rm -rf /var/lib/perphd/queue && perphd config check && systemctl start perphd", INSTALL_S)
    try:
        yield installed
    finally:
        installed.try_("perphctl cancel 1-200", INSTALL_S)
        installed.try_("systemctl stop perphd; userdel -r queue-alice; userdel -r queue-bob", INSTALL_S)
        installed.be_patient()
        installed.try_("systemctl daemon-reload")


def by(vm: Vm, user: str, words: str) -> subprocess.CompletedProcess[str]:
    """perphctl as this user, in a directory that everybody may enter."""
    return vm.try_(f"cd /tmp && runuser -u {user} -- perphctl {words}")


def submitted(vm: Vm, words: str, user: str = "queue-alice") -> int:
    done = by(vm, user, f"--json run {words}")
    assert done.returncode == 0, done.stderr
    (number,) = json.loads(done.stdout)["jobs"]
    assert isinstance(number, int)
    return number


def job(vm: Vm, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(vm.sh(f"perphctl --json job {number}"))["job"]
    return found


def until_running(vm: Vm, number: int, patience_s: float = 240.0) -> None:
    """Until this job runs; if it does not, what perphctl says about it."""
    try:
        vm.wait_until(f"perphctl job {number} | grep -q '^state     running'", "it does not run", patience_s)
    except AssertionError as exc:
        raise AssertionError(vm.try_(f"perphctl job {number}; perphctl jobs --all").stdout) from exc


def test_a_job_runs_as_its_user_in_copper_s_slice_and_its_words_are_data(vm: Vm) -> None:
    script = """'id -un; pwd; cat /proc/self/cgroup; echo "$0"; exit 7' '$HOME `id` %n'"""
    number = submitted(vm, f"""--name '$(touch /tmp/x); %n' -- sh -c {script}""")
    waited = by(vm, "queue-alice", f"wait {number}")
    assert waited.returncode == 7, waited.stdout + waited.stderr
    printed = by(vm, "queue-alice", f"logs {number}").stdout.splitlines()
    assert printed[:2] == ["queue-alice", "/tmp"]
    assert f"/perphdjobs.slice/perphd-job-{number}-1.service" in printed[2]
    assert printed[-1] == "$HOME `id` %n"
    vm.wait_until(f'test -z "$({UNITS})"', "the unit is left")


def test_somebody_elses_job_cannot_be_touched_and_is_a_batch_workload(vm: Vm) -> None:
    number = submitted(vm, "--name mine --deadline 2h -- sleep 3600")
    until_running(vm, number)
    assert "belongs to another user" in by(vm, "queue-bob", f"cancel {number}").stderr
    assert "belongs to another user" in by(vm, "queue-bob", f"logs {number}").stderr
    shown = by(vm, "queue-bob", f"job {number}").stdout
    assert "mine" in shown
    assert "sleep" not in shown
    vm.wait_until(f"perphctl status | grep -q 'job-{number}'", "it is no workload")
    left_s = job(vm, number)["detail"]["deadline_unix_s"] - float(vm.sh("date +%s"))
    assert 3600.0 < left_s <= 7200.0
    assert "deadline  in " in by(vm, "queue-alice", f"job {number}").stdout
    assert by(vm, "queue-alice", f"cancel {number}").returncode == 0
    vm.wait_until(f"! systemctl is-active -q perphd-job-{number}-1.service", "it still runs")


def test_an_output_file_is_opened_with_the_users_rights(vm: Vm) -> None:
    vm.sh("install -m 600 /dev/null /tmp/roots-own")
    number = submitted(vm, "--output /tmp/roots-own -- echo overwritten")
    assert by(vm, "queue-alice", f"wait {number}").returncode != 0
    assert vm.sh("cat /tmp/roots-own") == ""


def test_jobs_outlive_kill_9_of_the_daemon_and_none_starts_twice(vm: Vm) -> None:
    vm.sh("install -d -m 1777 /tmp/queue-marks && rm -f /tmp/queue-marks/*")
    script = "echo x >> /tmp/queue-marks/$PERPHD_ARRAY_INDEX; sleep 5"
    answer = by(vm, "queue-alice", f"--json run --array 6 --cores 0.2 -- sh -c '{script}'")
    numbers = json.loads(answer.stdout)["jobs"]
    for _ in range(3):
        vm.sh(
            "systemctl kill -s KILL perphd; sleep 1; systemctl reset-failed perphd; systemctl start perphd",
            INSTALL_S,
        )
    assert by(vm, "queue-alice", f"wait {numbers[0]}-{numbers[-1]}").returncode == 0
    assert vm.sh("cat /tmp/queue-marks/* | wc -l").strip() == "6"


def test_after_a_reboot_waiting_jobs_wait_and_running_ones_use_their_retries(vm: Vm) -> None:
    once = submitted(vm, "-- sleep 3600")
    again = submitted(vm, "--retries 1 -- sleep 3600")
    last = submitted(vm, f"--after {again} -- true")
    for number in (once, again):
        until_running(vm, number)
    # The daemon is slow to stop, and would see how systemd ends units of jobs if they were stopped before it.
    slow = "/etc/systemd/system/perphd.service.d/slow-stop.conf"
    vm.write(slow, "[Service]\nExecStop=/bin/sleep 10\n")
    vm.sh("systemctl daemon-reload")
    vm.machine.reboot()
    vm.sh(f"rm {slow}; systemctl daemon-reload; systemctl start perphd", INSTALL_S)
    until_running(vm, again)
    assert "the host was restarted" in job(vm, once)["detail"]["reason"]
    assert job(vm, again)["detail"]["attempt"] == 2
    assert job(vm, last)["state"] == "queued"
    assert by(vm, "queue-alice", f"cancel {again}").returncode == 0
    vm.wait_until(f"perphctl job {last} | grep -q '^state     cancelled'", "what follows it is not cancelled")


def test_workers_of_an_elastic_job_start_and_read_their_slots(vm: Vm) -> None:
    """Two workers: the others start on CPUs left free, and on an emulated machine the daemon itself leaves few."""
    answer = by(
        vm,
        "queue-alice",
        "--json run --elastic 1:2 --cores 0.01 --memory 16M -- sh -c 'cat $PERPHD_SLOTS_FILE; sleep 3600'",
    )
    assert answer.returncode == 0, answer.stderr
    first, *_, last = json.loads(answer.stdout)["jobs"]
    until_running(vm, last, 600.0)
    vm.wait_until(f"grep -qx PERPHD_SLOTS=2 /run/perphd/slots/{first}.env", "nobody tells the workers")
    assert "PERPHD_SLOTS_MOST=2" in by(vm, "queue-alice", f"logs {last}").stdout
    assert by(vm, "queue-alice", f"cancel {first}-{last}").returncode == 0
    vm.wait_until(f"test ! -e /run/perphd/slots/{first}.env", "the file is left")


def test_a_full_disk_refuses_new_jobs_and_loses_none(vm: Vm) -> None:
    folder = "/var/lib/perphd/queue"
    vm.sh("systemctl stop perphd", INSTALL_S)
    vm.sh(f"mount -t tmpfs -o size=4m,mode=700 tmpfs {folder} && systemctl start perphd", INSTALL_S)
    try:
        running = submitted(vm, "-- sleep 20")
        until_running(vm, running)
        vm.try_(f"cat /dev/zero > {folder}/ballast")
        refused = by(vm, "queue-alice", "run -- true")
        assert refused.returncode != 0
        assert "free space" in refused.stderr
        vm.wait_until(
            f"systemctl show perphd-job-{running}-1 -p SubState | grep -q exited", "it does not end"
        )
        vm.wait_until("perphctl --json status | grep -q 'disk is full'", "nobody says that the disk is full")
        vm.sh(f"rm {folder}/ballast")
        vm.wait_until(f"perphctl job {running} | grep -q '^state     done'", "its end was lost")
        again = submitted(vm, "-- true")
        assert again == running + 1
        assert by(vm, "queue-alice", f"wait {again}").returncode == 0
    finally:
        vm.sh(f"systemctl stop perphd; umount {folder}; systemctl start perphd", INSTALL_S)


def test_ten_thousand_jobs_are_stored_listed_and_kept_over_a_restart(vm: Vm) -> None:
    vm.sh(FRESH, INSTALL_S)
    first = submitted(vm, "-- sleep 3600")
    stored = by(vm, "queue-alice", f"--json run --array 10000 --after {first} --name many -- true")
    assert stored.returncode == 0, stored.stderr
    assert len(json.loads(stored.stdout)["jobs"]) == 10_000
    listed = by(vm, "queue-alice", "jobs --limit 5").stdout
    assert f"it follows job {first}" in listed
    vm.sh("systemctl restart perphd", INSTALL_S)
    vm.wait_until(f"perphctl job {first} | grep -q '^state     running'", "the running job is lost")
    counts = json.loads(vm.sh("perphctl --json jobs --limit 1"))["queue"]["counts"]
    assert counts == {"running": 1, "queued": 10_000}
    vm.sh(FRESH, INSTALL_S)
    vm.sh(f"systemctl stop perphd-job-{first}-1.service")
