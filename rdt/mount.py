"""Finds resctrl's mount, and mounts resctrl on explicit request only.

A kernel has one resctrl, and its mount options (code/data prioritisation, bandwidth in MBps) change what
every program sees. Mounting is therefore an operator's decision. Unmounting removes all groups of all
programs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from rdt.access import decoded
from rdt.errors import ResctrlError, Unsupported, from_oserror
from rdt.fs import Fs, RealFs

DEFAULT_ROOT = "/sys/fs/resctrl"
_OCTAL = re.compile(r"\\([0-7]{3})")
_CPU_FLAGS = ("cat_l3", "cat_l2", "mba", "cqm_llc", "cqm_mbm_total", "cqm_mbm_local", "cdp_l3", "cdp_l2")


@dataclass(frozen=True, slots=True)
class Mount:
    """A resctrl mount: its path and resctrl's own options, without ``rw`` and the like."""

    path: str
    options: frozenset[str] = frozenset()

    @property
    def cdp(self) -> bool:
        """True if L3 has separate masks for code and data."""
        return "cdp" in self.options

    @property
    def cdpl2(self) -> bool:
        """True if L2 has separate masks for code and data."""
        return "cdpl2" in self.options

    @property
    def mba_mbps(self) -> bool:
        """True if MB values are not percentages, but targets in MBps, kept by the kernel's own controller."""
        return "mba_MBps" in self.options

    @property
    def debug(self) -> bool:
        """True if groups show their hardware ids (kernel 6.8 and later)."""
        return "debug" in self.options


def find_mount(fs: Fs) -> Mount | None:
    """The resctrl mount listed in /proc/mounts; None if there is none, or the file cannot be read."""
    try:
        text = decoded(fs.read("/proc/mounts"))
    except OSError:
        return None
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] == "resctrl":
            path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1])
            known = {"cdp", "cdpl2", "mba_MBps", "debug"}
            return Mount(path, frozenset(known & set(fields[3].split(","))))
    return None


@dataclass(frozen=True, slots=True)
class Support:
    """Whether this kernel and CPU could offer resctrl, mounted or not."""

    kernel: bool
    cpu_flags: frozenset[str]

    def __str__(self) -> str:
        if not self.kernel:
            return "the kernel has no resctrl (built without CONFIG_X86_CPU_RESCTRL, or the CPU lacks the feature)"
        flags = " ".join(sorted(self.cpu_flags)) or "/proc/cpuinfo shows no CPU flag of resctrl"
        return f"the kernel has resctrl ({flags})"


def support(fs: Fs) -> Support:
    """Read resctrl support from /proc/filesystems and the first CPU's flags in /proc/cpuinfo."""

    def text_of(path: str) -> str:
        try:
            return decoded(fs.read(path))
        except OSError:
            return ""

    kernel = any(line.split()[-1:] == ["resctrl"] for line in text_of("/proc/filesystems").splitlines())
    flags = next((line for line in text_of("/proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    return Support(kernel, frozenset(_CPU_FLAGS) & frozenset(flags.partition(":")[2].split()))


def mount_options(
    *, cdp: bool = False, cdpl2: bool = False, mba_mbps: bool = False, debug: bool = False
) -> tuple[str, ...]:
    """The kernel's names of the given mount options."""
    wanted = (("cdp", cdp), ("cdpl2", cdpl2), ("mba_MBps", mba_mbps), ("debug", debug))
    return tuple(name for name, on in wanted if on)


def mount_command(options: tuple[str, ...] = (), root: str = DEFAULT_ROOT) -> str:
    """The shell command that mounts resctrl."""
    return " ".join(
        ["mount", "-t", "resctrl", *(["-o", ",".join(options)] if options else []), "resctrl", root]
    )


def mount_resctrl(
    options: tuple[str, ...] = (),
    root: str = DEFAULT_ROOT,
    *,
    fs: Fs | None = None,
    syscall: Callable[[str, str], None] | None = None,
) -> Mount:
    """Mount resctrl with exactly these options (``mount_options``), unless it is mounted like this already.

    Raises:
        Unsupported: the kernel has no resctrl, or refuses an option that it or the CPU does not support.
        Busy: it is already mounted elsewhere or with other options. It is never remounted.
        Denied: the right to mount is missing (CAP_SYS_ADMIN).
    """
    files = fs or RealFs()
    present = find_mount(files)
    if present == Mount(root, frozenset(options)):
        return present
    value = ",".join(options)
    try:
        (syscall or _mount_system_call)(root, value)
    except OSError as error:
        raise _mount_error(error, root, value, files, present) from error
    return Mount(root, frozenset(options))


def _mount_error(error: OSError, root: str, value: str, fs: Fs, present: Mount | None) -> ResctrlError:
    if error.errno in (errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP):
        can = support(fs)
        reason = f"this kernel or CPU does not support an option; {can}" if can.kernel else str(can)
        return Unsupported(root, doing="mounting", value=value, errno=error.errno, reason=reason)
    reason = ""
    if present is not None:
        shown = ",".join(sorted(present.options)) or "no options"
        reason = f"resctrl is mounted at {present.path} with {shown}; unmounting it removes all groups"
    return from_oserror(error, root, doing="mounting", value=value, reason=reason)


def _mount_system_call(root: str, options: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    nosuid_nodev_noexec = 2 | 4 | 8
    data = options.encode() if options else None
    if libc.mount(b"resctrl", os.fsencode(root), b"resctrl", ctypes.c_ulong(nosuid_nodev_noexec), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), root)
