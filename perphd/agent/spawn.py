"""Starts worker processes without holding the interpreter lock.

``subprocess`` and ``os.posix_spawn`` hold the interpreter lock until the child has called exec(2). On a busy
machine the child may wait long for a processor, and the loop would stall for that time, whichever thread
started the child. This module calls the C library's posix_spawn(3) through ctypes, which releases the lock.
The child shares the parent's memory until exec(2) (CLONE_VM, CLONE_VFORK), so the memory of a large parent is
not copied either.

Input and output are memory files (memfd_create(2)) instead of pipes, so that neither side has to read while
the other writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Final

_ACTIONS_BYTES: Final = 512
"""Larger than any C library's posix_spawn_file_actions_t (80 in glibc and musl)."""
_NOEXEC_SEAL: Final = 8
"""MFD_NOEXEC_SEAL; kernels before 6.3 do not know it, and some later ones require it."""
_ATTRIBUTES_BYTES: Final = 1024
"""Larger than any C library's posix_spawnattr_t (336 in glibc and musl)."""
_SIGNALS_BYTES: Final = 128
_SETSIGDEF, _SETSID = 0x04, 0x80
_LOOK_S: Final = 0.05


class Stopped(Exception):
    """The caller requested the end of the process."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a process.

    ``status``: exit status, or minus the signal that ended it; ``out``, ``err``: its output.
    """

    status: int
    out: bytes
    err: bytes


def run(
    command: Sequence[str], data: bytes, environment: Mapping[str, str], deadline_s: float, stop: Event
) -> Ended:
    """Run a command with ``data`` as its standard input. Blocks, so call it in a worker thread.

    Its working directory is the caller's. On return, the process has always ended and been reaped.

    Raises:
        OSError: it could not be started.
        TimeoutError: the process had not ended after ``deadline_s`` seconds, and was killed.
        Stopped: ``stop`` was set, and the process was killed.
    """
    with contextlib.ExitStack() as files:
        given, out, err = (_memory_file(name) for name in ("in", "out", "err"))
        for fd in (given, out, err):
            files.callback(os.close, fd)
        _fill(given, data)
        status = _wait(start(command, environment, (given, out, err)), deadline_s, stop)
        return Ended(status, _whole(out), _whole(err))


def tell(
    command: Sequence[str], data: bytes, environment: Mapping[str, str], deadline_s: float, stop: Event
) -> int:
    """Run an operator's command with ``data`` as its standard input. Returns its exit status, or minus its signal.

    Its output is discarded. It has its own session, and remaining processes of its process group are killed at
    the end. Raises the errors of ``run``.
    """
    with contextlib.ExitStack() as files:
        given, nothing = _memory_file("in"), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for fd in (given, nothing):
            files.callback(os.close, fd)
        _fill(given, data)
        pid = start(command, environment, (given, nothing, nothing), session=True)
        try:
            return _wait(pid, deadline_s, stop)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    *,
    session: bool = False,
) -> int:
    """Start the command with these three standard streams; returns its pid. Other descriptors are closed at exec(2).

    The caller must wait for the end of the process. ``session``: give the process its own session and the default
    handling of broken pipes. Raises OSError: it could not be started.
    """
    libc = ctypes.CDLL(None)  # its functions are called without the interpreter lock
    actions = ctypes.create_string_buffer(_ACTIONS_BYTES)
    _check(libc.posix_spawn_file_actions_init(actions), command[0])
    attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
    _check(libc.posix_spawnattr_init(attributes), command[0])
    try:
        if session:
            signals = ctypes.create_string_buffer(_SIGNALS_BYTES)
            libc.sigemptyset(signals)
            libc.sigaddset(signals, signal.SIGPIPE)  # Python ignores it
            _check(libc.posix_spawnattr_setsigdefault(attributes, signals), command[0])
            flags = ctypes.c_short(_SETSIGDEF | _SETSID)
            _check(libc.posix_spawnattr_setflags(attributes, flags), command[0])
        for stream, fd in enumerate(streams):
            _check(libc.posix_spawn_file_actions_adddup2(actions, fd, stream), command[0])
        arguments = [os.fsencode(one) for one in command]
        settings = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        argv = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
        envp = (ctypes.c_char_p * (len(settings) + 1))(*settings, None)
        pid = ctypes.c_int()
        _check(
            libc.posix_spawnp(ctypes.byref(pid), argv[0], actions, attributes, argv, envp),
            command[0],
        )
        return pid.value
    finally:
        libc.posix_spawnattr_destroy(attributes)
        libc.posix_spawn_file_actions_destroy(actions)


def _check(problem: int, program: str) -> None:
    if problem:
        raise OSError(problem, os.strerror(problem), program)


def _wait(pid: int, deadline_s: float, stop: Event) -> int:
    until = time.monotonic() + deadline_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        stopped = stop.wait(_LOOK_S)
        if stopped or time.monotonic() >= until:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still valid
            os.waitpid(pid, 0)
            if stopped:
                raise Stopped
            raise TimeoutError(
                errno.ETIMEDOUT, f"the program did not end within {deadline_s:g} s and was killed"
            )


def _memory_file(name: str) -> int:
    try:
        return os.memfd_create(f"perphd-{name}", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        return os.memfd_create(f"perphd-{name}", os.MFD_CLOEXEC)


def _fill(fd: int, data: bytes) -> None:
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)  # the child reads from the shared offset


def _whole(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        return file.read()
