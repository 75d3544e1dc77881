"""Small files are replaced as a whole, or stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perphd.domain.errors import ConfigError
from perphd.host.state_files import replace_text


@pytest.mark.parametrize("content", ["a text, \N{GREEK SMALL LETTER MU}s\r\n", b"\x00\xff\r\n"])
def test_the_content_is_there_to_the_byte(tmp_path: Path, content: str | bytes) -> None:
    target = tmp_path / "new" / "file"
    replace_text(target, content, 0o600)
    assert target.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_temporary_file_s_place_is_not_followed(tmp_path: Path) -> None:
    target, other = tmp_path / "file", tmp_path / "other"
    target.write_text("before")
    other.write_text("somebody else's")
    (tmp_path / ".file.new").symlink_to(other)
    with pytest.raises(ConfigError, match="cannot be written"):
        replace_text(target, "after")
    assert (target.read_text(), other.read_text()) == ("before", "somebody else's")
    replace_text(target, "after")  # the link is gone
    assert target.read_text() == "after"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_text("before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space"):
        replace_text(target, b"after")
    assert os.listdir(tmp_path) == ["file"]
    assert target.read_text() == "before"
