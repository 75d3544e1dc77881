"""The Debian package on a booted Debian, from installation to purge, judged by the system's own tools.

The tests follow each other on one machine, as an operator's year would: installed, observing, enforcing, disturbed,
killed, rebooted, upgraded, removed. They take minutes where processors are emulated.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.vm.conftest import KEEP
from tests.vm.guest import INSTALL_S, Vm

pytestmark = pytest.mark.requires_vm

LRA, BATCH = "/lra.slice/app.service/work", "/batch.slice/jobs.service/work"
KNOBS = (
    "cpu.weight cpu.max cpu.idle cpuset.cpus cpuset.mems cpuset.cpus.partition memory.min memory.low memory.high "
    "memory.max io.weight io.max cgroup.subtree_control cgroup.freeze"
).split()
SHOWN = (
    "CPUWeight,CPUQuotaPerSecUSec,AllowedCPUs,AllowedMemoryNodes,MemoryMin,MemoryLow,MemoryHigh,MemoryMax,IOWeight,"
    "DropInPaths"
)
UNIT = """
[Unit]
Description={what}
[Service]
Slice={slice}
Delegate=yes
CPUWeight={weight}
ExecStart=/usr/local/bin/worker
[Install]
WantedBy=multi-user.target
"""
# Works a little in a group of its own below its unit, which is delegated. It names its CPUs: nobody can empty that
# file again while processes are inside (then all CPUs of the parent are what is given back).
WORKER = """#!/bin/sh
group=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
mkdir -p $group/work
echo $$ > $group/work/cgroup.procs
echo "+cpu +cpuset +memory" > $group/cgroup.subtree_control
cat /sys/fs/cgroup/cpuset.cpus.effective > $group/work/cpuset.cpus
while :; do
    i=0
    while [ $i -lt 300 ]; do i=$((i + 1)); done
    sleep 0.5
done
"""
CONFIG = """
[daemon]
mode = "{mode}"
policy = "static"
period_s = 0.5
[[lra]]
name = "app"
cgroup = "{lra}"
[[batch]]
name = "jobs"
cgroup = "{batch}"
"""


@pytest.fixture(scope="module")
def vm(installed: Vm) -> Iterator[Vm]:
    yield installed
    if not KEEP:
        installed.try_("apt-get purge -y -q perphd; systemctl disable --now app jobs", INSTALL_S)


def configure(vm: Vm, mode: str) -> None:
    vm.write("/etc/perphd/perphd.toml", CONFIG.format(mode=mode, lra=LRA, batch=BATCH), 0o640)


def settings(vm: Vm) -> dict[str, str]:
    """Every knob of the workloads' groups as the kernel has it, and of their units as systemd has it."""
    wanted = " ".join(f"--include={name}" for name in KNOBS)
    lines = vm.sh(f"cd /sys/fs/cgroup && grep -rs '' {wanted} lra.slice batch.slice").splitlines()
    found = {name: value for name, _, value in (line.partition(":") for line in sorted(lines))}
    for unit in ("lra.slice", "batch.slice", "app.service", "jobs.service"):
        found[unit] = vm.sh(f"systemctl show {unit} -p {SHOWN}")
    return found


def cpus(vm: Vm, group: str) -> str:
    """Where this group's process may really run."""
    return vm.sh(
        f"p=$(head -n 1 /sys/fs/cgroup{group}/cgroup.procs); grep Cpus_allowed_list /proc/$p/status"
    ).split()[1]


def is_split(vm: Vm) -> bool:
    return {cpus(vm, LRA), cpus(vm, BATCH)} == {"0", "1"}


def shown(vm: Vm, name: str, unit: str = "perphd") -> str:
    return vm.sh(f"systemctl show {unit} --value -p {name}")


def ticks(vm: Vm) -> int:
    told = re.search(r"\btick (\d+)", vm.try_("perphctl status").stdout)
    return int(told[1]) if told is not None else 0


def log(vm: Vm, words: str = "") -> str:
    return vm.sh(f"journalctl -u perphd --no-pager -q {words}")


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


def test_observing_changes_nothing(vm: Vm) -> None:
    vm.write("/usr/local/bin/worker", WORKER, 0o755)
    for name, slice_, weight in (("app", "lra.slice", 150), ("jobs", "batch.slice", 70)):
        unit = UNIT.format(what=name, slice=slice_, weight=weight)
        vm.write(f"/etc/systemd/system/{name}.service", unit)
    vm.sh("systemctl revert app jobs; systemctl daemon-reload")
    vm.sh("systemctl enable -q app jobs && systemctl restart app jobs")
    vm.wait_for(
        lambda: (
            vm.try_(f"cd /sys/fs/cgroup && cat .{LRA}/cpuset.cpus .{BATCH}/cpuset.cpus").stdout.split()
            == ["0-1", "0-1"]
        ),
        "no groups to work in",
    )
    before = settings(vm)
    configure(vm, "observe")
    vm.sh("perphd config check && systemctl restart perphd")
    vm.wait_for(lambda: ticks(vm) > 20, "it does not tick")
    assert settings(vm) == before
    assert cpus(vm, LRA) == cpus(vm, BATCH) == "0-1"


def test_enforcing_survives_what_administrators_do_and_gives_back(vm: Vm) -> None:
    before = settings(vm)
    vm.sh("perphctl mode enforce")
    vm.wait_for(lambda: is_split(vm), "batch was not confined")
    assert vm.sh(f"cat /sys/fs/cgroup{BATCH}/cpuset.cpus.effective") == cpus(vm, BATCH)
    entry = json.loads(log(vm, "PERPHD_EVENT=change -o json -n 1"))
    assert f"{BATCH}/cpuset.cpus" in entry["MESSAGE"]
    assert entry["PRIORITY"] == "6"

    vm.sh("systemctl daemon-reload")
    assert is_split(vm)
    pid = shown(vm, "MainPID")
    vm.sh("systemctl daemon-reexec")
    vm.wait_for(lambda: is_split(vm), "systemd's re-execution undid it for good")
    alive = shown(vm, "WatchdogTimestampMonotonic")
    vm.wait_for(
        lambda: shown(vm, "WatchdogTimestampMonotonic") != alive, "no sign of life after daemon-reexec"
    )
    assert shown(vm, "MainPID") == pid
    vm.sh("systemctl restart jobs")
    vm.wait_for(lambda: is_split(vm), "batch was not confined after its restart")
    vm.sh("systemctl set-property jobs.service CPUWeight=30")
    vm.sh("systemctl set-property app.service MemoryLow=32M")
    assert is_split(vm)

    vm.sh("perphctl mode observe")
    vm.wait_for(lambda: not is_split(vm), "it was not given back")
    after = settings(vm)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {
        "batch.slice/jobs.service/cpu.weight",
        "lra.slice/app.service/memory.low",
        "jobs.service",
        "app.service",
    }, "what administrators set stays, and nothing else is different"
    assert "CPUWeight=30" in after["jobs.service"]
    vm.sh("systemctl revert jobs.service app.service && systemctl daemon-reload")


def enforce(vm: Vm) -> dict[str, str]:
    """Let it enforce by configuration; returns the settings before."""
    vm.sh("systemctl stop perphd")
    before = settings(vm)
    configure(vm, "enforce")
    vm.sh("systemctl start perphd")
    vm.wait_for(lambda: is_split(vm), "batch was not confined")
    return before


def test_a_kill_gives_back_and_it_starts_again(vm: Vm) -> None:
    enforce(vm)
    vm.sh("systemctl kill --kill-whom=main --signal=KILL perphd")
    vm.wait_for(lambda: shown(vm, "NRestarts") == "1", "it was not started again")
    assert re.search(r"files: [2-9] restored", log(vm, "-n 20 -o cat")), "by ExecStopPost="
    vm.wait_for(lambda: is_split(vm), "batch was not confined again")


def test_stopping_gives_back_and_asking_does_not_start_it(vm: Vm) -> None:
    before = enforce(vm)
    vm.sh("systemctl stop perphd")
    assert shown(vm, "Result") == "success"
    assert settings(vm) == before
    assert vm.try_("perphctl status").returncode != 0
    assert vm.try_("systemctl is-active perphd perphd.socket").stdout.split() == ["inactive"] * 2


def test_a_reboot_and_a_loss_of_power_leave_nothing_behind(vm: Vm) -> None:
    enforce(vm)
    vm.machine.reset()
    vm.wait_for(
        lambda: vm.try_("systemctl is-active perphd app jobs").stdout.split() == ["active"] * 3,
        "no start",
        120,
    )
    vm.wait_for(lambda: is_split(vm), "batch was not confined after the boot")
    assert "NOT restored" not in log(vm, "-b")
    vm.machine.reboot()
    vm.wait_for(
        lambda: vm.try_("systemctl is-active perphd app jobs").stdout.split() == ["active"] * 3,
        "no start",
        120,
    )
    vm.wait_for(lambda: is_split(vm), "batch was not confined after the boot")
    vm.sh("systemctl stop perphd")
    assert cpus(vm, LRA) == cpus(vm, BATCH) == "0-1"
    vm.sh("systemctl start perphd")


def another_version(vm: Vm) -> str:
    """The same package under the next version, made where dpkg is."""
    vm.sh(
        f"cd /root && dpkg-deb -R {shlex.quote(vm.package.name)} next && "
        "sed -i 's/^Version: .*/&+next1/' next/DEBIAN/control && dpkg-deb -Znone -b next next.deb && rm -r next",
        INSTALL_S,
    )
    return "next.deb"


def test_up_and_downgrade_keep_configuration_and_state(vm: Vm) -> None:
    before = enforce(vm)
    released = vm.sh("dpkg-query -W -f '${Version}' perphd")
    for package, version in ((another_version(vm), f"{released}+next1"), (vm.package.name, released)):
        pid = shown(vm, "MainPID")
        cursor = vm.sh("journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p'")
        vm.sh(f"cd /root && dpkg -i {package} < /dev/null", INSTALL_S)
        assert vm.sh("dpkg-query -W -f '${Version}' perphd") == version
        assert shown(vm, "MainPID") not in (pid, "0")
        told = log(vm, f"--after-cursor={shlex.quote(cursor)} -o cat")
        assert re.search(r"stopped; files: [2-9] restored", told), told
        assert 'mode = "enforce"' in vm.sh("cat /etc/perphd/perphd.toml")
        assert vm.sh("ls /var/lib/perphd/perphd.db")
        vm.wait_for(lambda: is_split(vm), "batch was not confined afterwards")
    vm.sh("systemctl stop perphd")
    assert settings(vm) == before


def test_removed_and_purged(vm: Vm) -> None:
    before = enforce(vm)
    vm.sh("DEBIAN_FRONTEND=noninteractive apt-get remove -y -q perphd", INSTALL_S)
    assert settings(vm) == before
    assert vm.sh("ls /var/lib/perphd /etc/perphd/perphd.toml")
    assert vm.try_("systemctl cat perphd").returncode != 0
    assert vm.try_("test -e /usr/lib/perphd").returncode != 0, "bytecode and all"
    vm.sh("DEBIAN_FRONTEND=noninteractive apt-get purge -y -q perphd", INSTALL_S)
    assert (
        vm.sh(
            "ls -d /var/lib/perphd /etc/perphd /run/perphd /etc/systemd/system/*/perphd* 2>/dev/null || true"
        )
        == ""
    )
    assert settings(vm) == before
