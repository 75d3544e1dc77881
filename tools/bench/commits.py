"""Cost of committing an export on an object store: requests and bytes, compared with committers that rename.

    python -m tools.bench.commits

Counted at moto's S3-compatible server on loopback (pip install 'moto[s3]' flask flask-cors). The comparators imitate
Hadoop's FileOutputCommitter through the same client: version 1 renames at task commit and again at job commit, version
2 only at task commit. An object store renames by copying and deleting.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perphd.dataset.attempt import Attempt
from perphd.dataset.manifest import SUCCESS
from perphd.dataset.stores import open_store
from tools.bench.object_server import BUCKET, ObjectServer, object_server

_COPIES = "x-amz-copy-source"


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs of one job. ``requests`` by kind; ``bytes``: written and copied, as a multiple of the parts' size."""

    requests: Counter[str]
    times_written: float

    @property
    def total(self) -> int:
        return self.requests.total()


def manifest_committer(server: ObjectServer, name: str, parts: int, data: bytes) -> None:
    """perphd's own."""
    attempt = Attempt(open_store(server.url(name)))
    for number in range(parts):
        attempt.add(f"part {number}", "", lambda file: file.write(data))
    attempt.commit()


def renaming_committer(server: ObjectServer, name: str, parts: int, data: bytes, version: int) -> None:
    """FileOutputCommitter, version 1 or 2."""
    from pyarrow import fs

    client = fs.S3FileSystem(
        endpoint_override=server.address, scheme="http", region="us-east-1", allow_delayed_open=True
    )
    base = f"{BUCKET}/{name}"
    temporary = f"{base}/_temporary/0"
    client.create_dir(f"{temporary}/_temporary")
    for number in range(parts):
        work = f"{temporary}/_temporary/attempt_{number}"
        client.create_dir(work, recursive=False)
        with client.open_output_stream(f"{work}/part-{number:05d}") as stream:
            stream.write(data)
        target = base if version == 2 else f"{temporary}/task_{number}"
        if version == 1:
            client.create_dir(target, recursive=False)
        _rename_all(fs, client, work, target)
        client.delete_dir(work)
    if version == 1:
        for number in range(parts):
            _rename_all(fs, client, f"{temporary}/task_{number}", base)
    client.delete_dir(f"{base}/_temporary")
    with client.open_output_stream(f"{base}/{SUCCESS}"):
        pass


def _rename_all(fs: Any, client: Any, source: str, target: str) -> None:
    for found in client.get_file_info(fs.FileSelector(source)):
        if found.type == fs.FileType.File:
            client.move(found.path, f"{target}/{found.base_name}")


def cost(server: ObjectServer, run: Callable[[str], None], name: str, data_bytes: int) -> Cost:
    """Count the requests and bytes of one job."""
    server.revive()
    run(name)
    kinds: Counter[str] = Counter()
    written = 0
    for seen in server.requests:
        copies = _COPIES in seen.headers
        kinds["COPY" if copies else "LIST" if "list-type" in seen.query else seen.method] += 1
        written += data_bytes if copies else seen.bytes if seen.method == "PUT" and "part-" in seen.key else 0
    return Cost(kinds, written / data_bytes)


def table(part_counts: tuple[int, ...] = (1, 8), part_bytes: int = 1 << 20) -> str:
    """The measured table, as Markdown."""
    data = bytes(part_bytes)
    lines = [
        "| committer | parts | requests | per part | times written | by kind |",
        "|---|---|---|---|---|---|",
    ]
    with object_server() as server:
        for parts in part_counts:
            runs: dict[str, Callable[[str], None]] = {
                "manifest (perphd)": lambda name, n=parts: manifest_committer(server, name, n, data),  # type: ignore[misc]
                "rename, version 2": lambda name, n=parts: renaming_committer(server, name, n, data, 2),  # type: ignore[misc]
                "rename, version 1": lambda name, n=parts: renaming_committer(server, name, n, data, 1),  # type: ignore[misc]
            }
            for label, run in runs.items():
                found = cost(server, run, f"{label.replace(' ', '')}/{parts}", part_bytes)
                kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(found.requests.items()))
                lines.append(
                    f"| {label} | {parts} | {found.total} | {found.total / parts:.1f} | "
                    f"{found.times_written / parts:.0f} | {kinds} |"
                )
    return "\n".join(lines)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(table())


if __name__ == "__main__":
    main()
