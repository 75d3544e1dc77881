"""The Debian package on a booted Debian, from installation to purge, judged by the system's own tools.

The tests follow each other on one machine, as an operator's year would: installed, observing, enforcing, disturbed,
killed, rebooted, upgraded, removed. They take minutes where processors are emulated.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm import bytecode
from tests.vm.conftest import KEEP
from tests.vm.guest import INSTALL_S, Vm

pytestmark = pytest.mark.requires_vm

PROCESSES = ("/lra.slice/app.service", "/batch.slice/jobs.service", "/system.slice/inner.service/work")
"""The application, then batch work: in a slice that is the workload, and in a delegated group that is one."""
TREES = "lra.slice batch.slice system.slice/inner.service"
UNITS = ("app.service", "jobs.service", "inner.service", "lra.slice", "batch.slice")
DEFAULTS = {
    "cpu.weight": ("100",),
    "cpu.max": ("max 100000",),
    "cpu.idle": ("0",),
    "cpuset.cpus": ("", "0-1"),
    "cpuset.mems": ("", "0"),
    "cpuset.cpus.partition": ("member",),
    "memory.min": ("0",),
    "memory.low": ("0",),
    "memory.high": ("max",),
    "memory.max": ("max",),
    "io.weight": ("default 100",),
    "io.max": ("",),
    "cgroup.freeze": ("0",),
}
"""What a file says that is set to nothing: with or without its controller, which systemd brings and takes."""
SHOWN = (
    "Id,CPUWeight,CPUQuotaPerSecUSec,AllowedCPUs,AllowedMemoryNodes,MemoryMin,MemoryLow,MemoryHigh,MemoryMax,"
    "IOWeight"
)
UNIT = """
[Unit]
Description={what}
[Service]
{more}
ExecStart=/usr/local/bin/worker
[Install]
WantedBy=multi-user.target
"""
WORKLOADS = {
    "app": "Slice=lra.slice\nCPUWeight=150",
    "jobs": "Slice=batch.slice\nCPUWeight=70",
    "inner": "Delegate=yes\nCPUWeight=60",
}
# Works a little; where its unit is delegated, in a group of its own below it. It names the CPUs of that: nobody can
# empty that file again while processes are inside (then all CPUs of the parent are what is given back).
WORKER = """#!/bin/sh
group=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
case $group in */inner.service)
    mkdir -p $group/work
    echo $$ > $group/work/cgroup.procs
    echo "+cpu +cpuset +memory" > $group/cgroup.subtree_control
    cat /sys/fs/cgroup/cpuset.cpus.effective > $group/work/cpuset.cpus ;;
esac
while :; do
    i=0
    while [ $i -lt 300 ]; do i=$((i + 1)); done
    sleep 1
done
"""
CONFIG = """
[daemon]
mode = "{mode}"
policy = "static"
period_s = 1.0
[isolation]
deadline_s = 20.0
[[lra]]
name = "app"
cgroup = "/lra.slice/app.service"
[[batch]]
name = "jobs"
cgroup = "/batch.slice"
[[batch]]
name = "inner"
cgroup = "/system.slice/inner.service/work"
"""
UP = " && ".join(f"systemctl -q is-active {name}" for name in WORKLOADS)
TESTED = "/etc/systemd/system/perphd.service.d/tested.conf"
PLACED = (
    "set --; for f in "
    + " ".join(f"/sys/fs/cgroup{group}/cgroup.procs" for group in PROCESSES)
    + '; do read p 2>/dev/null < $f && set -- "$@" /proc/$p/status; done; '
    "placed=$(echo $(sed -n 's/^Cpus_allowed_list:\\t//p' \"$@\"))"
)
"""Where the processes of the three workloads may really run, in the shell's variable ``placed``."""
DROPPED = ("asn1crypto", "dateutil", "pg8000", "pymysql", "redis", "scramp", "perphd/sim")
"""What another release might do without: for other indicators, and for simulations."""
EVERYWHERE = "0-1 0-1 0-1"
SPLIT = ("0 1 1", "1 0 0")


@pytest.fixture(scope="module")
def vm(installed: Vm) -> Iterator[Vm]:
    yield installed
    if not KEEP:
        installed.try_(
            f"apt-get purge -y -q perphd; systemctl disable --now {' '.join(WORKLOADS)}", INSTALL_S
        )


@pytest.fixture(scope="module")
def at_rest(vm: Vm) -> dict[str, str]:
    """The workloads are made and run, and nobody has set anything on them: the settings then."""
    vm.sh(f"systemctl stop perphd; mkdir -p {TESTED.rpartition('/')[0]}", INSTALL_S)
    configure(vm, "observe")
    vm.write("/usr/local/bin/worker", WORKER, 0o755)
    for name, more in WORKLOADS.items():
        vm.write(f"/etc/systemd/system/{name}.service", UNIT.format(what=name, more=more))
    names = " ".join(WORKLOADS)
    vm.sh(f"systemctl revert {' '.join(UNITS)}; systemctl daemon-reload")
    vm.sh(f"systemctl enable -q {names} && systemctl restart {names}")
    wait_for_places(vm, (EVERYWHERE,), "no processes, or not everywhere")
    found = settings(vm)
    vm.sh("perphd config check && systemctl start perphd", INSTALL_S)
    return found


def configure(vm: Vm, mode: str) -> None:
    vm.write("/etc/perphd/perphd.toml", CONFIG.format(mode=mode), 0o640)


def settings(vm: Vm) -> dict[str, str]:
    """Every knob that is set to something, as the kernel has it and as systemd has it, with systemd's drop-ins; and
    where the processes may run."""
    wanted = " ".join(f"--include={name}" for name in DEFAULTS)
    told = vm.sh(
        f"cd /sys/fs/cgroup && grep -rs '' {wanted} {TREES}; echo; "
        f"systemctl show -p {SHOWN} {' '.join(UNITS)}; echo; "
        f"{PLACED}; echo $placed; echo; "
        # Without the sessions that these tests are themselves.
        "find /run/systemd/system.control /run/systemd/transient -type f ! -name 'session-*' 2>/dev/null; echo end"
    )
    files, *units, places, drop_ins = told.split("\n\n", len(UNITS) + 2)
    found = {"placed": places, **{f"drop-in {path}": "" for path in drop_ins.split()[:-1]}}
    lines = (line.partition(":")[::2] for line in files.splitlines())
    found |= {path: value for path, value in lines if value not in DEFAULTS[path.rsplit("/", 1)[1]]}
    for unit in units:
        shown_ = dict(line.partition("=")[::2] for line in unit.splitlines() if line)
        found |= {f"{shown_['Id']} {name}": value for name, value in shown_.items()}
    return found


def placed(vm: Vm) -> list[str]:
    """Where the processes of the three workloads may really run."""
    return vm.try_(f"{PLACED}; echo $placed").stdout.split()


def is_split(vm: Vm) -> bool:
    return " ".join(placed(vm)) in SPLIT


def wait_for_places(vm: Vm, wanted: tuple[str, ...], what: str) -> None:
    tests = " || ".join(f'[ "$placed" = "{places}" ]' for places in wanted)
    vm.wait_until(f"{PLACED}; {tests}", what)


def wait_for_split(vm: Vm, when: str) -> None:
    wait_for_places(vm, SPLIT, f"batch was not confined {when}")


def is_given_back(vm: Vm, at_rest: dict[str, str]) -> None:
    """Nothing is different; systemd may take a moment to take a controller away."""
    found: list[dict[str, str]] = []

    def is_so() -> bool:
        found.append(settings(vm))
        return found[-1] == at_rest

    end_s = time.monotonic() + 60.0
    while not is_so() and time.monotonic() < end_s:
        time.sleep(1.0)
    assert found[-1] == at_rest


def enforce(vm: Vm) -> None:
    """Let it enforce by configuration."""
    configure(vm, "enforce")
    if vm.try_("systemctl is-active perphd").stdout.strip() == "active":
        vm.sh("systemctl reload perphd && perphctl mode enforce")
    else:
        vm.sh("systemctl reset-failed perphd; systemctl start perphd", INSTALL_S)
    wait_for_split(vm, "")


def shown(vm: Vm, name: str, unit: str = "perphd") -> str:
    return vm.sh(f"systemctl show {unit} --value -p {name}")


def log(vm: Vm, words: str = "") -> str:
    return vm.sh(f"journalctl -u perphd --no-pager -q {words}")


def now(vm: Vm) -> str:
    """The journal's place that is reached by now."""
    return vm.sh("journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p'")


def since(vm: Vm, cursor: str) -> str:
    """What perphd's unit has said after that place."""
    return log(vm, f"--after-cursor={shlex.quote(cursor)} -o cat")


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

    # Nothing but its own packages: the host's Python has none of them.
    assert vm.try_("python3 -c 'import aiohttp'").returncode != 0
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
    ticks = "$(perphctl status | sed -n 's/.*\\btick \\([0-9]*\\).*/\\1/p')"
    vm.wait_until(f'[ "{ticks}" -gt 10 ]', "it does not tick", pause_s=2.0)
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
    assert is_split(vm)
    sign = "$(systemctl show perphd --value -p WatchdogTimestampMonotonic)"
    vm.wait_until(f'[ "{sign}" != {alive} ]', "no sign of life after daemon-reexec")
    assert shown(vm, "MainPID") == pid

    vm.sh("perphctl mode observe")
    wait_for_places(vm, (EVERYWHERE,), "it was not given back")
    after = settings(vm)
    changed = {name for name in {*after, *at_rest} if after.get(name) != at_rest.get(name)}
    assert changed == {
        "batch.slice/jobs.service/cpu.weight",
        "jobs.service CPUWeight",
        "lra.slice/app.service/memory.low",
        "app.service MemoryLow",
    }, "what administrators set stays, and nothing else is different"
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
    vm.wait_until(f"{said} | grep -q 'left alone until the mode is set anew'", "it does not yield")
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
    assert "stopped; what is in force is kept" in since(vm, cursor)
    # The oom killer and impatient people, its own failed assertions, and whatever makes it hang.
    for signal, result in (("KILL", "signal"), ("ABRT", "signal|core-dump"), ("STOP", "watchdog")):
        vm.sh("systemctl reset-failed perphd")
        before = int(shown(vm, "NRestarts"))
        cursor = now(vm)
        vm.sh(f"systemctl kill --kill-whom=main --signal={signal} perphd")
        restarts = "$(systemctl show perphd --value -p NRestarts)"
        vm.wait_until(f'[ "{restarts}" -gt {before} ]', f"not started again: {signal}", pause_s=1.0)
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


def packed_again(vm: Vm, name: str, appended: str) -> str:
    """The same package, with this appended to its version, copied there.

    The bytecode of the packages that it holds is inside: the installation has shown already that they are compiled
    where they are not. perphd's own is made there each time, and is on nobody's list when it is to be removed.
    """
    minor = vm.sh("python3 -c 'import sys; print(sys.version_info.minor)'")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, name)
        bytecode.repacked(
            vm.package, package, minor, appended=appended, compiled_there="perphd", dropped=DROPPED
        )
        vm.machine.put(package, "/root")
    return name


def test_up_and_downgrade_keep_configuration_and_state(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    released = vm.sh("dpkg-query -W -f '${Version}' perphd")
    packages = [packed_again(vm, "next.deb", "+next1"), packed_again(vm, "released.deb", "")]
    for package, version in zip(packages, (f"{released}+next1", released), strict=True):
        pid, cursor = shown(vm, "MainPID"), now(vm)
        vm.sh(f"cd /root && dpkg -i {package} < /dev/null", INSTALL_S)
        assert vm.sh("dpkg-query -W -f '${Version}' perphd") == version
        assert shown(vm, "MainPID") not in (pid, "0")
        told = since(vm, cursor)
        assert re.search(r"stopped; files: [2-9] restored", told), told
        assert 'mode = "enforce"' in vm.sh("cat /etc/perphd/perphd.toml")
        assert vm.sh("ls /var/lib/perphd/perphd.db")
        wait_for_split(vm, f"after the change to {version}")


def test_removed_and_purged(vm: Vm, at_rest: dict[str, str]) -> None:
    enforce(vm)
    vm.write("/etc/perphd/conf.d/site.toml", '[[batch]]\nname = "other"\ncgroup = "/other.slice"\n', 0o640)
    vm.sh("DEBIAN_FRONTEND=noninteractive apt-get remove -y -q perphd", INSTALL_S)
    is_given_back(vm, at_rest)
    assert vm.sh("ls /var/lib/perphd/perphd.db /etc/perphd/perphd.toml /etc/perphd/conf.d/site.toml")
    assert vm.try_("systemctl cat perphd").returncode != 0
    assert vm.try_("test -e /usr/lib/perphd").returncode != 0, "bytecode and all"
    vm.sh("DEBIAN_FRONTEND=noninteractive apt-get purge -y -q perphd", INSTALL_S)
    left = "ls -d /var/lib/perphd /etc/perphd /run/perphd /etc/systemd/system/*/perphd* 2>/dev/null || true"
    assert vm.sh(left) == ""
    is_given_back(vm, at_rest)
