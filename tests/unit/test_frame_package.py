"""What the Debian package ships and recommends beside the program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "packaging/debian"


def _settings(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_drop_in_for_egress_ceilings_is_the_one_that_is_explained() -> None:
    explained = re.search(r"/network\.conf`:\n\n((?:      .+\n)+)", (ROOT / "docs/knobs.md").read_text())
    assert explained is not None
    assert _settings((DEBIAN / "examples/network.conf").read_text()) == _settings(explained[1])


def test_the_drop_in_for_tcp_latency_is_the_one_that_is_explained() -> None:
    page = (ROOT / "docs/how-to/tcp-latency.md").read_text()
    explained = re.search(r"`tcp\.conf`\):\n\n((?:      .+\n)+)", page)
    assert explained is not None
    assert _settings((DEBIAN / "examples/tcp.conf").read_text()) == _settings(explained[1])


def test_what_the_package_s_readme_names_is_shipped() -> None:
    named = set(re.findall(r"/usr/share/doc/perphd/(\S+)", (DEBIAN / "README.Debian").read_text()))
    shipped = {f"examples/{path.name}" for path in (DEBIAN / "examples").iterdir()}
    assert named == shipped


PAGES = (
    "config.md",
    "openapi.json",
    "faults.md",
    "knobs.md",
    "predictor.md",
    "profiles.md",
    "architecture.md",
    "glossary.md",
    "metrics.md",
    "runbooks.md",
    "tutorial.md",
    "troubleshooting.md",
    "explanation/concepts.md",
    "explanation/worst-case.md",
)
"""Documents that the package installs beside the manual pages."""


def test_what_the_package_s_rules_ship_is_there() -> None:
    shipped = re.search(r"/usr/share/doc/perphd (CHANGELOG.md docs/.+)", (DEBIAN / "rules").read_text())
    assert shipped is not None
    assert shipped[1].split() == ["CHANGELOG.md", *(f"docs/{name}" for name in PAGES)]
    assert all((ROOT / name).is_file() for name in shipped[1].split())


def test_programs_that_perphd_calls_are_recommended() -> None:
    found = re.search(r"^Recommends: ((?:.+\n)(?: .+\n)*)", (DEBIAN / "control").read_text(), re.MULTILINE)
    assert found is not None
    assert {"dbus", "iproute2"} <= {name.strip() for name in found[1].split(",")}


def test_the_monitoring_files_are_shipped() -> None:
    assert "/usr/share/perphd/monitoring packaging/monitoring/*" in (DEBIAN / "rules").read_text()
    names = {path.name for path in (ROOT / "packaging/monitoring").iterdir()}
    assert names == {
        *("perphd-dashboard.json", "perphd.rules.yml"),
        *("perphd-fleet.json", "perphd-fleet.rules.yml"),
    }
