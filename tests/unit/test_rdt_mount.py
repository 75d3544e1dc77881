"""Mounting: only when asked for, never over what others have mounted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rdt import (
    Busy,
    Denied,
    Mount,
    RealFs,
    Unsupported,
    find_mount,
    mount_command,
    mount_options,
    mount_resctrl,
)

MOUNTED = "sysfs /sys sysfs rw 0 0\nresctrl /sys/fs/resctrl resctrl rw,relatime,cdp 0 0\n"


def host(
    root: Path, mounts: str = "", filesystems: str = "nodev\tresctrl\n", flags: str = "cat_l3 mba"
) -> RealFs:
    (root / "proc").mkdir()
    (root / "proc/mounts").write_text(mounts)
    (root / "proc/filesystems").write_text(filesystems)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
    return RealFs(root)


def refusing(number: int):
    def call(root: str, options: str) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_the_mount_and_its_options_are_found(tmp_path):
    assert find_mount(host(tmp_path, MOUNTED)) == Mount("/sys/fs/resctrl", frozenset({"cdp"}))
    assert find_mount(RealFs(tmp_path / "nothing")) is None


def test_options_have_the_kernels_names():
    assert mount_options(cdp=True, mba_mbps=True, debug=True) == ("cdp", "mba_MBps", "debug")
    assert mount_command(("cdp",), "/r") == "mount -t resctrl -o cdp resctrl /r"
    assert mount_command() == "mount -t resctrl resctrl /sys/fs/resctrl"


def test_it_is_mounted_with_exactly_what_was_asked(tmp_path):
    asked = []
    made = mount_resctrl(
        ("cdp", "debug"), fs=host(tmp_path), syscall=lambda root, options: asked.append((root, options))
    )
    assert asked == [("/sys/fs/resctrl", "cdp,debug")]
    assert made.cdp
    assert made.debug


def test_mounted_alike_already_is_fine_and_nothing_is_done(tmp_path):
    assert mount_resctrl(("cdp",), fs=host(tmp_path, MOUNTED), syscall=refusing(errno.EBUSY)).cdp


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EBUSY, Busy, "mounted at /sys/fs/resctrl with cdp"),
        (errno.EPERM, Denied, "EPERM"),
        (errno.EINVAL, Unsupported, r"this kernel or CPU does not support.*cat_l3 mba"),
    ],
)
def test_why_it_cannot_be_mounted(tmp_path, number, kind, words):
    with pytest.raises(kind, match=words):
        mount_resctrl(("mba_MBps",), fs=host(tmp_path, MOUNTED), syscall=refusing(number))


def test_a_kernel_without_it(tmp_path):
    with pytest.raises(Unsupported, match="the kernel has no resctrl"):
        mount_resctrl(fs=host(tmp_path, filesystems="nodev\tsysfs\n"), syscall=refusing(errno.ENODEV))
