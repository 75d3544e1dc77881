"""Probes the daemon's surroundings: kernel release, service manager, log, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from perphd.domain.capability import Area, Capability
from perphd.host.capabilities.facts import release, release_text
from perphd.host.fs import KernelFs, text_or_empty
from perphd.host.systemd import is_systemd

MIN_OPEN_FILES: Final = 4096
"""Descriptors for 200 workloads: about 20 each (files, and an event group on each of a few CPUs)."""

_OPEN_FILES = re.compile(r"^Max open files\s+([0-9]+|unlimited)\s+([0-9]+|unlimited)", re.MULTILINE)


def probe_service(fs: KernelFs, environment: Mapping[str, str]) -> Iterator[Capability]:
    """All capabilities of the daemon's own surroundings, in display order."""
    yield _kernel(fs)
    yield from _service(fs, environment)
    yield _open_files(fs)


def _kernel(fs: KernelFs) -> Capability:
    text = release_text(fs)
    if release(fs) >= (5, 2):
        return Capability("kernel", Area.SERVICE, True, f"Linux {text}")
    return Capability(
        "kernel",
        Area.SERVICE,
        False,
        f"Linux {text or 'of unknown version'}",
        "untested: cgroup v2's cpuset and PSI triggers came with Linux 5.0 to 5.2",
        "Linux 5.15 or newer; Debian 12 has 6.1",
    )


def _service(fs: KernelFs, environment: Mapping[str, str]) -> Iterator[Capability]:
    if is_systemd(fs):
        yield Capability(
            "systemd", Area.SERVICE, True, "systemd is the service manager (/run/systemd/system)"
        )
    else:
        yield Capability(
            "systemd",
            Area.SERVICE,
            False,
            "no /run/systemd/system: systemd is not PID 1",
            "perphd writes cgroups directly, and another program must start and restart perphd",
            "none is needed",
        )
    if environment.get("NOTIFY_SOCKET"):
        yield Capability("notify", Area.SERVICE, True, f"NOTIFY_SOCKET={environment['NOTIFY_SOCKET']}")
    else:
        yield Capability(
            "notify",
            Area.SERVICE,
            False,
            "NOTIFY_SOCKET is not set",
            "no readiness and no watchdog",
            "start perphd as the unit perphd.service (Type=notify)",
        )
    if fs.exists("/run/systemd/journal/socket"):
        yield Capability("journald", Area.SERVICE, True, "/run/systemd/journal/socket")
    else:
        yield Capability(
            "journald",
            Area.SERVICE,
            False,
            "no /run/systemd/journal/socket",
            "the log goes to standard error only",
            "run systemd-journald",
        )


def _open_files(fs: KernelFs) -> Capability:
    found = _OPEN_FILES.search(text_or_empty(fs, "/proc/self/limits"))
    if found is None:
        return Capability(
            "open-files",
            Area.SERVICE,
            False,
            "/proc/self/limits does not show RLIMIT_NOFILE",
            "the number of workloads that can be watched is unknown",
            "mount procfs on /proc",
        )
    soft, hard = found.groups()
    detail = f"RLIMIT_NOFILE {soft}, may be raised to {hard}"
    if hard == "unlimited" or int(hard) >= MIN_OPEN_FILES:
        return Capability("open-files", Area.SERVICE, True, detail)
    return Capability(
        "open-files",
        Area.SERVICE,
        False,
        detail,
        "the descriptors do not suffice for the counters of many workloads",
        f"LimitNOFILE={MIN_OPEN_FILES} or more in the unit",
    )
