"""Detects a restart, in which systemd stops this process only to start it again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any, Final

from perphd.domain.errors import KernelError
from perphd.host.fs import KernelFs, read_text
from perphd.host.systemd import is_systemd

OWN_CGROUPS: Final = "/proc/self/cgroup"
PATIENCE_S: Final = 8.0
"""Seconds to wait for systemctl; without an answer by then, settings are restored instead of kept."""


def own_unit(fs: KernelFs) -> str:
    """The service that this process belongs to; empty if it belongs to none."""
    try:
        paths = [line.split(":", 2)[2] for line in read_text(fs, OWN_CGROUPS).splitlines()]
    except (KernelError, IndexError):
        return ""
    names = [path.rsplit("/", 1)[-1] for path in paths]
    return next((name for name in names if name.endswith(".service")), "")


def is_restarting(fs: KernelFs, run: Callable[..., Any] = subprocess.run) -> bool:
    """True if systemd has a job to restart this service; False if not, or if it does not answer in time."""
    unit = own_unit(fs)
    if not unit or not is_systemd(fs):
        return False
    command = ["systemctl", "list-jobs", "--no-legend", "--plain", "--no-pager"]
    try:
        said = run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    jobs = [line.split() for line in said.splitlines()]
    return any(len(job) >= 3 and job[1] == unit and job[2] == "restart" for job in jobs)
