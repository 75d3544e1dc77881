"""The shipped dashboard and rules name series that exist, and every alert has its runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from perphd.adapters.kubernetes.metrics import ExtenderMetrics, FleetCollector, PublisherMetrics
from perphd.control.metrics.series import SERIES
from tests.unit.test_cluster_extender import document
from tests.unit.tools_found import prometheus_tool
from tools.monitoring import fleet
from tools.monitoring.dashboard import TARGET, dashboard, text

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging/monitoring/perphd.rules.yml"
RULES_TEST = ROOT / "tests/fixtures/monitoring/perphd.rules.test.yml"
FLEET_RULES = ROOT / "packaging/monitoring/perphd-fleet.rules.yml"
FLEET_TEST = ROOT / "tests/fixtures/monitoring/perphd-fleet.rules.test.yml"
ANEW = "run python -m tools.monitoring.dashboard"
_NAME = re.compile(r"\b(?:perphd|process)_[a-z0-9_]+|\bperphd:[a-z0-9_:]+")


def known() -> set[str]:
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    parts = {
        f"{s.name}_{part}"
        for s in SERIES.values()
        if s.type == "histogram"
        for part in ("bucket", "sum", "count")
    }
    return set(SERIES) | recorded | parts


def test_the_dashboard_is_what_its_code_makes():
    assert TARGET.read_text() == text(), ANEW


def test_every_name_on_the_dashboard_exists():
    made = dashboard()
    exprs = [t["expr"] for panel in made["panels"] for t in panel.get("targets", ())]
    exprs += [a["expr"] for a in made["annotations"]["list"]]
    exprs += [v["query"]["query"] for v in made["templating"]["list"] if v["type"] == "query"]
    named = {name for expr in exprs for name in _NAME.findall(expr)}
    assert len(named) > 20
    assert named <= known()


def test_every_label_on_the_dashboard_exists():
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            for name, inside in re.findall(r"\b(perphd_[a-z0-9_]+)\{([^}]*)\}", target["expr"]):
                series = SERIES.get(re.sub(r"_bucket$", "", name))
                assert series is not None
                used = set(re.findall(r"(\w+)=~?\"", inside)) - {"instance"}
                assert used <= set(series.labels), target["expr"]


def test_panels_fill_a_grid_without_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not taken & cells, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_every_name_in_the_rules_exists():
    exprs = "\n".join(
        line for line in RULES.read_text().splitlines() if "url:" not in line and "alert:" not in line
    )
    exprs = re.sub(r'"[^"]*"', "", exprs)
    named = set(_NAME.findall(exprs))
    assert len(named) > 15
    assert named <= known()


def test_every_alert_has_its_runbook_and_every_runbook_its_alert():
    alerts = re.findall(r"alert: (\S+)", RULES.read_text())
    for rules in (RULES, FLEET_RULES):
        urls = re.findall(
            r'runbook_url: "file:///usr/share/doc/perphd/runbooks\.md#(\S+)"', rules.read_text()
        )
        assert urls == [alert.lower() for alert in re.findall(r"alert: (\S+)", rules.read_text())]
    headings = re.findall(r"^## (\S+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
    alerts += re.findall(r"alert: (\S+)", FLEET_RULES.read_text())
    assert headings == alerts


@pytest.mark.parametrize(("rules", "test"), [(RULES, RULES_TEST), (FLEET_RULES, FLEET_TEST)])
def test_every_alert_is_tried(rules: Path, test: Path):
    tried = test.read_text()
    for alert in re.findall(r"alert: (\S+)", rules.read_text()):
        assert f"alertname: {alert}," in tried, "not in the quiet case"
        assert f'alertname="{alert}"' in tried, "not in the incident"


@pytest.mark.parametrize(("rules", "test"), [(RULES, RULES_TEST), (FLEET_RULES, FLEET_TEST)])
def test_promtool_accepts_the_rules_and_their_tests_pass(tmp_path: Path, rules: Path, test: Path):
    promtool = prometheus_tool("promtool")
    for file in (rules, test):
        shutil.copy(file, tmp_path)
    for command in (["check", "rules", rules.name], ["test", "rules", test.name]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    json.loads(TARGET.read_text())


def fleet_series() -> dict[str, set[str]]:
    """Samples that the extender and the publisher really write, with their labels."""
    extender = ExtenderMetrics(FleetCollector({"n": document()}, {}))
    extender.seconds.labels("filter").observe(0.1)
    extender.decisions.labels("copper", "placeable").inc()
    publisher = PublisherMetrics()
    publisher.published_unix_s = 1.0
    found: dict[str, set[str]] = {}

    def add(registry: CollectorRegistry) -> None:
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)

    add(extender.registry)
    add(publisher.registry)
    return found


def test_the_fleets_board_is_what_its_code_makes():
    assert fleet.TARGET.read_text() == fleet.text(), "run python -m tools.monitoring.fleet"


def test_every_name_and_label_of_the_fleets_board_and_rules_exists():
    known = fleet_series()
    made = fleet.dashboard()
    exprs = [t["expr"] for panel in made["panels"] for t in panel.get("targets", ())]
    exprs += [v["query"]["query"] for v in made["templating"]["list"] if v["type"] == "query"]
    exprs += re.findall(r"(?m)^        expr: (.+)$", FLEET_RULES.read_text())
    named = {name for expr in exprs for name in _NAME.findall(expr)}
    assert len(named) > 12
    assert named <= known.keys()
    of_prometheus = {"instance", "job", "le"}
    for expr in exprs:
        for name, inside in re.findall(r"\b(perphd_[a-z0-9_]+)\{([^}]*)\}", expr):
            assert set(re.findall(r"(\w+)!?=~?\"", inside)) <= known[name] | of_prometheus, expr
