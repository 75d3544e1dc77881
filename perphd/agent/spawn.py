"""Worker processes started without holding the interpreter.

``subprocess`` and ``os.posix_spawn`` hold the interpreter's lock until the child has called exec(2), and on a full
machine the child waits long for a processor: so long the loop would stand still, whichever thread started it. Here the
C library's posix_spawn(3) is called through ctypes, which lets go of the lock. The child shares the parent's memory
until exec(2) (CLONE_VM, CLONE_VFORK), so that nothing of a large parent is copied either.

What goes in and comes out is in memory files (memfd_create(2)), not in pipes: nobody has to read while others write.
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
"""More than any C library's posix_spawn_file_actions_t has (80 in glibc and musl)."""
_NOEXEC_SEAL: Final = 8
"""MFD_NOEXEC_SEAL; kernels before 6.3 do not know it, some later ones insist on it."""
_ATTRIBUTES_BYTES: Final = 1024
"""More than any C library's posix_spawnattr_t has (336 in glibc and musl)."""
_SIGNALS_BYTES: Final = 128
_SETSIGDEF, _SETSID = 0x04, 0x80
_LOOK_S: Final = 0.05


class Stopped(Exception):
    """It was ended because somebody asked for that."""


@dataclass(frozen=True, slots=True)
class Ended:
    """``status``: exit status, or less than 0 the signal that ended it; what it wrote to standard output and error."""

    status: int
    out: bytes
    err: bytes


def run(
    command: Sequence[str], data: bytes, environment: Mapping[str, str], deadline_s: float, stop: Event
) -> Ended:
    """Run a command with ``data`` as its standard input; waits, so call it in a thread that may.

    Its working directory is the caller's. Whatever happens, the process has ended and is reaped on return.

    Raises:
        OSError: it could not be started.
        TimeoutError: it had not ended after ``deadline_s``, and was killed.
        Stopped: ``stop`` was set, and it was killed.
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
    """Run a command of the operator's with ``data`` as its standard input; its exit status, or less than 0 its signal.

    What it writes is discarded. It has a session of its own, and what it leaves behind in its process group is killed.
    Raises what ``run`` does.
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
    """Start the command with these three as its standard streams; its process number. All else is closed at exec(2).

    The caller waits for its end. ``session``: it gets one of its own, and dies of a broken pipe as programs usually do.
    Raises OSError: it could not be started.
    """
    libc = ctypes.CDLL(None)  # its functions are called without the interpreter's lock
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
            os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so the number is still its own
            os.waitpid(pid, 0)
            if stopped:
                raise Stopped
            raise TimeoutError(errno.ETIMEDOUT, f"it did not end within {deadline_s:g} s")


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
    os.lseek(fd, 0, os.SEEK_SET)  # the child reads from where the shared offset is


def _whole(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        return file.read()
