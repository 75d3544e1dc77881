"""The listening socket: modes, leftovers, and daemons that are already there."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from perphd.control.listen import SocketListener, SocketTaken, bind, from_systemd
from perphd.domain.errors import PerphError


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "perphd.sock")


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_open_to_the_read_group_alone(path: str):
    listener = bind(path, os.getgid())
    assert mode(path) == 0o660
    assert os.stat(path).st_gid == os.getgid()
    assert listener.notes == ()
    listener.close()
    listener.close()
    assert not os.path.exists(path)


def test_without_a_group_only_this_user(path: str):
    listener = bind(path, None)
    assert mode(path) == 0o600
    assert "groupadd --system perphd" in listener.notes[0]
    listener.close()


def test_a_leftover_is_replaced(path: str):
    os.mkdir(os.path.dirname(path))
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(path)
    dead.close()
    bind(path, None).close()


def test_a_second_daemon_is_refused(path: str):
    listener = bind(path, None)
    with pytest.raises(SocketTaken, match="another perphd uses this socket"):
        bind(path, None)
    os.unlink(f"{path}.lock")
    with pytest.raises(SocketTaken, match="another daemon answers"):
        bind(path, None)
    listener.close()


def test_something_that_is_no_socket_is_left_alone(path: str):
    os.mkdir(os.path.dirname(path))
    Path(path).write_text("mine")
    with pytest.raises(SocketTaken, match="is not a socket"):
        bind(path, None)
    assert Path(path).read_text() == "mine"


def test_a_successors_socket_is_not_removed(path: str):
    listener = bind(path, None)
    os.unlink(path)
    Path(path).write_text("somebody else's")
    listener.close()
    assert os.path.exists(path)


def test_a_place_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PerphError, match="cannot be created"):
        bind(str(tmp_path / "file" / "perphd.sock"), None)


def test_no_socket_from_systemd_for_another_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert from_systemd() is None


def passed_by_systemd(monkeypatch: pytest.MonkeyPatch, descriptors: list[int]) -> SocketListener | None:
    daemon = pytest.importorskip("systemd.daemon", reason="needs the package systemd-python")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setattr(daemon, "listen_fds", lambda unset_environment: descriptors)
    return from_systemd()


def test_systemds_socket_is_taken_and_its_file_left(path: str, monkeypatch: pytest.MonkeyPatch):
    os.mkdir(os.path.dirname(path))
    given = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    given.bind(path)
    given.listen()
    listener = passed_by_systemd(monkeypatch, [given.detach()])
    assert listener is not None
    assert listener.path == path
    listener.close()
    assert os.path.exists(path)


def test_systemds_mistakes_are_named(monkeypatch: pytest.MonkeyPatch):
    assert passed_by_systemd(monkeypatch, []) is None
    with pytest.raises(SocketTaken, match="passed 2 sockets"):
        passed_by_systemd(monkeypatch, [98, 99])
    wrong = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with pytest.raises(SocketTaken, match="not a Unix stream socket"):
        passed_by_systemd(monkeypatch, [wrong.detach()])
