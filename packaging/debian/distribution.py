"""distribution.py LIBRARIES REQUIREMENTS INSIDE DEPENDS TABLE: decide which libraries come from the distribution.

Reads which versions are installed here, where the package is built. Writes three files: INSIDE, the part of
REQUIREMENTS that is put into the package; DEPENDS, the Debian packages it depends on instead; TABLE, every
library with the version it needs, the distribution's version and the decision.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    """One library. ``found``: the distribution's version; empty where it has none."""

    name: str
    package: str
    oldest: str
    found: str

    @property
    def is_outside(self) -> bool:
        """True if the distribution's version suffices."""
        return bool(self.found) and not _is_older(self.found, self.oldest)


def main() -> None:
    """Write the three files."""
    libraries, requirements, inside, depends, listed = (Path(name) for name in sys.argv[1:])
    chosen = [
        Library(name, package, oldest, _installed(package))
        for name, package, oldest in (
            line.split() for line in libraries.read_text().splitlines() if line and not line.startswith("#")
        )
    ]
    outside = {item.name for item in chosen if item.is_outside}
    inside.write_text(kept(requirements.read_text(), outside))
    wanted = [item for item in chosen if item.is_outside]
    depends.write_text(", ".join(f"{item.package} (>= {_epoch(item.found)}{item.oldest})" for item in wanted))
    listed.write_text("".join(_row(item) for item in chosen))


def _row(item: Library) -> str:
    where = "distribution" if item.is_outside else "inside"
    return f"{item.name:20}{item.oldest:10}{item.found or '-':24}{where}\n"


def kept(requirements: str, outside: set[str]) -> str:
    """The requirements without these libraries, and without what only these need."""
    texts = {found[1]: found[0] for found in re.finditer(r"(?m)^(\S+?)==.*(?:\n[ \t].*)*", requirements)}
    wanted_by = {name: _via(text) for name, text in texts.items()}
    gone = set(outside)
    while True:
        # A package that only libraries from outside name as theirs.
        more = {name for name in texts if name not in gone and wanted_by[name] and wanted_by[name] <= gone}
        if not more:
            break
        gone |= more
    return "".join(f"{text}\n" for name, text in texts.items() if name not in gone)


def _via(block: str) -> set[str]:
    """The packages that want this one; perphd itself is named so."""
    said = re.search(r"# via (.+)", block)
    names = said[1].split(",") if said else []
    return {name.split()[0] for name in names if not name.strip().startswith("-c ")}


def _installed(package: str) -> str:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    status, _, version = said.partition(" ")
    return version if status == "installed" else ""


def _epoch(version: str) -> str:
    return f"{version.partition(':')[0]}:" if ":" in version else ""


def _is_older(version: str, than: str) -> bool:
    upstream = version.partition(":")[2] or version
    return subprocess.run(["dpkg", "--compare-versions", upstream, "lt", than], check=False).returncode == 0


if __name__ == "__main__":
    main()
