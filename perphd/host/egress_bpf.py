"""BPF programs that assign the packets of a control group to a traffic class.

A program of four instructions (type cgroup_skb, attached for egress) writes the class into the packet's
priority, which HTB interprets as the class without any filter. It applies to all existing and new sockets of
the group and its descendants, and vanishes with the cgroup. The link that keeps it attached is pinned in
``/sys/fs/bpf/perphd``, so that it outlives perphd and ``rm`` detaches it. See bpf(2), and htb_classify() in
the kernel for the meaning of priorities.

The priority is missing from packets of AF_PACKET sockets, and from packets forwarded for other network
namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from perphd.domain.errors import Full, KernelError, kernel_error
from perphd.host.bpf import syscall
from perphd.host.bpf.assembler import Assembler, Register
from perphd.host.bpf.syscall import Attach, Command
from perphd.host.fs import not_the_same

PINS: Final = "/sys/fs/bpf/perphd"
"""Directory of the pinned links, in files named KEY-MINOR."""
_PRIORITY_AT: Final = 32  # offset in struct __sk_buff
_MINOR_STEP: Final = 0x10
"""Minors end in four zero bits: on devices without HTB, that is the default packet priority."""
_INFO: Final = struct.Struct("=IIIIQI")  # bpf_link_info: type, id, prog_id, padding, cgroup_id, attach_type


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned link. ``key``: hash of the cgroup's path. ``minor``: minor number of the class."""

    key: str
    minor: int


class Programs(Protocol):
    """Interface of programs that assign cgroups to classes. All methods raise KernelError classes."""

    def refusal(self) -> str:
        """Reason why programs cannot be used here; empty if they can."""

    def were_used(self) -> bool:
        """True if a link may have been pinned since boot."""

    def pins(self) -> tuple[Pin, ...]:
        """All pinned links."""

    def cgroup_id(self, pin: Pin) -> int:
        """Inode of the program's cgroup; 0 if that cgroup or the pin is gone."""

    def attach(self, key: str, directory: str, inode: int, major: int) -> Pin:
        """Assign this cgroup's packets to its own class; replaces the pin of ``key`` and keeps its minor.

        Raises Gone if the directory is missing, or is not the one with this inode.
        """

    def detach(self, pin: Pin) -> None:
        """Detach a program; a missing pin is ignored."""


def key_of(cgroup: str) -> str:
    """The name under which a cgroup's path is pinned: 16 hexadecimal digits."""
    return hashlib.sha256(cgroup.encode()).hexdigest()[:16]


def program(major: int, minor: int) -> bytes:
    """The program ``skb->priority = major:minor; return 1`` (let the packet pass)."""
    code = Assembler()
    code.move(Register.R2, major << 16 | minor, bits=32)
    code.store(4, Register.R1, _PRIORITY_AT, Register.R2)
    code.move(Register.R0, 1, bits=32)
    code.exit()
    return code.encode()


class BpfPrograms:
    """Programs on the running kernel. ``directory``: folder of the pins in a mounted bpffs; created when needed."""

    def __init__(self, directory: str = PINS) -> None:
        self._directory = directory

    def refusal(self) -> str:
        """See ``Programs``; tries to load a program."""
        above = os.path.dirname(self._directory)
        if not _is_bpffs(above):
            return f"no BPF file system is mounted on {above} (mount -t bpf bpf {above})"
        if not os.access(self._directory if os.path.isdir(self._directory) else above, os.W_OK):
            return (
                f"neither {above} nor {self._directory} can be written; a unit needs the latter before its start, "
                f"ReadWritePaths={self._directory}, CAP_BPF and SystemCallFilter=bpf"
            )
        try:
            os.close(_load(0, 0))
        except KernelError as exc:
            return str(exc)
        return ""

    def were_used(self) -> bool:
        """See ``Programs``."""
        return os.path.isdir(self._directory)

    def pins(self) -> tuple[Pin, ...]:
        """See ``Programs``."""
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return ()
        except OSError as exc:
            raise kernel_error(exc, self._directory, "list") from exc
        found = []
        for name in names:
            key, _, minor = name.partition("-")
            with suppress(ValueError):
                found.append(Pin(key, int(minor, 16)))
        return tuple(found)

    def cgroup_id(self, pin: Pin) -> int:
        """See ``Programs``."""
        path = ctypes.create_string_buffer(self._path(pin).encode())
        try:
            fd = syscall.call(Command.OBJ_GET, struct.pack("=QII", ctypes.addressof(path), 0, 0))
        except FileNotFoundError:
            return 0
        except OSError as exc:
            raise kernel_error(exc, self._path(pin), "open") from exc
        info = ctypes.create_string_buffer(256)
        try:
            syscall.call(
                Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info))
            )
        except OSError as exc:
            raise kernel_error(exc, self._path(pin), "ask about") from exc
        finally:
            os.close(fd)
        return int(_INFO.unpack_from(info.raw)[4])

    def attach(self, key: str, directory: str, inode: int, major: int) -> Pin:
        """See ``Programs``."""
        known = self.pins()
        before = next((pin for pin in known if pin.key == key), None)
        pin = before or Pin(key, _free_minor(known, self._directory))
        fds: list[int] = []
        try:
            fds.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            if os.fstat(fds[0]).st_ino != inode:
                raise not_the_same(directory, "a BPF program")
            fds.append(_load(major, pin.minor))
            fds.append(syscall.create_link(fds[1], fds[0], Attach.EGRESS))
            Path(self._directory).mkdir(mode=0o700, exist_ok=True)
            if before is not None:
                self.detach(before)
            path = ctypes.create_string_buffer(self._path(pin).encode())
            syscall.call(Command.OBJ_PIN, struct.pack("=QII", ctypes.addressof(path), fds[2], 0))
        except OSError as exc:
            advice = "links to cgroups need Linux 5.7" if exc.errno == errno.EINVAL else ""
            raise kernel_error(exc, directory, "attach a BPF program", advice=advice) from exc
        finally:
            for fd in fds:
                os.close(fd)
        return pin

    def detach(self, pin: Pin) -> None:
        """See ``Programs``."""
        try:
            os.unlink(self._path(pin))
        except FileNotFoundError:
            return
        except OSError as exc:
            raise kernel_error(exc, self._path(pin), "remove") from exc

    def _path(self, pin: Pin) -> str:
        return f"{self._directory}/{pin.key}-{pin.minor:04x}"


def _free_minor(known: tuple[Pin, ...], where: str) -> int:
    taken = {pin.minor for pin in known}
    for minor in range(_MINOR_STEP, 0x10000, _MINOR_STEP):
        if minor not in taken:
            return minor
    raise Full(where, "find a free class", errno.ENOSPC)


def _load(major: int, minor: int) -> int:
    """Load the program; the caller closes the descriptor."""
    return syscall.load_program(program(major, minor), Attach.EGRESS, "perphd_egress")


def _is_bpffs(directory: str) -> bool:
    try:
        with open("/proc/thread-self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ") for line in file]
    except OSError:
        return False
    return any(len(words) > 2 and words[1] == directory and words[2] == "bpf" for words in lines)
