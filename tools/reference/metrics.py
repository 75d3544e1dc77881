"""Writes docs/metrics.md from the table of series: ``python -m tools.reference.metrics``."""

from __future__ import annotations

from pathlib import Path

from perphd.control.metrics.series import GROUPS, MetricSeries

_HEAD = """\
# Metrics

This page is generated from the table that the daemon exports (`perphd/control/metrics/series.py`). Regenerate it with
`python -m tools.reference.metrics`.

A reading that is unavailable is an absent series, never a 0. Counters start at 0 with the daemon. Units are base
units: seconds, bytes, ratios from 0 to 1, cores.

## Scrape them

Three ways, off by default except the first:

1. The control socket answers `GET /metrics` for members of the read group:
   `curl --unix-socket /run/perphd/perphd.sock http://perphd/metrics`.
2. A TCP listener:

       [metrics]
       listen = "127.0.0.1:9464"

   An address that other hosts can reach is refused unless `tls_cert`, `tls_key` and `bearer_token_file` are also set.
   The token is the first line of a file that others may not read (at least 16 characters, e.g.
   `openssl rand -hex 32`). Prometheus:

       scrape_configs:
         - job_name: perphd
           scheme: https
           authorization: {credentials_file: /etc/prometheus/perphd.token}
           static_configs: [{targets: ["db1.example:9464"]}]

   `GET /-/healthy` answers 200 while the daemon runs, without a token.
3. A file for node_exporter's textfile collector:

       [metrics]
       textfile = "/var/lib/prometheus/node-exporter/perphd.prom"

   Debian's node_exporter reads that folder already, and the unit may write there. For another folder add a drop-in with
   `ReadWritePaths=`. The file is removed when the daemon stops.

A scrape is rendered in the daemon, in 3.7 ms of CPU time for 50 workloads; `python -m tools.bench.watched` measures it.

## Dashboard and alerts

The Debian package installs to /usr/share/perphd/monitoring:

| file | for |
| --- | --- |
| `perphd-dashboard.json` | Grafana: Dashboards, Import |
| `perphd.rules.yml` | Prometheus: `rule_files`; recording rules and alerts |

Every alert links to its section in [runbooks.md](runbooks.md).
"""


def markdown() -> str:
    """The page."""
    parts = [_HEAD]
    for title, group in GROUPS.items():
        parts.append(f"\n## {title}\n\n| series | type | labels | meaning |\n| --- | --- | --- | --- |\n")
        parts += [_row(series) for series in group]
    return "".join(parts)


def _row(series: MetricSeries) -> str:
    labels = ", ".join(f"`{label}`" for label in series.labels) or "-"
    return f"| `{series.name}` | {series.type} | {labels} | {series.text} |\n"


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs/metrics.md").write_text(markdown())
