"""Bytecode that this host makes for the machine: compiling is most of an installation where processors are emulated."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

LIB = "usr/lib/perphd"


def make(tree: Path, minor: str) -> list[Path]:
    """Compile what is installed below ``tree`` for Python 3.``minor``; the folders of bytecode, relative to ``tree``.

    Empty, if this host lacks that Python: the machine then compiles it.
    """
    python = shutil.which(f"python3.{minor}")
    # What has the name may be a stand-in that only says which versions there are.
    if python is None or subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
        return []
    command = [python, "-I", "-m", "compileall", "-q", "-j", "0", "-s", str(tree), "-p", "/", str(tree / LIB)]
    subprocess.run(command, check=True)
    return [path.relative_to(tree) for path in (tree / LIB).rglob("__pycache__")]
