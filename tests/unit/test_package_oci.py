"""The OCI image: a layout whose digests are right, and the same from the same layer."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(layer: Path, image: Path) -> dict[str, bytes]:
    command = [sys.executable, str(ROOT / "packaging/oci.py"), str(layer), str(image), "0.1.0"]
    subprocess.run(command, check=True, env={"SOURCE_DATE_EPOCH": "1700000000"})
    with tarfile.open(image) as tar:
        return {item.name: file.read() for item in tar if (file := tar.extractfile(item)) is not None}


def test_every_digest_is_that_of_its_content(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"files" * 1000)
    found = build(layer, tmp_path / "a.tar")
    for name, content in found.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(content).hexdigest() == name.rsplit("/", 1)[1]
    entry = json.loads(found["index.json"])["manifests"][0]
    manifest = json.loads(blob(found, entry))
    config = json.loads(blob(found, manifest["config"]))
    assert gzip.decompress(blob(found, manifest["layers"][0])) == layer.read_bytes()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"]
    assert config["config"]["Cmd"] == ["/usr/bin/perphd", "run"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "perphd:0.1.0"
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/perphd:0.1.0"


def blob(found: dict[str, bytes], descriptor: dict[str, object]) -> bytes:
    content = found[f"blobs/{str(descriptor['digest']).replace(':', '/')}"]
    assert len(content) == descriptor["size"]
    return content


def test_equal_layers_give_equal_images(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"x" * 4096)
    build(layer, tmp_path / "a.tar")
    build(layer, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
