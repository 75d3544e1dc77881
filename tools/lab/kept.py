"""Runs on disk, one line each, so that a lab that ended early goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tools.lab.processes import LabError
from tools.lab.records import Run


class Kept:
    """``runs.jsonl``: a line with what all runs share, then a line a run. ``runs``: those that are there.

    Raises:
        LabError: ``resume`` is asked for, and the file's runs were made otherwise.
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
                    f"{path} has runs with other options ({lines[0].decode().strip()}): repeat them, or remove it"
                )
            whole = [line for line in lines[1:] if line.endswith(b"\n")]  # the last may be cut
            self.runs = [msgspec.json.decode(line, type=Run) for line in whole]
            path.write_bytes(head + b"".join(whole))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(head)

    def has(self, cell: str, scheme: str, repetition: int) -> bool:
        """True if this run was made."""
        return any((run.cell, run.scheme, run.repetition) == (cell, scheme, repetition) for run in self.runs)

    def add(self, run: Run) -> None:
        """Keep a run; it is on disk afterwards."""
        self.runs.append(run)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
            file.flush()
            os.fsync(file.fileno())
