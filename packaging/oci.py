"""oci.py LAYER.tar IMAGE.tar VERSION: an OCI image layout with one layer, as a tar file. The same each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
COMMAND = ["/usr/bin/perphd", "run"]


def main() -> None:
    """Write the image."""
    layer, image, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    made_s = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "layer.tar.gz")
        with (
            layer.open("rb") as source,
            packed.open("wb") as target,
            gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=made_s) as squeezed,
        ):
            shutil.copyfileobj(source, squeezed)
        write(image, packed, digest(layer), version, made_s)


def write(image: Path, packed: Path, diff_id: str, version: str, made_s: int) -> None:
    """The layout around this compressed layer. ``diff_id``: the digest of the layer before it was compressed."""
    created = datetime.fromtimestamp(made_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = {
        "created": created,
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Cmd": COMMAND,
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "perphd",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "packaging/build-oci"}],
    }
    config_bytes = dumped(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", config_bytes),
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": digest(packed),
                "size": packed.stat().st_size,
            }
        ],
    }
    manifest_bytes = dumped(manifest)
    entry = described("application/vnd.oci.image.manifest.v1+json", manifest_bytes)
    entry["annotations"] = {
        "org.opencontainers.image.ref.name": f"perphd:{version}",
        "io.containerd.image.name": f"docker.io/library/perphd:{version}",  # what kubelet makes of perphd:VERSION
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    with tarfile.open(image, "w", format=tarfile.USTAR_FORMAT) as tar:
        add(tar, "oci-layout", dumped({"imageLayoutVersion": "1.0.0"}), made_s)
        add(tar, "index.json", dumped(index), made_s)
        for content in (config_bytes, manifest_bytes):
            add(tar, blob(described("", content)["digest"]), content, made_s)
        info = tarfile.TarInfo(blob(digest(packed)))
        info.size, info.mtime = packed.stat().st_size, made_s
        with packed.open("rb") as file:
            tar.addfile(info, file)


def add(tar: tarfile.TarFile, name: str, content: bytes, made_s: int) -> None:
    """One small file of the layout."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(content), made_s
    tar.addfile(info, io.BytesIO(content))


def blob(found: str) -> str:
    """The path of the content with this digest."""
    return f"blobs/{found.replace(':', '/')}"


def described(kind: str, content: bytes) -> dict[str, Any]:
    """A descriptor."""
    return {
        "mediaType": kind,
        "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        "size": len(content),
    }


def dumped(value: object) -> bytes:
    """Canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


if __name__ == "__main__":
    main()
