"""Results as JSON lines that survive an interruption; results of the same code are not computed again."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_PHYSICS = ("perphd/sim/node", "profiles", "tools/bench/policies/oracle.py", "tools/bench/policies/scene.py")
_ALL = (
    *_PHYSICS,
    "tools/bench/policies/oracle_units.py",
    "perphd/admission",
    "perphd/agent/learning.py",
    "perphd/predictor",
    "perphd/domain",
    "tools/bench/policies",
)


def code_digest(*, physics_only: bool = False) -> str:
    """Digest of all code on which a result depends; the optimum depends only on the physics."""
    text = hashlib.sha256()
    for start in _PHYSICS if physics_only else _ALL:
        path = ROOT / start
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".toml"):
                text.update(file.read_bytes())
    return text.hexdigest()[:16]


class Lines:
    """A file of JSON objects, each with its key and the digest of the code that made it.

    ``any_code``: also use results of other code, for a report of existing results (the newest of each key counts).
    """

    def __init__(self, path: Path, digest: str, *, any_code: bool = False) -> None:
        self._path, self._digest = path, digest
        self.known: dict[str, Any] = {}
        if path.exists():
            text = path.read_text()
            if text and not text.endswith("\n"):
                path.write_text(text + "\n")  # an interruption cut the last line short: start a new line
            for line in text.splitlines():
                try:
                    item = json.loads(line)
                except json.JSONDecodeError:
                    continue  # a line that an interruption cut short
                if any_code or item.get("code") == digest:
                    self.known[item["key"]] = item["value"]

    def add(self, key: str, value: Any) -> None:
        """Store one more result."""
        self.known[key] = value
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "code": self._digest, "value": value}) + "\n")


def write_csv(path: Path, rows: Iterable[dict[str, object]]) -> None:
    """The results as a table, one row per run."""
    rows = list(rows)
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
