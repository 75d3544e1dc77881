"""Read committed datasets, or commit a folder's files: python -m tools.dataset verify|get|put.

    python -m tools.dataset verify s3://bucket/hosts/db1/20261123T030000Z
    python -m tools.dataset get /srv/exports/monday into/this/folder
    python -m tools.dataset put out/lab s3://bucket/lab/monday

Only parts named by a manifest are read, and their size and digest are verified.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from perphd.dataset.attempt import attempt, read_manifest, read_part
from perphd.dataset.manifest import DatasetError, Manifest, NotCommitted
from perphd.dataset.stores import ObjectStore, open_store
from perphd.domain.units import format_bytes


def verify(store: ObjectStore) -> Manifest:
    """Read all of a dataset. Raises DatasetError if it is not what was committed."""
    manifest = read_manifest(store)
    for part in manifest.parts:
        for _ in read_part(store, part):
            pass
    return manifest


def get(store: ObjectStore, folder: Path) -> Manifest:
    """Copy a dataset's parts into a folder, under their names in the dataset; a damaged part does not remain there."""
    manifest = read_manifest(store)
    folder.mkdir(parents=True, exist_ok=True)
    for part in manifest.parts:
        path = folder / part.name
        try:
            with open(path, "wb") as file:
                for piece in read_part(store, part):
                    file.write(piece)
        except DatasetError:
            path.unlink(missing_ok=True)
            raise
    return manifest


def put(folder: Path, store: ObjectStore) -> Manifest:
    """Commit all files below a folder as one dataset; their relative paths are the parts' sources."""
    try:
        raise DatasetError(f"{store}: already committed by attempt {read_manifest(store).attempt}")
    except NotCommitted:
        pass
    with attempt(store) as made:
        for path in sorted(each for each in folder.glob("**/*") if each.is_file()):
            made.add_file(path, str(path.relative_to(folder)))
        return made.commit({"folder": folder.name})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("verify", ["place"]), ("get", ["place", "folder"]), ("put", ["folder", "place"])):
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word)
    given = parser.parse_args(arguments)
    try:
        store = open_store(given.place)
        match given.command:
            case "verify":
                manifest = verify(store)
            case "get":
                manifest = get(store, Path(given.folder))
            case _:
                manifest = put(Path(given.folder), store)
    except DatasetError as exc:
        print(f"dataset: {exc}", file=sys.stderr)
        return 1
    for part in manifest.parts:
        print(f"{part.name}  {part.source}  {format_bytes(part.bytes)}")
    print(f"{store}: {len(manifest.parts)} parts, {format_bytes(manifest.bytes)}, attempt {manifest.attempt}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
