"""Workloads on the machine, with perphd's configuration for them: an application that is a unit, batch work in a slice
and in a delegated group. What is set on them, and where their processes may run, is asked of the kernel and systemd.
"""

from __future__ import annotations

import shlex
import time

from tests.vm.guest import INSTALL_S, Vm

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
period_s = 1.0
[tuning.daemon]
policy = "static"
[tuning.isolation]
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
PLACED = (
    "set --; for f in "
    + " ".join(f"/sys/fs/cgroup{group}/cgroup.procs" for group in PROCESSES)
    + '; do read p 2>/dev/null < $f && set -- "$@" /proc/$p/status; done; '
    "placed=$(echo $(sed -n 's/^Cpus_allowed_list:\\t//p' \"$@\"))"
)
"""Where the processes of the three workloads may really run, in the shell's variable ``placed``."""
EVERYWHERE = "0-1 0-1 0-1"
SPLIT = ("0 1 1", "1 0 0")


def start_at_rest(vm: Vm) -> dict[str, str]:
    """Make the workloads and run them, and perphd, observing; the settings when nobody has set anything on them."""
    vm.sh("systemctl stop perphd", INSTALL_S)
    configure(vm, "observe")
    found = start_workloads(vm)
    vm.sh("perphd config check && systemctl start perphd", INSTALL_S)
    return found


def start_workloads(vm: Vm) -> dict[str, str]:
    """Make the workloads and run them; the settings on them."""
    vm.write("/usr/local/bin/worker", WORKER, 0o755)
    for name, more in WORKLOADS.items():
        vm.write(f"/etc/systemd/system/{name}.service", UNIT.format(what=name, more=more))
    names = " ".join(WORKLOADS)
    vm.sh(f"systemctl revert {' '.join(UNITS)}; systemctl daemon-reload")
    vm.sh(f"systemctl enable -q {names} && systemctl restart {names}")
    wait_for_places(vm, (EVERYWHERE,), "no processes, or not everywhere")
    return settings(vm)


def end(vm: Vm) -> None:
    """The workloads and perphd; what is made on the machine stays."""
    vm.try_(f"systemctl stop perphd; systemctl disable --now {' '.join(WORKLOADS)}", INSTALL_S)


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
        # Those that set something, without the sessions that these tests are themselves.
        "grep -rls '^[^#]' /run/systemd/system.control /run/systemd/transient | grep -v /session-; echo end"
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


def is_given_back(vm: Vm, at_rest: dict[str, str], but: frozenset[str] = frozenset()) -> None:
    """Nothing is different except these settings; systemd may take a moment to take a controller or drop-in away."""
    end_s = time.monotonic() + 60.0
    while (changed := _changed(settings(vm), at_rest)).keys() != but and time.monotonic() < end_s:
        time.sleep(1.0)
    assert changed.keys() == but, changed


def _changed(found: dict[str, str], at_rest: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """The settings that differ, as they were at rest and as they are."""
    pairs = {name: (at_rest.get(name), found.get(name)) for name in {*found, *at_rest}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


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
