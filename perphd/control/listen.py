"""The listening Unix socket. systemd passes it, or perphd binds it; perphd never takes it from a running daemon."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from perphd.domain.errors import PerphError

BACKLOG = 64
"""Number of connections that may wait to be accepted. Further clients wait in connect(2)."""
_PROBE_S = 1.0


class SocketTaken(PerphError):
    """Another daemon answers on the socket, or the path exists and is not a socket."""


@dataclass(slots=True)
class SocketListener:
    """A listening socket that removes its file when it is closed. ``notes``: sentences for the operator."""

    socket: socket.socket
    path: str
    notes: tuple[str, ...] = ()
    _inode: int | None = None
    _lock: int | None = None

    def close(self) -> None:
        """Stop listening; remove the socket's file if it is still this listener's. Closing twice is fine."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self._inode is not None and os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        self._inode = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def from_systemd() -> SocketListener | None:
    """The socket passed by systemd's socket activation (LISTEN_FDS), or None.

    Raises:
        SocketTaken: several sockets were passed, or one that is not a Unix stream socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    try:
        from systemd.daemon import listen_fds
    except ImportError:
        return None
    descriptors = listen_fds(unset_environment=True)
    if not descriptors:
        return None
    if len(descriptors) > 1:
        raise SocketTaken(f"systemd passed {len(descriptors)} sockets; perphd takes one (ListenStream=)")
    passed = socket.socket(fileno=descriptors[0])
    if passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
        raise SocketTaken("systemd passed a socket that is not a Unix stream socket (ListenStream=/run/...)")
    passed.setblocking(False)
    path = passed.getsockname()
    return SocketListener(passed, path if isinstance(path, str) else os.fsdecode(path))


def bind(path: str, read_gid: int | None, read_group: str = "perphd") -> SocketListener:
    """Listen at ``path``, mode 0660 with the read group (0600 without one).

    A socket file without a listener is replaced. A lock on ``PATH.lock``, held as long as the listener
    exists, prevents two daemons from starting at once.

    Raises:
        SocketTaken: another daemon holds the lock or answers, or the path is not a socket.
        PerphError: the directory or the socket cannot be created.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise PerphError(f"{path}: cannot be created: {exc.strerror} ({exc.filename})") from exc
    try:
        _take_lock(lock, path)
        _clear_leftover(path)
        listening, notes = _bind_new(path, read_gid, read_group)
    except OSError as exc:
        os.close(lock)
        raise PerphError(f"{path}: perphd cannot listen on this socket: {exc.strerror}") from exc
    except PerphError:
        os.close(lock)
        raise
    return SocketListener(listening, path, notes, os.lstat(path).st_ino, lock)


def _take_lock(lock: int, path: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise SocketTaken(f"{path}: another perphd uses this socket (it holds {path}.lock)") from exc


def _clear_leftover(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTaken(f"{path}: exists and is not a socket; move it away or set daemon.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except OSError as exc:  # a full backlog or a timeout: a process listens
            raise SocketTaken(f"{path}: a process listens there but does not answer ({exc})") from exc
    raise SocketTaken(f"{path}: another daemon answers on this socket; stop it or set daemon.socket")


def _bind_new(path: str, read_gid: int | None, read_group: str) -> tuple[socket.socket, tuple[str, ...]]:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # bind() applies the umask: create the file closed, then open it to the group.
        previous = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(previous)
        notes: tuple[str, ...] = ()
        if read_gid is not None:
            try:
                os.chown(path, -1, read_gid)
                os.chmod(path, 0o660)
            except PermissionError:
                notes = (
                    f"{path}: perphd is not root and could not set its group: only this user can connect",
                )
        else:
            found = f"{path}: there is no group {read_group!r} (read_group in [daemon])"
            notes = (
                f"{found}: only root and this user can connect; to add it: groupadd --system {read_group}",
            )
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening, notes
