"""A booted machine with Intel RDT, perphd's package on it, and workloads that contend for its caches and its memory.

``app`` is the long-running application, ``hog`` the batch work. Both are units; the programs in ``kit`` make their
indicators and their traffic. Scenes ask the kernel (groups, masks, counters) and ``perphctl``, never perphd's code.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm.guest import INSTALL_S, Vm

KIT = Path(__file__).parent / "kit"
RESCTRL = "/sys/fs/resctrl"
OWN = "perphd."
TARGET_MS = 24.0
"""The application's objective: it has 16 ms alone, and 40 ms beside batch that may have everything."""
NARROW = 0.75
"""With more of the ways batch keeps the application from its objective, however little bandwidth is left to it."""
SOCKETS = {0: {0, 1}, 1: {2, 3}}
"""The processors of each domain."""
PATIENCE_S = 240.0
"""For what takes perphd a few periods on a real host: emulated processors are twenty times slower."""
UNIT = "[Unit]\nDescription={name}\n[Service]\n{more}\nExecStart={command}\n"
CONFIG = """
[daemon]
mode = "{mode}"
period_s = 1.0
[tuning.daemon]
policy = "{policy}"
[tuning.isolation]
deadline_s = 30.0
"""


@dataclass(frozen=True)
class Application:
    """A long-running application on these CPUs, slowed down by one batch job."""

    name: str
    batch: str
    cpus: str = "0-3"
    traffic: str = "600 2048 1 60"

    @property
    def config(self) -> str:
        return (
            f'[[lra]]\nname = "{self.name}"\ncgroup = "/lra.slice/{self.name}.service"\nmax_latency_ms = {TARGET_MS}\n'
            f'[lra.sli]\nsource = "file"\npath = "/run/rdt/{self.name}"\n'
        )

    @property
    def unit(self) -> str:
        command = f"/usr/bin/python3 /opt/rdt/app.py /run/rdt/{self.name} /batch.slice/{self.batch}.service"
        shell = f"/opt/rdt/traffic {self.traffic} & exec {command}"
        more = f"Slice=lra.slice\nAllowedCPUs={self.cpus}"
        return UNIT.format(name=self.name, more=more, command=f"/bin/sh -c {shlex.quote(shell)}")


@dataclass(frozen=True)
class Job:
    """Batch work on these CPUs."""

    name: str
    cpus: str = "0-3"
    traffic: str = "4000 8192 2 100"

    @property
    def config(self) -> str:
        return f'[[batch]]\nname = "{self.name}"\ncgroup = "/batch.slice/{self.name}.service"\n'

    @property
    def unit(self) -> str:
        more = f"Slice=batch.slice\nAllowedCPUs={self.cpus}"
        return UNIT.format(name=self.name, more=more, command=f"/opt/rdt/traffic {self.traffic}")


APP, HOG = Application("app", "hog"), Job("hog")


class Bed:
    """One machine with the kit. Scenes leave it with resctrl mounted plainly and perphd enforcing."""

    def __init__(self, vm: Vm) -> None:
        self.vm = vm
        self.running: tuple[str, ...] = ()

    def prepare(self, traffic: Path) -> None:
        """Put the workloads' programs there."""
        for name in ("app.py", "watch.py"):
            self.vm.machine.put(KIT / name, "/opt/rdt")
        self.vm.machine.put(traffic, "/opt/rdt")
        self.vm.sh("mkdir -p /run/rdt; chmod 755 /opt/rdt/traffic; systemctl stop perphd")

    # -- workloads and the daemon ---------------------------------------------------------------------

    def set_up(
        self, works: Iterable[Application | Job], *, mode: str = "enforce", policy: str = "perph"
    ) -> None:
        """These workloads and no others, configured and running; perphd is not started."""
        self.vm.sh("systemctl stop perphd; systemctl reset-failed; true", INSTALL_S)
        if self.running:
            self.vm.sh(f"systemctl stop {' '.join(self.running)}")
        chosen = tuple(works)
        text = CONFIG.format(mode=mode, policy=policy) + "".join(work.config for work in chosen)
        self.vm.write("/etc/perphd/perphd.toml", text, 0o640)
        for work in chosen:
            self.vm.write(f"/etc/systemd/system/{work.name}.service", work.unit)
        self.running = tuple(work.name for work in chosen)
        lras = " ".join(work.name for work in chosen if isinstance(work, Application))
        self.vm.sh(f"systemctl daemon-reload && perphd config check && systemctl start {lras}")

    def start(self) -> None:
        """perphd; batch may come before it has seen the applications alone."""
        self.vm.sh("systemctl start perphd", INSTALL_S)

    def batch(self, *names: str) -> None:
        """Start batch."""
        self.vm.sh(f"systemctl start {' '.join(names)}")

    # -- resctrl ----------------------------------------------------------------------------------------

    def mount(self, options: str = "") -> None:
        words = f"-o {options} " if options else ""
        self.vm.wait_until(
            f"mount -t resctrl {words}resctrl {RESCTRL}", "resctrl could not be mounted", 120.0, 0.5
        )

    def mount_if_needed(self) -> None:
        """Plainly, if it is not mounted."""
        self.vm.sh(f"mountpoint -q {RESCTRL} || mount -t resctrl resctrl {RESCTRL}")

    def umount_if_needed(self) -> None:
        self.vm.sh(f"! mountpoint -q {RESCTRL} || umount {RESCTRL}")

    def umount(self) -> None:
        """As an operator does while perphd measures, which keeps counters open until it sees that the mount is gone."""
        self.vm.sh(f"umount -l {RESCTRL}")

    def remount(self, options: str = "") -> None:
        self.umount()
        self.mount(options)

    def read(self, path: str) -> str:
        return self.vm.sh(f"cat {RESCTRL}/{path}")

    def groups(self) -> list[str]:
        """Control groups but for the default one."""
        told = self.vm.sh(f"cd {RESCTRL} && ls -d */ 2>/dev/null; true").split()
        return [name.rstrip("/") for name in told if name not in ("info/", "mon_data/", "mon_groups/")]

    def own_groups(self) -> list[str]:
        return [name for name in self.groups() if name.startswith(OWN)]

    def values(self, group: str = "") -> dict[str, dict[int, int]]:
        """Masks and bandwidth of a group, by resource and domain."""
        found: dict[str, dict[int, int]] = {}
        for line in self.read(f"{group}/schemata".lstrip("/")).splitlines():
            name, _, rest = line.strip().partition(":")
            parts = (part.partition("=") for part in rest.split(";"))
            base = 10 if name == "MB" else 16
            found[name] = {int(domain): int(value, base) for domain, _, value in parts}
        return found

    def group_of(self, work: str) -> str:
        """The control group of a unit's main process; the default one is empty."""
        pid = self.vm.sh(f"systemctl show -p MainPID --value {work}")
        told = self.vm.sh(f"cat /proc/{pid}/cpu_resctrl_groups").splitlines()[0]
        return told.removeprefix("res:").strip("/")

    def counters_of(self, work: str) -> str:
        """The mon_data of the group, control or monitor group, that a unit's main process is counted in."""
        pid = self.vm.sh(f"systemctl show -p MainPID --value {work}")
        told = self.vm.sh(f"cat /proc/{pid}/cpu_resctrl_groups").splitlines()
        control, monitor = (line.partition(":")[2].strip("/ ") for line in told)
        parts = [control] if control else []
        parts += ["mon_groups", monitor] if monitor else []
        return "/".join([*parts, "mon_data"])

    def limits_of(self, work: str, beside: str = "app") -> tuple[float, float]:
        """What a unit may have: the mean share of the ways, and of the bandwidth, over the domains of an application.

        These are where its processors are now; perphd narrows nobody elsewhere.
        """
        values, whole = self.values(self.group_of(work)), self.values()
        full = max(mask for name, found in whole.items() if name != "MB" for mask in found.values())
        here = self.domains_of(beside)
        masks = [
            found[at] for name, found in values.items() if name != "MB" for at in here.intersection(found)
        ]
        ways = sum(mask.bit_count() for mask in masks) / len(masks) / full.bit_count()
        bandwidth = values.get("MB", {})
        shares = [min(100, bandwidth[at]) / 100 for at in here.intersection(bandwidth)]
        return ways, sum(shares) / len(shares) if shares else 1.0

    def domains_of(self, work: str) -> set[int]:
        """The domains of the processors that a unit's main process may run on now."""
        pid = self.vm.sh(f"systemctl show -p MainPID --value {work}")
        told = self.vm.sh(f"sed -n 's/^Cpus_allowed_list:\\s*//p' /proc/{pid}/status")
        cpus: set[int] = set()
        for part in told.split(","):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
        return {domain for domain, there in SOCKETS.items() if there & cpus}

    def is_narrowed(self, work: str = "hog", beside: str = "app") -> bool:
        """Whether batch's caches are confined where an application runs, as the kernel has it."""
        return self.limits_of(work, beside)[0] <= NARROW

    def outside(self, work: str, group: str) -> int:
        """Threads of a unit that are not in this control group."""
        inside = set(self.read(f"{group}/tasks").split())
        pids = f"cat /sys/fs/cgroup$(systemctl show -p ControlGroup --value {work})/cgroup.threads"
        return len(set(self.vm.sh(pids).split()) - inside)

    # -- what perphd says ---------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.vm.sh("perphctl status --json", 120.0)))

    def workload(self, name: str) -> dict[str, Any]:
        return next(dict(one) for one in self.status()["workloads"] if one["spec"]["name"] == name)

    def doctor(self) -> dict[str, tuple[bool, str]]:
        """Every capability: is it there, and what is said of it."""
        told = json.loads(self.vm.sh("perphctl doctor --json"))
        return {one["name"]: (one["present"], one["detail"]) for one in told["capabilities"]}

    def now_s(self) -> float:
        """The machine's monotonic time, as samples have it."""
        return float(self.vm.sh("cut -d ' ' -f 1 /proc/uptime"))

    def rounds_without_occupancy(self, name: str, since_s: float) -> int:
        """So many samples of a workload since then lack its cache occupancy, up to the first that has it."""
        asked = (
            f"SELECT llc_occupancy_bytes IS NULL AS lacks FROM samples WHERE workload = '{name}' AND at_s > {since_s} "
            "ORDER BY at_s"
        )
        lacks = [bool(row["lacks"]) for row in self._query(asked)]
        assert not all(lacks), f"{name} is not measured: {len(lacks)} samples"
        return lacks.index(False)

    def _query(self, asked: str) -> list[dict[str, Any]]:
        told = json.loads(self.vm.sh(f"perphctl query --json {shlex.quote(asked)}"))
        return [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]

    def samples(self, name: str, from_s: float, to_s: float) -> list[dict[str, float]]:
        """What perphd has stored of a workload whose whole interval lies between these monotonic seconds."""
        asked = (
            "SELECT at_s, interval_s, mbw_bytes_per_s, llc_occupancy_bytes FROM samples "
            f"WHERE workload = '{name}' AND at_s - interval_s >= {from_s} AND at_s <= {to_s} "
            "AND mbw_bytes_per_s IS NOT NULL AND llc_occupancy_bytes IS NOT NULL ORDER BY at_s"
        )
        return [{key: float(value) for key, value in row.items()} for row in self._query(asked)]

    def latency_ms(self, name: str = "app") -> float:
        """What the application itself measures."""
        return float(self.vm.sh(f"sed -n 's/^latency_p95_ms = //p' /run/rdt/{name}"))

    def said(self) -> str:
        """Everything that status says of trouble: problems, of a workload's knobs, and of the whole daemon."""
        status = self.status()
        told = [status["problems"]]
        told += [
            [one[key] for key in ("problem", "limited", "not_enforceable")] for one in status["workloads"]
        ]
        return json.dumps(told)

    def restored(self) -> bool:
        """Nothing of perphd's is left in the kernel: neither groups nor confined processors."""
        cpus = self.vm.sh(
            "cat /sys/fs/cgroup/*.slice/*.service/cpuset.cpus /sys/fs/cgroup/*.slice/cpuset.cpus 2>/dev/null; true"
        )
        return not self.own_groups() and set(cpus.split()) <= {"0-3"}

    def is_protected(self, name: str = "app") -> bool:
        return self.latency_ms(name) <= TARGET_MS

    def wait_until(self, so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
        """Until it is so; the seconds that took. Fails with perphd's log."""
        began_s = time.monotonic()
        while not so():
            if time.monotonic() - began_s > patience_s:
                raise AssertionError(f"{what} within {patience_s:.0f} s\n{self.trouble()}")
            time.sleep(1.0)
        return time.monotonic() - began_s

    def wait_for_protection(self, why: str, *names: str) -> float:
        """Until the applications meet their objectives because batch's caches and bandwidth are narrowed."""
        return self.wait_until(
            lambda: all(self.is_protected(name) for name in names or ("app",)), f"no protection {why}"
        )

    def stays(self, so: Callable[[], bool], seconds: float, what: str) -> None:
        """It is so all the time."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            assert so(), f"{what}\n{self.trouble()}"
            time.sleep(1.0)

    def trouble(self) -> str:
        """What helps to understand a failure."""
        parts = (
            "journalctl -u perphd -n 60 --no-pager -o short-precise",
            "perphctl status",
            f"grep . {RESCTRL}/*/schemata",
        )
        return "\n".join(self.vm.try_(f"{part} 2>&1", 120.0).stdout for part in parts)

    def cursor(self) -> str:
        return self.vm.sh("journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p'")

    def log(self, cursor: str) -> str:
        return self.vm.sh(f"journalctl -u perphd --no-pager -q -o cat --after-cursor={shlex.quote(cursor)}")

    # -- others -------------------------------------------------------------------------------------------

    def others_lock(self, seconds: float) -> None:
        """An ordinary user holds the tree's lock from now on for so long."""
        nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
        self.vm.sh(f"{nobody} flock -x {RESCTRL} sleep {seconds:g} >/dev/null 2>&1 & sleep 0.5")

    def processors(self, cpus: Iterable[int], *, on: bool) -> None:
        self.vm.sh("; ".join(f"echo {int(on)} > /sys/devices/system/cpu/cpu{cpu}/online" for cpu in cpus))


def compiled(folder: Path) -> Path:
    """The program that declares its traffic, for the machine."""
    program = folder / "traffic"
    subprocess.run(
        ["gcc", "-O1", "-static", "-Wall", "-o", str(program), str(KIT / "traffic.c"), "-lpthread"],
        check=True,
    )
    return program
