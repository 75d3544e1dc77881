"""Finds the line of a configuration file to which a refusal refers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from perphd.domain.errors import ConfigError

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([\w.\"' -]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"\s*([\w.\"' -]+?)\s*=")
_QUOTES: Final = re.compile(r'"""|' + "'''")


def with_line(error: ConfigError) -> ConfigError:
    """The same error with ``FILE:LINE`` as its source, if the file and the key can be found."""
    try:
        text = Path(error.source).read_text()
    except (OSError, ValueError):
        return error
    line = line_of(text, error.key)
    if line is None:
        return error
    return ConfigError(f"{error.source}:{line}", error.key, error.problem, error.allowed)


def line_of(text: str, key: str) -> int | None:
    """The line (from 1) of ``key`` (``lra[0].sli.source``), or of the table that lacks it; None if neither is
    found.
    """
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table, inside = "", False
    for number, line in enumerate(text.splitlines(), start=1):
        was_inside = inside
        inside ^= len(_QUOTES.findall(line)) % 2 == 1
        if was_inside:
            continue
        if header := _HEADER.match(line):
            name = _plain(header[2])
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = f"{name}[{counts[name]}]"
            else:
                first, dot, rest = name.partition(".")
                table = f"{first}[{counts[first]}]{dot}{rest}" if first in counts else name
            found.setdefault(table, number)
        elif assigned := _KEY.match(line):
            name = _plain(assigned[1])
            found.setdefault(f"{table}.{name}" if table else name, number)
    while key:
        if key in found:
            return found[key]
        key = key.rpartition(".")[0]
    return None


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
