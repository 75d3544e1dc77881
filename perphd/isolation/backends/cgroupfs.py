"""Writes one value to a cgroup file, and compares values read back.

Needs neither journal nor daemon, so enforcing and restoring use the same rules. Units and traffic classes are read and
written by the same functions; ``perphd.isolation.backends`` covers the differences.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from enum import Enum, auto
from posixpath import basename, dirname
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, Full, Gone, Invalid, KernelError, ParseError
from perphd.host.cgroup import lines
from perphd.host.cgroup.group import parent_list, whole_list
from perphd.host.cgroup.knobs import EMPTY_ALLOWED, same
from perphd.host.fs import Identity, KernelFs, read_text, write_within

_DISKS: Final = "/sys/dev/block"


class FoundCgroup(Enum):
    """Whether the known cgroup still exists at its path."""

    SAME = auto()
    REPLACED = auto()
    GONE = auto()
    UNKNOWN = auto()


def found_at(fs: KernelFs, path: str, identity: Identity | None) -> FoundCgroup:
    """Whether this file's cgroup still exists at its path. ``identity``: the known cgroup's; None accepts any."""
    try:
        now = fs.identity(dirname(path))
    except Gone:
        return FoundCgroup.GONE
    except KernelError:
        return FoundCgroup.UNKNOWN
    return FoundCgroup.SAME if identity in (None, now) else FoundCgroup.REPLACED


def put(fs: KernelFs, path: str, data: bytes, identity: Identity | None = None) -> str:
    """Write one value and return the text read back. ``identity``: the directory that must contain the file.

    An empty value is written as an empty line where that means "no list of its own", and only there. If the kernel
    refuses because the cgroup has processes, ``whole_list`` is written instead. A file with one line per disk takes one
    write for every disk that differs.

    Raises:
        KernelError: the kernel refused, or reading back failed.
        ParseError: an empty value for a file where it would be destructive.
    """
    if lines.is_keyed(path):
        _put_lines(fs, path, data.decode(), identity)
    elif not data.strip():
        if basename(path) not in EMPTY_ALLOWED:
            raise ParseError(f"a value for {path}", "", "a value: an empty line is destructive there")
        try:
            write_within(fs, path, b"\n", identity)
        except (Full, Busy):
            whole = whole_list(fs, path)
            if not whole:
                raise
            write_within(fs, path, f"{whole}\n".encode(), identity)
    else:
        write_within(fs, path, data, identity)
    return fs.read(path).decode(errors="replace").rstrip("\n")


def _put_lines(fs: KernelFs, path: str, text: str, identity: Identity | None) -> None:
    for line in lines.steps(path, text, read_text(fs, path)):
        try:
            write_within(fs, path, f"{line}\n".encode(), identity)
        except Gone as exc:
            if exc.errno != errno.ENODEV:
                raise
            advice = "no such device (lsblk -d shows the numbers of disks)"
            raise Invalid(path, "write", exc.errno, line, advice=advice) from exc


def without_gone_disks(fs: KernelFs, path: str, text: str, now: str) -> str:
    """An earlier text of a file with one line per disk, without disks that are gone. ``now``: the present text.

    The kernel drops the line of a disk that is removed, and refuses to write it.
    """
    if text == now or not lines.is_keyed(path) or basename(path) == lines.EGRESS:
        return text
    values, have = lines.table(path, text), lines.table(path, now)
    gone = {disk for disk in values if disk not in have and is_gone_disk(fs, disk)}
    return lines.text_of({disk: values[disk] for disk in values if disk not in gone}) if gone else text


def is_gone_disk(fs: KernelFs, disk: str) -> bool:
    """True if the host has no disk with this number (``MAJOR:MINOR``)."""
    return disk != lines.DEFAULT_KEY and not fs.exists(f"{_DISKS}/{disk}") and fs.exists(_DISKS)


def is_original(path: str, original: bytes, raw: bytes) -> bool:
    """True if the file has its original content; the order of per-disk lines is ignored."""
    if lines.is_keyed(path):
        return lines.equal(path, original.decode(errors="replace"), raw.decode(errors="replace"))
    return raw.rstrip(b"\n") == original.rstrip(b"\n")


def is_free(fs: KernelFs, path: str, wanted: str, now: str) -> bool:
    """True if ``now`` has the parent's whole list and no list was wanted, which is equivalent (see ``put``)."""
    if wanted or lines.is_keyed(path) or basename(path) not in EMPTY_ALLOWED:
        return False
    try:
        around = CpuSet.parse(parent_list(fs, path))
        return bool(around) and around <= CpuSet.parse(now)
    except ParseError:
        return False


def is_own(path: str, found: str, original: str, intents: Iterable[str]) -> bool:
    """True if perphd may have left this text: one of its intents, or a mixture of them in a per-disk file."""
    if lines.is_keyed(path):
        return lines.is_mixture(path, found, (original, *intents))
    return any(same(path, value, found) for value in intents)


def is_what_is_left(expected: str, now: str, around: str) -> bool:
    """True if a list lost only CPUs or nodes that went offline (cgroup v1)."""
    if not around or not now:
        return False
    try:
        return CpuSet.parse(now) == CpuSet.parse(expected) & CpuSet.parse(around)
    except ParseError:
        return False
