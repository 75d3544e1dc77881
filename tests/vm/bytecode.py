"""The package with bytecode that this host makes: compiling is slow where processors are emulated."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LIB = "usr/lib/perphd"
SPARED = ("asn1crypto", "pg8000", "pymysql", "redis", "scramp", "perphd/sim")
"""For other indicators and for simulations: not installed where installing is not what is tested."""


def make(tree: Path, minor: str) -> list[Path]:
    """Compile what is installed below ``tree`` for Python 3.``minor``; the folders of bytecode, relative to ``tree``.

    Empty, if this host lacks that Python: the machine then compiles it.
    """
    python = python_of(minor)
    if python is None:
        return []
    _compile(python, tree / LIB, "-s", str(tree), "-p", "/")
    return [path.relative_to(tree) for path in (tree / LIB).rglob("__pycache__")]


def stage(root: Path, patterns: Sequence[str], folder: Path) -> None:
    """Copy these files and folders below ``root``, without bytecode."""
    for pattern in patterns:
        for path in root.glob(pattern):
            copy(path, folder / path.relative_to(root))


def copy(source: Path, target: Path) -> None:
    """A file or a folder, without bytecode."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def packed(folder: Path, minor: str, place: str) -> bytes:
    """A tar archive of ``folder``, which is to be ``place`` there; with bytecode, if this host has Python 3.``minor``.

    The bytecode holds whatever time the machine's copy of a source has.
    """
    if (python := python_of(minor)) is not None:
        _compile(python, folder, "-s", str(folder), "-p", place, "--invalidation-mode", "unchecked-hash")
    return subprocess.run(["tar", "-C", str(folder), "-cf", "-", "."], capture_output=True, check=True).stdout


def repacked(
    package: Path,
    target: Path,
    minor: str,
    *,
    appended: str = "",
    compiled_there: str = "",
    dropped: Sequence[str] = (),
) -> None:
    """The package once more, quick to unpack, with its bytecode inside but for that of this folder below ``LIB``.

    ``appended`` to its version, and without these folders below ``LIB``.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^(Version: .*)$", rf"\1{appended}", control.read_text()))
        for name in dropped:
            shutil.rmtree(tree / LIB / name, ignore_errors=True)  # some come from the distribution
        for cache in make(tree, minor):
            if compiled_there and cache.is_relative_to(f"{LIB}/{compiled_there}"):
                shutil.rmtree(tree / cache)
        command = ["dpkg-deb", "-Znone", "-b", str(tree), str(target)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def python_of(minor: str) -> str | None:
    """This host's Python 3.``minor``."""
    pyenv = (str(path) for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
    for python in (f"/usr/bin/python3.{minor}", shutil.which(f"python3.{minor}"), *pyenv):
        # What has the name may be a stand-in that only says which versions there are.
        with suppress(OSError):
            if python and subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0:
                return python
    return None


def _compile(python: str, folder: Path, *options: str) -> None:
    subprocess.run([python, "-I", "-m", "compileall", "-q", "-j", "0", *options, str(folder)], check=True)
