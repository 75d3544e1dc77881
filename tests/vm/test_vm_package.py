"""The Debian package on a booted Debian, from its installation on, judged by the system's own tools.

The tests follow each other on one machine, as an operator's year would: installed, observing, enforcing, disturbed,
killed, rebooted. They take minutes where processors are emulated.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import pytest

from tests.vm.guest import INSTALL_S, Vm, ticked
from tests.vm.workloads import (
    EVERYWHERE,
    WORKLOADS,
    enforce,
    is_given_back,
    is_split,
    log,
    now,
    placed,
    shown,
    since,
    wait_for_places,
    wait_for_split,
)

pytestmark = pytest.mark.requires_vm

UP = " && ".join(f"systemctl -q is-active {name}" for name in WORKLOADS)
TESTED = "/etc/systemd/system/perphd.service.d/tested.conf"


@pytest.fixture
def vm(installed: Vm) -> Vm:
    return installed


def test_once_installed_it_runs_confined_and_says_what_this_host_lacks(vm: Vm) -> None:
    assert vm.sh("systemctl is-active perphd perphd.socket perphd.slice").split() == ["active"] * 3
    assert vm.sh("systemctl is-enabled perphd") == "enabled"
    assert vm.try_("systemctl is-enabled sys-fs-resctrl.mount").stdout.strip() == "disabled"
    assert shown(vm, "StatusText").startswith("observe")
    assert shown(vm, "ControlGroup") == "/perphd.slice/perphd.service"
    pid = shown(vm, "MainPID")
    assert vm.sh(f"cat /proc/{pid}/oom_score_adj") == "-900"
    assert vm.sh("cat /sys/fs/cgroup/perphd.slice/memory.min") == str(64 << 20)
    assert vm.sh("stat -c '%a %U %G' /run/perphd/perphd.sock /var/lib/perphd /etc/perphd/perphd.toml").split(
        "\n"
    ) == [
        "660 root perphd",
        "700 root root",
        "640 root root",
    ]
    vm.wait_until(
        "test -e /usr/lib/perphd/textual/widgets/__pycache__ && ! systemctl -q is-active perphd-bytecode",
        "the rest is not compiled",
        INSTALL_S,
    )
    assert vm.sh("systemctl show --value -p Result perphd-bytecode") == "success"
    assert vm.sh("dpkg --verify perphd") == ""
    assert vm.sh("dpkg-query -W -f '${Conffiles}' perphd").split()[0] == "/etc/perphd/perphd.toml"
    exposure = re.search(
        r"exposure level for perphd\S*: ([0-9.]+)", vm.sh("systemd-analyze security perphd --no-pager")
    )
    assert exposure is not None
    assert float(exposure[1]) <= 3.0
    assert "INFO" not in log(vm, "-p warning -o cat"), "severities are the journal's"

    report = json.loads(vm.sh("perphctl doctor --json"))
    capabilities = report["capabilities"]
    present = {item["name"] for item in capabilities if item["present"]}
    assert {
        "cgroup",
        "cgroup.cpu",
        "cgroup.memory",
        "psi.cgroup",
        "psi.triggers",
        "notify",
        "taskstats",
    } <= present
    for item in capabilities:
        assert item["detail"], item
        assert item["present"] or (item["cost"] and item["remedy"]), f"neither there nor explained: {item}"

    # What is inside the package is seen by nothing else.
    assert vm.try_("python3 -c 'import textual'").returncode != 0
    assert "/usr/lib/perphd" in vm.sh(
        "bash -c '. /usr/share/bash-completion/completions/perphctl && complete -p perphctl' "
        "&& head -n 9 /usr/bin/perphctl"
    )


def test_who_may_do_what(vm: Vm) -> None:
    vm.sh("useradd bob; useradd -G perphd alice; useradd -G perphd,perphd-admin carol")

    def ask(user: str, words: str) -> subprocess.CompletedProcess[str]:
        return vm.try_(f"runuser -u {user} -- perphctl {words}")

    assert ask("bob", "status").returncode != 0
    assert ask("alice", "status").returncode == 0
    refused = ask("alice", "mode enforce")
    assert refused.returncode != 0
    assert "perphd-admin" in refused.stderr
    assert "observe" in ask("carol", "mode observe").stdout


def test_observing_changes_nothing(vm: Vm, at_rest: dict[str, str]) -> None:
    vm.wait_until(ticked(10), "it does not tick", pause_s=2.0)
    assert "app" in vm.sh("perphctl status")
    is_given_back(vm, at_rest)


def test_enforcing_survives_what_administrators_do_and_gives_back(vm: Vm, at_rest: dict[str, str]) -> None:
    vm.sh("perphctl mode enforce")
    wait_for_split(vm, "")
    _, batch, _ = placed(vm)
    assert shown(vm, "AllowedCPUs", "batch.slice") == batch
    assert vm.sh("cat /sys/fs/cgroup/batch.slice/cpuset.cpus.effective") == batch
    # Of the object itself, as any program may ask.
    asked = "/org/freedesktop/systemd1/unit/batch_2eslice org.freedesktop.systemd1.Slice AllowedCPUs"
    bitmap = vm.sh(f"busctl get-property org.freedesktop.systemd1 {asked}").split()
    assert bitmap[:3] == ["ay", bitmap[1], str(1 << int(batch))]
    changes = [json.loads(line)["MESSAGE"] for line in log(vm, "PERPHD_EVENT=change -o json").splitlines()]
    for group in ("batch.slice", "system.slice/inner.service/work", "lra.slice/app.service"):
        assert any(f"{group}/cpuset.cpus" in message for message in changes), group

    vm.sh("systemctl daemon-reload")
    assert is_split(vm)
    pid = shown(vm, "MainPID")
    vm.sh("systemctl daemon-reexec")
    wait_for_split(vm, "for good after systemd's re-execution")
    alive = shown(vm, "WatchdogTimestampMonotonic")
    vm.sh("systemctl restart jobs app inner")
    wait_for_split(vm, "after the units were started again")
    vm.sh("systemctl set-property jobs.service CPUWeight=30")
    vm.sh("systemctl set-property app.service MemoryLow=32M")
    wait_for_split(vm, "beside what administrators set")
    sign = "$(systemctl show perphd --value -p WatchdogTimestampMonotonic)"
    vm.wait_until(f'[ "{sign}" != {alive} ]', "no sign of life after daemon-reexec")
    assert shown(vm, "MainPID") == pid

    vm.sh("perphctl mode observe")
    wait_for_places(vm, (EVERYWHERE,), "it was not given back")
    set_by_others = {
        "batch.slice/jobs.service/cpu.weight",
        "jobs.service CPUWeight",
        "lra.slice/app.service/memory.low",
        "app.service MemoryLow",
    }
    is_given_back(vm, at_rest, but=frozenset(set_by_others))
    # Newer releases of systemd tell the kernel of that only when the units start again.
    vm.sh(
        "systemctl revert jobs.service app.service && systemctl daemon-reload && systemctl restart jobs app"
    )
    is_given_back(vm, at_rest)


def test_an_administrator_who_insists_is_yielded_to(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    _, batch, _ = placed(vm)
    vm.sh("systemctl set-property --runtime batch.slice AllowedCPUs=0-1")
    wait_for_split(vm, "again, after somebody had undone it once")
    assert shown(vm, "AllowedCPUs", "batch.slice") == batch
    cursor = now(vm)
    vm.sh("systemctl set-property --runtime batch.slice AllowedCPUs=0-1")
    said = f"journalctl -u perphd -q --after-cursor={shlex.quote(cursor)}"
    vm.wait_until(f"{said} | grep -q 'left alone until the mode is set again'", "it does not yield")
    _, jobs, inner = placed(vm)
    assert (jobs, inner) == ("0-1", batch), "that one knob, and no other"
    vm.sh("perphctl mode observe")
    wait_for_places(vm, (EVERYWHERE,), "it was not given back")
    assert shown(vm, "AllowedCPUs", "batch.slice") == "0-1", "theirs by now"
    vm.sh("systemctl set-property --runtime batch.slice AllowedCPUs=; systemctl revert batch.slice")
    vm.sh("systemctl daemon-reload; perphctl mode enforce")
    wait_for_split(vm, "with the conflict forgotten")
    vm.sh("perphctl mode observe")
    is_given_back(vm, at_rest)


def test_a_restart_keeps_and_whatever_ends_it_otherwise_gives_back(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    refused = vm.try_("perphd restore")
    assert refused.returncode == 1
    assert f"in use by process {shown(vm, 'MainPID')}" in refused.stderr
    vm.write(TESTED, "[Service]\nWatchdogSec=10s\nTimeoutAbortSec=3s\n")
    cursor = now(vm)
    vm.sh("systemctl daemon-reload; systemctl restart perphd", INSTALL_S)
    wait_for_split(vm, "over a restart")
    assert "stopped; settings in force are kept" in since(vm, cursor)
    # The oom killer and impatient people, its own failed assertions, and whatever makes it hang.
    for signal, result in (("KILL", "signal"), ("ABRT", "signal|core-dump"), ("STOP", "watchdog")):
        vm.sh("systemctl reset-failed perphd")
        before = shown(vm, "InvocationID")
        cursor = now(vm)
        vm.sh(f"systemctl kill --kill-whom=main --signal={signal} perphd")
        # Its counter of restarts says less: where something else has asked for the start, it is back at none.
        again = f'[ "$(systemctl show perphd --value -p InvocationID)" != {before} ] && systemctl -q is-active perphd'
        vm.wait_until(again, f"not started again: {signal}", pause_s=1.0)
        told = since(vm, cursor)
        assert re.search(f"Failed with result '({result})'", told), told
        assert re.search(r"files: [2-9] restored", told), f"by ExecStopPost=, after {signal}: {told}"
        wait_for_split(vm, f"again after {signal}")
    vm.sh(f"rm {TESTED} && systemctl daemon-reload && systemctl reset-failed perphd")


def test_what_a_restart_kept_goes_back_if_it_cannot_start_again(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    vm.write(TESTED, "[Unit]\nStartLimitBurst=1\n")
    vm.sh("systemctl daemon-reload")
    vm.write("/etc/perphd/perphd.toml", "[daemon]\nmode = 'no such mode'\n", 0o640)
    assert vm.try_("perphd config check").returncode != 0
    assert vm.try_("systemctl restart perphd", INSTALL_S).returncode != 0
    ended = "$(systemctl show perphd-restore --value -p ExecMainExitTimestampMonotonic)"
    vm.wait_until(f'[ "{ended}" -gt 0 ]', "OnFailure= did nothing")
    assert shown(vm, "Result", "perphd-restore") == "success"
    assert shown(vm, "ActiveState") == "failed"
    is_given_back(vm, at_rest)
    vm.sh(f"rm {TESTED}; systemctl daemon-reload; systemctl reset-failed perphd")


def test_stopping_gives_back_and_asking_does_not_start_it(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    vm.sh("systemctl stop perphd")
    assert shown(vm, "Result") == "success"
    is_given_back(vm, at_rest)
    assert vm.try_("perphctl status").returncode != 0
    assert vm.try_("systemctl is-active perphd perphd.socket").stdout.split() == ["inactive"] * 2


def test_a_loss_of_power_and_a_reboot_leave_nothing_behind(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    vm.machine.reset()
    vm.wait_until(UP, "no start")
    wait_for_split(vm, "after the boot")
    assert "NOT restored" not in log(vm, "-b")
    # As it is without perphd: nothing may be left that needed it to be undone.
    vm.sh("systemctl disable -q perphd")
    vm.machine.reboot()
    vm.wait_until(UP, "no start")
    is_given_back(vm, at_rest)
    vm.sh("systemctl enable -q perphd")
