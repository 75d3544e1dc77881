"""Bytecode that this host makes for the machine: compiling is most of an installation where processors are emulated."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

LIB = "usr/lib/perphd"


def make(tree: Path, minor: str) -> list[Path]:
    """Compile what is installed below ``tree`` for Python 3.``minor``; the folders of bytecode, relative to ``tree``.

    Empty, if this host lacks that Python: the machine then compiles it.
    """
    python = python_of(minor)
    if python is None:
        return []
    _compile(python, tree / LIB, "-s", str(tree), "-p", "/")
    return [path.relative_to(tree) for path in (tree / LIB).rglob("__pycache__")]


def make_beside(folder: Path, minor: str, place: str) -> None:
    """Compile all below ``folder``, which is to be ``place`` there, if this host has Python 3.``minor``.

    The bytecode holds whatever time the machine's copy of a source has.
    """
    if (python := python_of(minor)) is not None:
        _compile(python, folder, "-s", str(folder), "-p", place, "--invalidation-mode", "unchecked-hash")


def python_of(minor: str) -> str | None:
    """This host's Python 3.``minor``."""
    for python in (f"/usr/bin/python3.{minor}", shutil.which(f"python3.{minor}")):
        # What has the name may be a stand-in that only says which versions there are.
        with suppress(OSError):
            if python and subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0:
                return python
    return None


def _compile(python: str, folder: Path, *options: str) -> None:
    subprocess.run([python, "-I", "-m", "compileall", "-q", "-j", "0", *options, str(folder)], check=True)
