"""Memory of the daemon by import: runs as a separate process and prints JSON.

    python -m tools.bench.memory

Wraps the import statement and charges the growth of resident memory to the top-level package whose module was
being loaded, without the growth by that module's own imports.
"""

from __future__ import annotations

import builtins
import json
import resource
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ENTRY = ("perphd.commands.daemon", "perphd.control.server", "perphd.agent.service")
"""Modules that a running daemon has imported."""
_PAGE = resource.getpagesize()
_STATM = Path("/proc/self/statm")


def rss_bytes() -> int:
    """Resident memory of this process now."""
    return int(_STATM.read_text().split()[1]) * _PAGE


class ImportMeter:
    """Charges resident memory to packages while it is installed."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = defaultdict(int)
        self._nested: list[int] = [0]
        self._original = builtins.__import__

    def install(self) -> None:
        """Begin to charge."""
        builtins.__import__ = self._import

    def remove(self) -> None:
        """End."""
        builtins.__import__ = self._original

    def _import(self, name: str, *args: Any, **keywords: Any) -> Any:
        given = dict(zip(("globals", "locals", "fromlist", "level"), args, strict=False), **keywords)
        full = _absolute(name, given.get("globals") or {}, given.get("level", 0))
        if full in sys.modules and not given.get("fromlist"):
            return self._original(name, *args, **keywords)
        self._nested.append(0)
        before = rss_bytes()
        try:
            return self._original(name, *args, **keywords)
        finally:
            grown = rss_bytes() - before
            inside = self._nested.pop()
            self._nested[-1] += grown
            self.bytes[_owner(full)] += grown - inside


def _absolute(name: str, importer: dict[str, Any], level: int) -> str:
    if not level:
        return name
    package = (importer.get("__package__") or "").split(".")
    return ".".join([*package[: len(package) - level + 1], *([name] if name else [])])


def _owner(module: str) -> str:
    top = module.partition(".")[0]
    return "(standard library)" if top in sys.stdlib_module_names else top


def main() -> None:
    """Import the daemon's modules and print their memory."""
    bare = rss_bytes()
    meter = ImportMeter()
    meter.install()
    from perphd.host.tls import no_authorities  # imported here, because its memory is measured as well

    with no_authorities():  # as the daemon does
        for module in ENTRY:
            __import__(module)
    meter.remove()
    packages = {
        name: size for name, size in sorted(meter.bytes.items(), key=lambda item: -item[1]) if size > 0
    }
    json.dump({"bare_bytes": bare, "total_bytes": rss_bytes(), "packages_bytes": packages}, sys.stdout)


if __name__ == "__main__":
    main()
