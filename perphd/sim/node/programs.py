"""Measured programs as batch jobs: 55 SPEC programs with the cache behaviour fitted to public measurements."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perphd.domain.errors import ConfigError
from perphd.sim.node.archetypes import folder
from perphd.sim.node.workload import Code, NodeWorkload

_FIELDS = ("cpi", "miss_cycles", "mpki_floor", "mpki_swing", "mpki_scale_bytes", "refs_pki")
_INSTRUCTIONS = 1e9


@dataclass(frozen=True, slots=True)
class Program:
    """A single-threaded program. ``error_pct``: median relative error of its fitted IPC over all numbers of ways;
    ``held_out_error_pct``: that for numbers of ways that were left out of the fit.
    """

    name: str
    code: Code
    error_pct: float
    held_out_error_pct: float

    def job(self, copies: int = 1) -> NodeWorkload:
        """``copies`` concurrent copies of the program; an operation is 10^9 instructions."""
        return NodeWorkload(self.name, self.code, threads=copies)


@cache
def programs(path: Path | None = None) -> dict[str, Program]:
    """All programs of ``programs/spec.toml`` by name. Raises ConfigError if the file is missing or wrong."""
    path = path or folder() / "programs" / "spec.toml"
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(str(path), "", str(exc)) from exc
    found = {}
    for name, values in table.items():
        if not isinstance(values, dict):
            continue
        try:
            code = Code(_INSTRUCTIONS, **{key: float(values[key]) for key in _FIELDS})
            found[name] = Program(name, code, float(values["error_pct"]), float(values["held_out_error_pct"]))
        except (KeyError, TypeError, ValueError) as exc:
            raise ConfigError(str(path), name, f"{exc!r}", f"numbers for {', '.join(_FIELDS)}") from exc
    return found
