"""What people are told where a package that only some commands need is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.domain.extras import PACKAGED, how_to_get, how_to_get_beside

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ["worker", "lab", "export", "top"])
def test_advice_about_extras_can_be_followed(extra: str) -> None:
    command = f"pip install 'perphd[{extra}]'"
    assert how_to_get(extra) == command
    packaged = how_to_get(extra, f"{PACKAGED}/perphd/domain/extras.py")
    assert packaged.startswith("not in the Debian package; use a checkout's virtual environment (make venv)")
    assert packaged.endswith(command)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    assert f"lib := $(top){PACKAGED}" in (ROOT / "packaging/debian/rules").read_text()


def test_nobody_else_words_that_advice() -> None:
    here = ROOT / "perphd/domain/extras.py"
    files = [path for path in (ROOT / "perphd").rglob("*.py") if path != here]
    assert len(files) > 100
    assert [str(path) for path in files if "pip install" in path.read_text()] == []


def test_the_package_is_told_of_a_pyarrow_that_works_with_its_numpy() -> None:
    packaged = how_to_get_beside("pyarrow", "export", f"{PACKAGED}/perphd/domain/extras.py")
    assert packaged.endswith("--target /usr/local/lib/perphd 'pyarrow<25'")
    assert how_to_get_beside("pyarrow", "export") == "pip install 'perphd[export]'"
