"""Facts that several probes need: capabilities of this process, the kernel's release, a file's text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perphd.domain.errors import KernelError
from perphd.host.cgroup.hierarchy import Hierarchy
from perphd.host.fs import KernelFs, text_or_empty

CAP_DAC_OVERRIDE: Final = 1
CAP_SYS_ADMIN: Final = 21
CAP_SYS_RESOURCE: Final = 24
CAP_PERFMON: Final = 38

_CAP_EFF = re.compile(r"^CapEff:\s*([0-9a-fA-F]{1,16})$", re.MULTILINE)
_EUID = re.compile(r"^Uid:\s*[0-9]{1,10}\s+([0-9]{1,10})\s", re.MULTILINE)
_RELEASE = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def has_capability(fs: KernelFs, number: int) -> bool:
    """True if this capability(7) is effective for this process, according to /proc/self/status."""
    found = _CAP_EFF.search(text_or_empty(fs, "/proc/self/status"))
    return found is not None and bool(int(found[1], 16) >> number & 1)


def is_root(fs: KernelFs) -> bool:
    """True if this process's effective user is root, according to /proc/self/status."""
    found = _EUID.search(text_or_empty(fs, "/proc/self/status"))
    return found is not None and int(found[1]) == 0


def release_text(fs: KernelFs) -> str:
    """The kernel's release, such as ``6.1.0-50-amd64``; empty if unknown."""
    return text_or_empty(fs, "/proc/sys/kernel/osrelease")


def release(fs: KernelFs) -> tuple[int, int]:
    """The kernel's major and minor version; (0, 0) if unknown."""
    found = _RELEASE.match(release_text(fs))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def first_directories(fs: KernelFs, hierarchy: Hierarchy) -> Iterator[str]:
    """The root of a tree and its children. The children are included because v2's root lacks some of their files."""
    yield hierarchy.mount
    try:
        names = fs.listdir(hierarchy.mount)
    except KernelError:
        return
    for name in names:
        if fs.exists(f"{hierarchy.mount}/{name}/cgroup.procs"):
            yield f"{hierarchy.mount}/{name}"
