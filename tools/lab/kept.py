"""Runs on disk, one line each, so that an interrupted lab can continue."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tools.lab.processes import LabError
from tools.lab.records import Run


class Kept:
    """``runs.jsonl``: a line with the common options, then a line per run. ``runs``: the stored runs.

    Raises:
        LabError: ``resume`` is requested, and the file's runs have other options.
    """

    def __init__(self, path: Path, shared: Mapping[str, object], *, resume: bool) -> None:
        self._path = path
        self.runs: list[Run] = []
        head = msgspec.json.encode(shared, order="sorted") + b"\n"
        if resume and path.exists():
            content = path.read_bytes()
            lines = content.splitlines(keepends=True)
            if lines and lines[0] != head:
                raise LabError(
                    f"{path} has runs with other options ({lines[0].decode().strip()}): use these options, or remove it"
                )
            whole = [line for line in lines[1:] if line.endswith(b"\n")]  # the last line may be incomplete
            self.runs = [msgspec.json.decode(line, type=Run) for line in whole]
            path.write_bytes(head + b"".join(whole))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(head)

    def has(self, cell: str, scheme: str, repetition: int) -> bool:
        """True if this run is stored."""
        return any((run.cell, run.scheme, run.repetition) == (cell, scheme, repetition) for run in self.runs)

    def add(self, run: Run) -> None:
        """Store a run; it is on disk afterwards."""
        self.runs.append(run)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
            file.flush()
            os.fsync(file.fileno())
