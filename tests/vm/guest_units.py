"""Runs in the guest: sets a unit through systemd as the daemon does, and prints what the kernel shows at every step.

Needs nothing but Python and systemd there. Prints one JSON object a line: ``step`` and what was read.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from perphd.domain.allocation import IDLE, IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.systemd_bus import BusctlBus
from perphd.host.systemd_fs import refusal, unit_files
from perphd.isolation import Executor, Journal, restore

UNIT = "perphd-vm-units.service"
SLICE = "perphdvm.slice"
"""Its own: no other unit there needs a controller."""
AT = f"/sys/fs/cgroup/{SLICE}/{UNIT}"
FILES = ("cpuset.cpus", "cpuset.cpus.effective", "cpu.weight", "cpu.idle", "cpu.max", "memory.low", "memory.high",
         "io.max", "io.weight", "cgroup.freeze")  # fmt: skip
DROP_INS = ("/run/systemd/system.control", "/run/systemd/transient")


def shell(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def read(name: str) -> str | None:
    """What the kernel shows there; None if it is not there, or goes meanwhile: systemd takes controllers away later."""
    try:
        return Path(AT, name).read_text().strip()
    except OSError:
        return None


def say(step: str, **found: object) -> None:
    files = {name: text for name in FILES if (text := read(name)) is not None}
    drop_ins = [path for top in DROP_INS for path in Path(top).glob(f"{UNIT}.d/*")]
    found["drop_ins"] = [
        str(path)
        for path in drop_ins
        if any(line[0] != "#" for line in path.read_text().splitlines() if line)
    ]
    found["needs_reload"] = shell("systemctl", "show", UNIT, "--value", "-p", "NeedDaemonReload")
    print(json.dumps({"step": step, "files": files, **found}), flush=True)


async def main() -> None:
    disk = next(path for path in Path("/sys/block").iterdir() if path.name.startswith(("vd", "sd")))
    number = (disk / "dev").read_text().strip()
    target = {
        "job": Settings(
            cpus=CpuSet.of([1]),
            cpu_weight=20,
            cpu_max_cores=0.5,
            memory_high_bytes=512 << 20,
            memory_low_bytes=8 << 20,
            io_max=(IoLimit(number, read_bytes=10 << 20, write_ops=500),),
        )
    }
    specs = [WorkloadSpec("job", Kind.BATCH, f"/{SLICE}/{UNIT}")]
    state = Path(tempfile.mkdtemp(prefix="perphd-units-"))
    fs = RealFs()
    hierarchies = discover(fs)
    written = unit_files(fs, hierarchies, BusctlBus())
    say("found", written=type(written).__name__)
    with Journal(state) as journal:
        executor = Executor(
            written,
            hierarchies,
            journal,
            refuse=lambda cgroup: refusal(written, hierarchies, cgroup),
            deadline_s=60.0,
            in_thread=False,
        )
        say("enforceable", knobs=sorted(executor.enforceable(specs[0])[0]))

        async def go(step: str, wanted: dict[str, Settings]) -> None:
            began = time.monotonic()
            applied = await executor.apply(executor.plan(wanted, specs))
            say(
                step,
                ok=applied.ok,
                failed=str(applied.failed or ""),
                writes=len(applied.written),
                left=len(executor.plan(wanted, specs).writes),
                conflicts=len(executor.conflicts()),
                took_s=round(time.monotonic() - began, 2),
                blocked=executor.blocked("job"),
            )

        await go("set", target)
        idle = Settings(cpu_weight=IDLE, cpus=CpuSet.of([1]))
        await go("idle", {"job": idle})
        # Nothing else changes meanwhile: to a unit that is frozen, systemd applies nothing from 256 on.
        await go("frozen", {"job": replace(idle, frozen=True)})
        await go("thawed", {"job": idle})
        await go("elsewhere", {"job": Settings(cpus=CpuSet.of([0]))})
        shell("systemctl", "daemon-reload")
        await go("after daemon-reload", {"job": Settings(cpus=CpuSet.of([0]))})
        shell("systemctl", "restart", UNIT)
        await go("after a restart of the unit", {"job": Settings(cpus=CpuSet.of([0]))})
        await go("given back", {})
        await go("set again", target)
        executor.close()
    report = restore(fs, state)
    say(
        "restored without the daemon",
        complete=report.complete,
        report=str(report),
        left=str(restore(fs, state)),
    )


if __name__ == "__main__":
    # A unit of its own file, so that it can be started again and its run-time drop-ins are where they always are.
    unit = Path("/run/systemd/system", UNIT)
    unit.write_text(f"[Service]\nSlice={SLICE}\nExecStart=/usr/bin/sleep 100000\n")
    shell("systemctl", "daemon-reload")
    shell("systemctl", "start", UNIT)
    try:
        asyncio.run(main())
    finally:
        shell("systemctl", "stop", UNIT)
        unit.unlink()
        shell("systemctl", "daemon-reload")
    sys.exit(0)
