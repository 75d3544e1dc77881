"""python -m tools.vendor_web: fetch the browser libraries of the dashboard again, from their npm packages.

``vendored.json`` pins each package by the registry's hash, and each file by its own. Other content is refused; for
another version, change the list first.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "perphd/commands/dashboard/static/vendor"
LIST = VENDOR / "vendored.json"


def integrity(archive: bytes) -> str:
    """The hash of a package in npm's format."""
    return f"sha512-{base64.b64encode(hashlib.sha512(archive).digest()).decode()}"


def members(archive: Path, item: dict[str, Any]) -> dict[str, bytes]:
    """The wanted files of a package. Raises SystemExit if the hash of the package or of a file differs."""
    found = integrity(archive.read_bytes())
    if found != item["integrity"]:
        sys.exit(f"{item['package']} {item['version']}: its hash is {found}, pinned is {item['integrity']}")
    files = {}
    with tarfile.open(archive) as tar:
        for name, pin in item["files"].items():
            member = tar.extractfile(f"package/{pin['from']}")
            content = b"" if member is None else member.read()
            if hashlib.sha256(content).hexdigest() != pin["sha256"]:
                sys.exit(f"{item['package']} {item['version']}: {pin['from']} is not the pinned file")
            files[name] = content
    return files


def main() -> None:
    """Fetch, check, write."""
    for item in json.loads(LIST.read_text()):
        with tempfile.TemporaryDirectory() as folder:
            wanted = f"{item['package']}@{item['version']}"
            subprocess.run(
                ["npm", "pack", "--silent", wanted], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
            (archive,) = Path(folder).glob("*.tgz")
            for name, content in members(archive, item).items():
                (VENDOR / name).write_bytes(content)
        print(f"{wanted}: {', '.join(item['files'])}")


if __name__ == "__main__":
    main()
