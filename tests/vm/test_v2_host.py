"""perphd on a booted host with cgroup v2 alone and systemd as PID 1: a virtual machine reached through ssh.

What is tested is this checkout: it is copied there, its tests run there, and what they say is told here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.requires_vm

ROOT = Path(__file__).parents[2]
COPIED = ("perphd", "rdt", "tests", "systemd", "profiles", "pyproject.toml")
NEEDED = (
    "aiohttp cgroupspy click hypothesis msgspec numpy pg8000 prometheus_client psutil pymysql pyroute2 pytest "
    "pytest_asyncio redis rich systemd"
).split()
ANSWER_S = 60.0
SUITE_S = 1500.0


@dataclass(frozen=True)
class Guest:
    """The machine: ssh words that lead to it, its Python, and the folder there that holds the checkout."""

    ssh: tuple[str, ...]
    python: str
    folder: str = ""

    def run(
        self, command: str, stdin: bytes | None = None, timeout_s: float = ANSWER_S
    ) -> subprocess.CompletedProcess[bytes]:
        words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER_S:.0f}", *self.ssh, command]
        return subprocess.run(words, input=stdin or b"", capture_output=True, timeout=timeout_s, check=False)

    def ask(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    """The machine with a copy of this checkout, which is removed afterwards; skips if it cannot run the tests."""
    found = Guest(tuple(shlex.split(os.environ["PERPHD_VM"])), os.environ.get("PERPHD_VM_PYTHON", "python3"))
    hello = found.run("id -u; cat /proc/1/comm; stat -f -c %T /sys/fs/cgroup")
    if hello.returncode:
        pytest.skip(f"needs the machine of PERPHD_VM, which does not answer: {hello.stderr.decode().strip()}")
    for what, wanted, is_so in zip(
        ("root there", "systemd as its PID 1", "cgroup v2 alone at its /sys/fs/cgroup"),
        ("0", "systemd", "cgroup2fs"),
        hello.stdout.decode().split(),
        strict=True,
    ):
        if is_so != wanted:
            pytest.skip(f"needs {what} (the machine of PERPHD_VM has {is_so})")
    look = f"import importlib.util as u; print(*(n for n in {NEEDED} if u.find_spec(n) is None))"
    missing = found.ask(f"{found.python} -c {shlex.quote(look)}")
    if missing:
        pytest.skip(f"needs Python packages on the machine of PERPHD_VM: {missing}")

    packed = subprocess.run(
        ["tar", "-C", str(ROOT), "--exclude=__pycache__", "-cf", "-", *COPIED],
        capture_output=True,
        check=True,
    ).stdout
    folder = found.ask("mktemp -d /var/tmp/perphd-test-XXXXXX")
    try:
        unpacked = found.run(f"tar -C {folder} --no-same-owner -xf -", packed)
        assert unpacked.returncode == 0, unpacked.stderr.decode()
        yield Guest(found.ssh, found.python, folder)
    finally:
        found.run(f"rm -rf {folder}")


@pytest.mark.parametrize(
    ("files", "all_must_run"),
    [
        ("tests/kernel/test_isolation_v2.py", True),
        ("tests/vm/guest_daemon.py", True),
        ("tests/kernel --deselect tests/kernel/test_isolation_v2.py", False),
        ("tests/unit/test_host_*.py tests/unit/test_isolation_*.py tests/unit/test_frame_systemd.py", False),
    ],
    ids=["isolation", "daemon", "kernel", "unit"],
)
def test_there(guest: Guest, files: str, all_must_run: bool) -> None:
    done = guest.run(
        f"cd {guest.folder} && {guest.python} -m pytest -q -p no:cacheprovider {files} 2>&1",
        timeout_s=SUITE_S,
    )
    told = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{guest.ask('uname -r; systemctl --version | head -n 1')}\n{told}"
    summary = told.strip().splitlines()[-1]
    assert re.search(r"\b[1-9]\d* passed", summary), told
    assert not (all_must_run and "skipped" in summary), told
