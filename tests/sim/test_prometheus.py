"""Debian's Prometheus scrapes a running daemon, and the shipped alerts fire on an incident of its simulated host."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools_found import prometheus_tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging/monitoring/perphd.rules.yml"
PATIENCE_S = 240.0


DASHBOARD = ROOT / "packaging/monitoring/perphd-dashboard.json"


def dashboard_queries() -> list[str]:
    """Every query of the Grafana dashboard, with what Grafana puts in place of its variables."""
    made = json.loads(DASHBOARD.read_text())
    exprs = [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]
    exprs += [item["expr"] for item in made["annotations"]["list"]]
    assert len(exprs) > 30
    spans = {"$__rate_interval": "1m", "$__range": "15m"}
    return [re.sub(r"\$\w+", lambda found: spans.get(found[0], ".+"), expr) for expr in exprs]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def awaited(what: Callable[[], Any], told: Path) -> Any:
    """What this gives once it is true; a failure shows the log."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            if found := what():
                return found
        except OSError:
            pass
        time.sleep(0.5)
    pytest.fail(f"not within {PATIENCE_S:g} s; {told.read_text()[-2000:]}")


def test_alerts_fire_on_an_incident(tmp_path: Path):
    prometheus = prometheus_tool("prometheus")
    ours, theirs = free_port(), free_port()
    config = tmp_path / "perphd.toml"
    config.write_text(
        f"""
[tuning.host]
kind = "simulated"
[daemon]
mode = "observe"
state_dir = "{tmp_path}/state"
socket = "{tmp_path}/s"
[metrics]
listen = "127.0.0.1:{ours}"
textfile = "{tmp_path}/perphd.prom"
[tuning.metrics]
textfile_period_s = 1
[[lra]]
name = "mysql"
cgroup = "/apps/mysql"
[[batch]]
name = "report"
cgroup = "/batch/report"
"""
    )
    # The shipped rules; only the times for which a condition must hold are shortened.
    rules = tmp_path / "perphd.rules.yml"
    rules.write_text(re.sub(r"for: \d+[mh]", "for: 2s", RULES.read_text()))
    scrape = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "perphd", "static_configs": [{"targets": [f"127.0.0.1:{ours}"]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(scrape))  # JSON is YAML
    base = f"http://127.0.0.1:{theirs}/api/v1"

    def value(expr: str) -> float | None:
        data = asked(f"{base}/query?{urllib.parse.urlencode({'query': expr})}")
        results = data["data"]["result"]
        return float(results[0]["value"][1]) if results else None

    def firing() -> set[str]:
        alerts = asked(f"{base}/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    daemon_log, prometheus_log = tmp_path / "daemon.log", tmp_path / "prometheus.log"
    command = [
        prometheus,
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{theirs}",
    ]
    start = "from perphd.commands.daemon import main; main()"
    daemon = [sys.executable, "-c", start, "run", "--config", str(config)]
    with running(command, prometheus_log):
        with running(daemon, daemon_log):
            awaited(lambda: value("perphd_ticks_total"), daemon_log)
            assert value('up{job="perphd"}') == 1
            assert "PerphdLraDegraded" not in firing()
            # Batch arrives after half a minute and, in mode observe, is let do its worst.
            awaited(lambda: "PerphdLraDegraded" in firing(), daemon_log)
            assert (value('perphd_lra_health_seconds_total{health="degraded"}') or 0) > 0
            awaited(lambda: value("perphd_lra_unprotected_seconds_total"), daemon_log)
            assert (value("sum(perphd_writes_total)") or 0) == 0  # observe
            answered = [expr for expr in dashboard_queries() if value(expr) is not None]
            assert len(answered) >= 20, answered
            assert b"perphd_ticks_total" in (tmp_path / "perphd.prom").read_bytes()
        assert not (tmp_path / "perphd.prom").exists()
        awaited(lambda: "PerphdDown" in firing(), prometheus_log)
