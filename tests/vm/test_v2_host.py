"""perphd on a booted host with cgroup v2 alone and systemd as PID 1: a virtual machine reached through ssh.

What is tested is this checkout: it is copied there, its tests run there, and what they say is told here. The Python
packages that perphd imports are those of the Debian package; those of the tests are copied from here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.vm import bytecode
from tools.vm.machine import Machine

pytestmark = pytest.mark.requires_vm

ROOT = Path(__file__).parents[2]
COPIED = ("perphd", "rdt", "systemd", "profiles", "pyproject.toml", "tests/conftest.py")
ALL = "PERPHD_VM_ALL" in os.environ
POPULATION = "tests/kernel/test_population_kernel.py"
BANDS = "tests/kernel/test_bands_kernel.py"
COPIED_TESTS = (
    ("tests", "tools")
    if ALL
    else (
        "tests/kernel/*isolation_*.py",
        "tests/kernel/*tcp_*.py",
        POPULATION,
        BANDS,
        "tests/vm/guest_[dt]*.py",
    )
)
# What runs here runs there, if it is the same Python; else those for that Python are fetched.
CARRIED = (
    "pytest",
    "pygments",
    "pluggy",
    "iniconfig",
    "packaging",
    "pytest-asyncio",
    "hypothesis",
    "sortedcontainers",
)
NEEDED = "aiohttp cgroupspy click hypothesis numpy psutil pyroute2 pytest pytest_asyncio rich systemd".split()
ANSWER_S = 180.0
LEXERS = ("__init__.py", "_mapping.py", "diff.py", "python.py", "special.py")
"""Of pygments' five hundred, those that pytest has."""
PLUGINS = ("pytest_asyncio.plugin", "_hypothesis_pytestplugin") if ALL else ("pytest_asyncio.plugin",)
"""By name: pytest would compile anew, there, all that belongs to any that it finds by itself."""
SUITE_S = 1800.0


@dataclass(frozen=True)
class Guest:
    """The machine: ssh words that lead to it, its Python, and the folder there that holds the checkout."""

    ssh: tuple[str, ...]
    python: str
    folder: str = ""
    machine: Machine | None = None
    """If it was booted here."""

    def run(
        self, command: str, stdin: bytes | None = None, timeout_s: float = ANSWER_S
    ) -> subprocess.CompletedProcess[bytes]:
        words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER_S:.0f}", *self.ssh, command]
        return subprocess.run(words, input=stdin or b"", capture_output=True, timeout=timeout_s, check=False)

    def ask(self, command: str) -> str:
        done = self.run(command)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def unpack(self, packed: bytes, folder: str) -> None:
        if self.machine is not None:
            self.machine.unpack(packed, folder)
            return
        done = self.run(f"mkdir -p {folder} && tar -C {folder} --no-same-owner -xf -", packed)
        assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="module")
def bare(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """The named machine; else the one that was booted here, with the package installed and its daemon stopped."""
    if "PERPHD_VM" in os.environ:
        python = os.environ.get("PERPHD_VM_PYTHON", "python3")
        yield Guest(tuple(shlex.split(os.environ["PERPHD_VM"])), python)
        return
    installed = request.getfixturevalue("installed")
    installed.sh("systemctl stop perphd")
    yield Guest(installed.machine.ssh, "python3", machine=installed.machine)


@pytest.fixture(scope="module")
def guest(bare: Guest) -> Iterator[Guest]:
    """The machine with a copy of this checkout, which is removed afterwards; skips if it cannot run the tests."""
    hello = bare.run("id -u; cat /proc/1/comm; stat -f -c %T /sys/fs/cgroup")
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
    # Not below /tmp or /var/tmp, which the unit under test does not see (PrivateTmp=).
    folder = bare.ask("mktemp -d /srv/perphd-test-XXXXXX")
    try:
        bare.unpack(packed(minor_of(bare), folder), folder)
        python = f"env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH={folder}/.packages:/usr/lib/perphd {bare.python}"
        look = f"import importlib.util as u; print(*(n for n in {NEEDED} if u.find_spec(n) is None))"
        missing = bare.ask(f"{python} -c {shlex.quote(look)}")
        if missing:
            pytest.skip(
                f"needs perphd's package, or these Python packages, on the machine of PERPHD_VM: {missing}"
            )
        yield Guest(bare.ssh, python, folder)
    finally:
        bare.run(f"rm -rf {folder}")


def packed(minor: str, place: str) -> bytes:
    """What goes there as a tar archive: this checkout and the test programs, with the bytecode of both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bytecode.stage(ROOT, (*COPIED, *COPIED_TESTS), folder)
        carry(minor, folder / ".packages")
        for lexer in (folder / ".packages/pygments/lexers").iterdir():
            if lexer.name not in LEXERS:
                lexer.unlink()
        return bytecode.packed(folder, minor, place)


def minor_of(bare: Guest) -> str:
    """Of the machine's Python 3."""
    return bare.ask(f"{bare.python} -c 'import sys; print(sys.version_info.minor)'")


def carry(minor: str, folder: Path) -> None:
    """Put the test programs' packages there: those of this Python, or the same versions for another."""
    if minor != str(sys.version_info.minor):
        wanted = [f"{name}=={distribution(name).version}" for name in CARRIED]
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-compile",
            "--target",
            str(folder),
        ]
        pip += ["--python-version", f"3.{minor}", "--only-binary=:all:"]
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs the test programs for Python 3.{minor}: {done.stderr.strip()[-300:]}")
        return
    for name in CARRIED:
        found = distribution(name)
        place = Path(str(found.locate_file("")))
        for part in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            bytecode.copy(place / part, folder / part)


@pytest.mark.parametrize(
    ("files", "all_must_run"),
    [
        ("tests/kernel/test_isolation_v2.py", True),
        (f"tests/vm/guest_daemon.py {POPULATION}", True),
        ("tests/kernel/test_tcp_latency.py tests/vm/guest_tcp.py", True),
        (BANDS, True),
        pytest.param(
            "tests/kernel --deselect tests/kernel/test_isolation_v2.py",
            False,
            marks=pytest.mark.skipif(not ALL, reason="takes long: PERPHD_VM_ALL=1"),
        ),
        pytest.param(
            "tests/unit/test_host_*.py tests/unit/test_isolation_*.py tests/unit/test_frame_systemd.py",
            False,
            marks=pytest.mark.skipif(not ALL, reason="takes long: PERPHD_VM_ALL=1"),
        ),
    ],
    ids=["isolation", "daemon", "tcp", "bands", "kernel", "unit"],
)
def test_there(guest: Guest, files: str, all_must_run: bool) -> None:
    plugins = " ".join(f"-p {name}" for name in PLUGINS)
    done = guest.run(
        f"cd {guest.folder} && {guest.python} -m pytest -q -p no:cacheprovider {plugins} --basetemp=tmp {files} 2>&1",
        timeout_s=SUITE_S,
    )
    told = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{guest.ask('uname -r; systemctl --version | head -n 1')}\n{told}"
    summary = told.strip().splitlines()[-1]
    assert re.search(r"\b[1-9]\d* passed", summary), told
    assert not (all_must_run and "skipped" in summary), told
