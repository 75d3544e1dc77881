from __future__ import annotations

import os
import sys
import threading

import pytest

from perphd.agent.spawn import Ended, Stopped, run

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


def python(code: str, data: bytes = b"", deadline_s: float = 60.0) -> Ended:
    return run((sys.executable, "-c", code), data, os.environ, deadline_s, threading.Event())


def nothing_is_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_what_goes_in_comes_out_however_much_it_is() -> None:
    data = os.urandom(1 << 20)  # more than any pipe holds
    ended = python("import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d + d)", data)
    assert ended == Ended(0, data + data, b"")
    assert nothing_is_left()


def test_it_sees_the_given_environment_and_its_own_streams_only() -> None:
    code = "import os; print(os.environ.get('GIVEN'), sorted(map(int, os.listdir('/proc/self/fd')))[:3])"
    reader, writer = os.pipe()
    try:
        ended = run((sys.executable, "-c", code), b"", {"GIVEN": "yes"}, 60.0, threading.Event())
        assert ended.out.startswith(b"yes [0, 1, 2]")
        seen = python(f"import os; os.fstat({writer})")
        assert seen.status == 1
        assert b"Bad file descriptor" in seen.err
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_how_it_ended_is_told(code: str, status: int) -> None:
    assert python(code).status == status


def test_what_cannot_be_started_says_why() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        run(("/no/such/program",), b"", os.environ, 60.0, threading.Event())
    with pytest.raises(PermissionError):
        run((os.path.dirname(__file__),), b"", os.environ, 60.0, threading.Event())


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        run(SLEEP, b"", os.environ, 0.2, threading.Event())
    assert nothing_is_left()


def test_it_is_ended_when_somebody_asks_for_that() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        run(SLEEP, b"", os.environ, 60.0, stop)
    assert nothing_is_left()


def test_no_descriptor_is_left_open() -> None:
    python("pass")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        python("pass")
    assert len(os.listdir("/proc/self/fd")) == before
