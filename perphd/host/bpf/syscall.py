"""bpf(2) through ctypes: programs, maps and links, with the verifier's log in the error.

The caller closes every descriptor. The kernel makes them close-on-exec, and an object without descriptor or
pin is freed: a link that is not pinned ends with the process in any case. See bpf(2) and
include/uapi/linux/bpf.h for the layouts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

from perphd.domain.errors import Unsupported, kernel_error

_NUMBERS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_LOG_BYTES: Final = 1 << 20
_SHOWN_LOG_LINES: Final = 6
_MOST_PROGRAMS: Final = 64
"""The kernel's maximum number of programs at one cgroup."""
ALLOW_MULTI: Final = 2
"""Flag of programs at a cgroup that allow further programs. Links always have it."""


class Command(IntEnum):
    """First argument of bpf(2)."""

    MAP_CREATE = 0
    PROG_LOAD = 5
    OBJ_PIN = 6
    OBJ_GET = 7
    OBJ_GET_INFO_BY_FD = 15
    PROG_QUERY = 16
    BTF_LOAD = 18
    LINK_CREATE = 28


class MapType(IntEnum):
    """Kinds of maps."""

    ARRAY = 2
    SK_STORAGE = 24


class Attach(IntEnum):
    """Attachment points of programs of type cgroup_skb."""

    INGRESS = 0
    EGRESS = 1


CGROUP_SKB: Final = 8
"""Type of programs that see the packets of a cgroup's sockets."""
NO_PREALLOC: Final = 1
MMAPABLE: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class AttachedProgram:
    """The programs at one cgroup: their ids and attachment flags."""

    programs: tuple[int, ...]
    flags: int

    @property
    def is_exclusive(self) -> bool:
        """True if a program is attached that allows no second one."""
        return bool(self.programs) and not self.flags & ALLOW_MULTI


def call(command: Command, attributes: bytes) -> int:
    """Call bpf(2).

    Raises:
        OSError: the kernel refuses the call.
        Unsupported: the call's number on this architecture is unknown.
    """
    return _call(command, ctypes.create_string_buffer(attributes, len(attributes)))


def _call(command: Command, attributes: ctypes.Array[ctypes.c_char]) -> int:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        advice = "perphd does not know the number of bpf(2) on this architecture"
        raise Unsupported("bpf(2)", platform.machine(), errno.ENOSYS, advice=advice)
    size = ctypes.c_uint(len(attributes))
    result = int(_libc().syscall(ctypes.c_long(number), ctypes.c_int(command), attributes, size))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def load_program(code: bytes, attach: Attach, name: str) -> int:
    """Load a program of type cgroup_skb.

    Raises:
        KernelError: the kernel refuses it; the detail is the end of the verifier's log, if there is one.
    """
    try:
        return _load(code, attach, name, None)
    except OSError as exc:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        if exc.errno not in (errno.EPERM, errno.ENOSYS):
            try:
                return _load(
                    code, attach, name, log
                )  # retry to get the log; succeeds only after a transient failure
            except OSError as again:
                exc = again
        permitted = exc.errno not in (errno.EPERM, errno.EACCES)
        advice = "" if permitted else "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed"
        raise kernel_error(
            exc,
            "bpf(2)",
            f"load the program {name} for cgroups",
            advice=advice,
            detail=_last_lines(log.value),
        ) from exc


def _load(code: bytes, attach: Attach, name: str, log: ctypes.Array[ctypes.c_char] | None) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    log_at = (0, 0, 0) if log is None else (1, len(log), ctypes.addressof(log))
    attributes = struct.pack(
        "=IIQQIIQII16sII",
        CGROUP_SKB,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        *log_at,
        0,  # kern_version
        0,  # prog_flags
        name.encode(),
        0,  # prog_ifindex
        attach,
    )
    return call(Command.PROG_LOAD, attributes)


def _last_lines(log: bytes) -> str:
    lines = [line.strip() for line in log.decode(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("processed ", "verification time", "stack depth"))]
    return " | ".join(told[-_SHOWN_LOG_LINES:])


@dataclass(frozen=True, slots=True)
class MapLayout:
    """Kind and sizes of one map. Keys have four bytes; values are arrays of u64."""

    name: str
    kind: MapType
    value_bytes: int
    entries: int
    flags: int = 0


def create_map(layout: MapLayout) -> int:
    """Create a map with keys of four bytes.

    Raises:
        KernelError: the kernel refuses it; before Linux 5.11 possibly because of RLIMIT_MEMLOCK.
    """
    btf, description = -1, (0, 0, 0)
    try:
        if (
            layout.kind is MapType.SK_STORAGE
        ):  # the kernel requires type information for this kind's key and value
            btf = _load_btf(layout.value_bytes // 8)
            description = (btf, 1, 3)
        attributes = struct.pack(
            "=IIIIIII16sIIIII",
            layout.kind,
            4,
            layout.value_bytes,
            layout.entries,
            layout.flags,
            0,  # inner_map_fd
            0,  # numa_node
            layout.name.encode(),
            0,  # map_ifindex
            *description,
            0,
        )
        return call(Command.MAP_CREATE, attributes)
    except OSError as exc:
        advice = ""
        if exc.errno == errno.EPERM:
            advice = "CAP_BPF is needed, and before Linux 5.11 room in RLIMIT_MEMLOCK (LimitMEMLOCK=8M)"
        raise kernel_error(exc, "bpf(2)", f"create the map {layout.name}", advice=advice) from exc
    finally:
        if btf >= 0:
            os.close(btf)


def _load_btf(words: int) -> int:
    """Load type information (BTF) for the types int (1), u64 (2) and u64[words] (3).

    The kernel's own BTF is not needed.
    """
    strings = b"\0int\0u64\0"
    integer, array = 1 << 24, 3 << 24
    types = struct.pack("=IIII", 1, integer, 4, 32)
    types += struct.pack("=IIII", 5, integer, 8, 64)
    types += struct.pack("=IIIIII", 0, array, 0, 2, 1, words)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    blob = header + types + strings
    data = ctypes.create_string_buffer(blob, len(blob))
    return call(Command.BTF_LOAD, struct.pack("=QQIIII", ctypes.addressof(data), 0, len(blob), 0, 0, 0))


def create_link(program: int, cgroup: int, attach: Attach) -> int:
    """Attach a program to a cgroup while the link's descriptor, or a pin of it, exists. Raises OSError.

    Other programs stay attached and run as well. EPERM: an attached program allows no second one.
    """
    return call(Command.LINK_CREATE, struct.pack("=IIII", program, cgroup, attach, 0))


def attached(cgroup: int, attach: Attach) -> AttachedProgram:
    """The programs attached to exactly this cgroup. Raises OSError."""
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    asked = struct.pack("=IIIIQII", cgroup, attach, 0, 0, ctypes.addressof(ids), len(ids), 0)
    attributes = ctypes.create_string_buffer(asked, len(asked))
    _call(Command.PROG_QUERY, attributes)
    _, _, _, flags, _, count, _ = struct.unpack("=IIIIQII", attributes.raw)
    return AttachedProgram(tuple(ids[:count]), flags)
