"""Which Python packages the Debian package holds, and which it leaves to the distribution."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "packaging/debian"
REQUIREMENTS = (DEBIAN / "requirements.txt").read_text()
LIBRARIES = [
    line.split()
    for line in (DEBIAN / "libraries.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
kept = runpy.run_path(str(DEBIAN / "distribution.py"))["kept"]


def names(requirements: str) -> set[str]:
    return set(re.findall(r"(?m)^(\S+?)==", requirements))


def test_nothing_from_outside_leaves_all_inside() -> None:
    assert names(kept(REQUIREMENTS, set())) == names(REQUIREMENTS)
    assert kept(REQUIREMENTS, set()).count("--hash=") == REQUIREMENTS.count("--hash=")


def test_what_only_a_library_from_outside_needs_stays_outside_with_it() -> None:
    everything = names(REQUIREMENTS)
    assert everything - names(kept(REQUIREMENTS, {"rich", "textual"})) == {
        *("rich", "pygments", "markdown-it-py", "mdurl"),
        *("textual", "linkify-it-py", "mdit-py-plugins", "platformdirs"),
    }
    left = names(kept(REQUIREMENTS, {"pg8000"}))
    assert {"scramp", "asn1crypto", "python-dateutil", "tzdata"} & left == set()
    # aiohttp stays, and so does what it shares with nobody.
    assert {"aiohttp", "multidict", "yarl", "attrs", "idna"} <= left


def test_every_library_is_one_that_is_pinned_and_works_from_the_version_on_that_pyproject_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(project["optional-dependencies"][name][0] for name in ("network",))]
    wanted += project["optional-dependencies"]["systemd"]
    oldest = {found[1].lower(): found[2] for item in wanted if (found := re.match(r"(\S+) >= (\S+)", item))}
    assert {name for name, _, _ in LIBRARIES} == oldest.keys() - {"cgroupspy", "msgspec"}, (
        "Debian 12 lacks these two"
    )
    for name, _, version in LIBRARIES:
        assert name in names(REQUIREMENTS)
        assert version == oldest[name], name


def test_each_package_of_the_distribution_is_there_when_the_package_is_built() -> None:
    control = (DEBIAN / "control").read_text()
    listed = (ROOT / "packaging/apt-packages.txt").read_text().partition("[deb]")[2].partition("\n[")[0]
    for _, package, _ in LIBRARIES:
        assert f" {package},\n" in control
        assert re.search(rf"(?m)^{package}\b", listed)
