"""Archetypes: calibrated workloads read from TOML files that name the source of their numbers.

A file has ``name``, ``kind`` ("lra" or "batch"), ``summary``, ``source`` (where the numbers come from), ``assumed``
(numbers that are guesses, because none are published), ``threads``, optionally ``pollution``, and the tables ``code``,
``requests`` (LRAs only), ``memory`` and ``io`` with the fields of the classes of ``workload``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from perphd.domain.errors import ConfigError
from perphd.domain.workload import Kind
from perphd.sim.node.workload import Code, IoUse, MemoryUse, NodeWorkload, Requests

FOLDERS: Final = (Path(__file__).parents[3] / "profiles", Path("/usr/share/perphd/profiles"))
"""Folders with archetypes: of a checkout, then of the installed package."""
_TOP: Final = frozenset("name kind summary source assumed threads pollution code requests memory io".split())
_SHARES: Final = frozenset({"smt_speed", "hot_share", "hot_hits"})
_Part = TypeVar("_Part", Code, Requests, MemoryUse, IoUse)


@dataclass(frozen=True, slots=True)
class Archetype:
    """One calibrated workload. ``source``: origins of its numbers; ``assumed``: numbers that are not measured."""

    workload: NodeWorkload
    summary: str
    source: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def name(self) -> str:
        """The archetype's name, e.g. ``mysql-oltp``."""
        return self.workload.name

    def named(self, name: str) -> NodeWorkload:
        """A workload of this archetype with its own name."""
        return replace(self.workload, name=name)


def names(where: Path | None = None) -> tuple[str, ...]:
    """Names of all archetypes in a folder (by default where they ship), sorted."""
    return tuple(sorted(path.stem for path in (where or folder()).glob("*.toml")))


@cache
def archetype(name: str, where: Path | None = None) -> Archetype:
    """The archetype of this name. Raises ConfigError if there is none, or its file is wrong."""
    path = (where or folder()) / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(names(where))
        raise ConfigError(str(path.parent), "", f"no archetype {name!r}", f"one of {known}")
    return read(path)


def read(path: Path) -> Archetype:
    """Read and check one file. Raises ConfigError that names the file, the key and the allowed values."""
    try:
        table = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(str(path), "", str(exc)) from exc
    try:
        found = _archetype(table)
    except ValueError as exc:
        raise ConfigError(str(path), "", str(exc)) from exc
    if found.name != path.stem:
        raise ConfigError(str(path), "name", f"is {found.name!r}", f"the name of the file, {path.stem!r}")
    return found


def folder() -> Path:
    """The folder with the shipped archetypes. Raises ConfigError if it is missing."""
    for place in FOLDERS:
        if place.is_dir():
            return place
    raise ConfigError(str(FOLDERS[0]), "", "no folder with archetypes", f"also looked in {FOLDERS[1]}")


def _archetype(table: Mapping[str, Any]) -> Archetype:
    unknown = sorted(set(table) - _TOP)
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}; known are {', '.join(sorted(_TOP))}")
    kind = table.get("kind")
    if kind not in (Kind.LRA.value, Kind.BATCH.value):
        raise ValueError(f'kind is {kind!r}; give "lra" or "batch"')
    if (kind == Kind.LRA.value) != ("requests" in table):
        raise ValueError("an LRA must have a table [requests], and a batch job must not")
    for key in ("name", "summary"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise ValueError(f"{key} must be a text, and not empty")
    source, assumed = (table.get(key, []) for key in ("source", "assumed"))
    if not source:
        raise ValueError("source is empty: say where the numbers come from")
    threads = table.get("threads", 1)
    if not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads is {threads!r}; give a whole number of at least 1")
    workload = NodeWorkload(
        name=table["name"],
        code=_part(Code, "code", table.get("code", {})),
        threads=threads,
        requests=_part(Requests, "requests", table["requests"]) if kind == Kind.LRA.value else None,
        memory=_part(MemoryUse, "memory", table.get("memory", {})),
        io=_part(IoUse, "io", table.get("io", {})),
        pollution=float(table.get("pollution", 1.0)),
    )
    return Archetype(workload, table["summary"], tuple(source), tuple(assumed))


def _part(kind: type[_Part], name: str, table: Mapping[str, Any]) -> _Part:
    known = {f.name: f for f in fields(kind)}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ValueError(f"[{name}] has unknown keys {', '.join(unknown)}; known are {', '.join(known)}")
    missing = [key for key, f in known.items() if f.default is MISSING and key not in table]
    if missing:
        raise ValueError(f"[{name}] lacks {', '.join(missing)}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"[{name}] {key} is {value!r}; give a finite number")
        if value < 0 or (key in _SHARES and value > 1):
            raise ValueError(
                f"[{name}] {key} is {value}; allowed: {'0 to 1' if key in _SHARES else '0 or more'}"
            )
        values[key] = value if key == "clients" else float(value)
    positive = {
        "instructions",
        "cpi",
        "mpki_scale_bytes",
        "footprint_bytes",
        "smt_speed",
        "bursts",
        "hot_share",
    }
    for key in positive & set(values):
        if not values[key]:
            raise ValueError(f"[{name}] {key} is 0; give a positive number")
    return kind(**values)
