"""The BPF programs, attached to one control group while a ``TcpProbe`` is open.

Nothing is pinned: the links are descriptors of this process, so that the kernel detaches the programs and
frees the maps when the process ends. Links coexist with other programs at a group; a group with an exclusive
program refuses them.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from perphd.domain.errors import Denied, KernelError, kernel_error
from perphd.host.bpf import syscall
from perphd.host.bpf.syscall import Attach, MapLayout
from perphd.host.fs import not_the_same
from perphd.host.tcp_latency import programs
from perphd.host.tcp_latency.counts import TcpCounts
from perphd.host.tcp_latency.programs import COUNTS, HISTOGRAMS, STATE, Maps

_NAMES: Final = {Attach.INGRESS: "perphd_tcp_in", Attach.EGRESS: "perphd_tcp_out"}
_OPERATION: Final = "attach BPF programs"


class TcpProbe:
    """Counts requests until ``close``; closing twice is allowed."""

    def __init__(self, directory: str, inode: int = 0, ports: Sequence[int] = ()) -> None:
        """Attach the programs to a cgroup2 directory.

        ``inode``: identity of the intended group, 0: any group at this path. ``ports``: only these local
        ports; empty: all connections that the group's side did not open.

        Raises:
            KernelError: Gone if the directory has been replaced, Denied without capabilities or beside an
                exclusive program; with the verifier's log if a program is refused.
        """
        self._owned = ExitStack()
        try:
            maps = Maps(self._map(STATE), self._map(COUNTS), self._map(HISTOGRAMS))
            self._counts = self._memory(maps.counts, COUNTS)
            self._histograms = self._memory(maps.histograms, HISTOGRAMS)
            loaded = {
                # Egress first, so that the answer to a counted request is never missed.
                Attach.EGRESS: self._program(programs.egress(maps, ports), Attach.EGRESS),
                Attach.INGRESS: self._program(programs.ingress(maps, ports), Attach.INGRESS),
            }
            self._attach(directory, inode, loaded)
        except BaseException:
            self._owned.close()
            raise

    def read(self) -> TcpCounts:
        """Everything counted so far, read from memory without a system call."""
        return TcpCounts.from_memory(self._counts, self._histograms)

    def close(self) -> None:
        """Detach the programs and free the maps."""
        self._owned.close()

    def _map(self, layout: MapLayout) -> int:
        return self._own(syscall.create_map(layout))

    def _program(self, code: bytes, direction: Attach) -> int:
        return self._own(syscall.load_program(code, direction, _NAMES[direction]))

    def _own(self, descriptor: int) -> int:
        self._owned.callback(os.close, descriptor)
        return descriptor

    def _memory(self, descriptor: int, layout: MapLayout) -> memoryview:
        size = -(-layout.value_bytes * layout.entries // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as exc:
            raise kernel_error(exc, "bpf(2)", f"map {layout.name} into memory") from exc
        view = memoryview(mapped)
        self._owned.callback(mapped.close)
        self._owned.callback(view.release)
        return view

    def _attach(self, directory: str, inode: int, loaded: dict[Attach, int]) -> None:
        try:
            group = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise kernel_error(exc, directory, "open") from exc
        try:
            if inode and os.fstat(group).st_ino != inode:
                raise not_the_same(directory, "BPF programs")
            for direction, program in loaded.items():
                try:
                    self._own(syscall.create_link(program, group, direction))
                except OSError as exc:
                    raise _refused(exc, directory, group, direction) from exc
        finally:
            os.close(group)


def _refused(exc: OSError, directory: str, group: int, direction: Attach) -> KernelError:
    if exc.errno == errno.EINVAL:
        return kernel_error(
            exc, directory, _OPERATION, advice="links to cgroups need Linux 5.7 and cgroup v2"
        )
    if exc.errno == errno.EPERM:
        detail = "a program that allows no other is attached here or above"
        with suppress(OSError):
            there = syscall.attached(group, direction)
            if there.is_exclusive:
                detail = f"program {there.programs[0]} is attached here and allows no other"
        advice = "configure a port to measure at the group above ([lra.sli] ports), or use another source"
        return Denied(directory, _OPERATION, errno.EPERM, detail=detail, advice=advice)
    return kernel_error(exc, directory, _OPERATION)


def probe_refusal() -> str:
    """Reason why this process cannot load the programs; empty if it can. Attaches nothing."""
    with ExitStack() as owned:
        try:
            descriptors = []
            for layout in (STATE, COUNTS, HISTOGRAMS):
                descriptors.append(syscall.create_map(layout))
                owned.callback(os.close, descriptors[-1])
            maps = Maps(*descriptors)
            for direction, code in (
                (Attach.INGRESS, programs.ingress(maps)),
                (Attach.EGRESS, programs.egress(maps)),
            ):
                owned.callback(os.close, syscall.load_program(code, direction, _NAMES[direction]))
        except KernelError as exc:
            return str(exc)
    return ""
