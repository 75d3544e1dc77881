"""The browser libraries in the package are the pinned ones, and the pages ask for nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from perphd.commands.dashboard.server import STATIC

ROOT = Path(__file__).parents[2]
VENDORED = json.loads((STATIC / "vendor/vendored.json").read_text())


def test_every_file_is_the_pinned_one():
    pinned = {name: pin["sha256"] for item in VENDORED for name, pin in item["files"].items()}
    there = {path.name for path in (STATIC / "vendor").iterdir()} - {"vendored.json"}
    assert there == set(pinned)
    for name, digest in pinned.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_licences_are_named_where_debian_looks():
    text = (ROOT / "packaging/debian/copyright").read_text()
    assert {item["license"] for item in VENDORED} == {"MIT"}
    holder = re.search(r"Copyright \(c\) (.+)", (STATIC / "vendor/uPlot.LICENSE").read_text())
    assert holder is not None
    assert f"Copyright: {holder[1]}\nLicense: Expat\n" in text


def test_pages_have_no_inline_script_or_style_and_ask_no_other_server():
    for path in STATIC.rglob("*"):
        if path.suffix not in (".html", ".js", ".css") or path.parent.name == "vendor":
            continue
        text = path.read_text()
        outside = [
            url for url in re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"')]*", text) if "www.w3.org" not in url
        ]
        assert outside == [], path
        assert "innerHTML" not in text, path
        if path.suffix == ".html":
            assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text) == [], path
            for name in re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", text):
                assert (STATIC / name.removeprefix("/static/")).is_file(), name


def test_scripts_import_only_what_is_there():
    for path in (STATIC / "js").iterdir():
        for name in re.findall(r"from \"(.+?)\"", path.read_text()):
            assert (path.parent / name).is_file(), f"{path.name}: {name}"
