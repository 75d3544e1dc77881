"""Table ``[metrics]``: where Prometheus fetches the metrics, and the file that node_exporter reads."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from perphd.agent.config_schema import setting
from perphd.domain.endpoint import parse_endpoint
from perphd.domain.errors import ConfigError

_KEYS = ("tls_cert", "tls_key", "bearer_token_file")


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Table ``[metrics]``. Nothing listens and nothing is written unless it says so."""

    listen: str = setting(
        "",
        "address and port that answer GET /metrics over TCP. Beyond loopback, tls_cert, tls_key and bearer_token_file "
        "are required. Empty: only the control socket answers",
        kind="endpoint",
    )
    tls_cert: str = setting("", "certificate with its chain, PEM; empty: no TLS", kind="optional-path")
    tls_key: str = setting("", "private key of the certificate, PEM", kind="optional-path")
    bearer_token_file: str = setting(
        "",
        "file whose first line is the token that clients must send (Authorization: Bearer ...); empty: none",
        kind="optional-path",
    )
    textfile: str = setting(
        "",
        "file that is replaced every textfile_period_s with the metrics, for node_exporter's textfile collector, such "
        "as /var/lib/prometheus/node-exporter/perphd.prom. Empty: none",
        kind="optional-path",
    )
    textfile_period_s: float = setting(
        15.0, "time between two versions of the textfile", low=1.0, high=3600.0, unit="s", expert=True
    )


def check_metrics(metrics: MetricsConfig, source: str) -> None:
    """Refuse a listener that shows the host to the network without TLS and a token.

    Raises:
        ConfigError: a key is missing, or stands without the one that it belongs to.
    """
    if bool(metrics.tls_cert) != bool(metrics.tls_key):
        missing = "tls_key" if metrics.tls_cert else "tls_cert"
        raise ConfigError(source, f"metrics.{missing}", "is missing", "tls_cert together with tls_key")
    if not metrics.listen:
        for key in _KEYS:
            if getattr(metrics, key):
                raise ConfigError(source, f"metrics.{key}", "has no effect without listen", "listen as well")
        return
    address, _ = parse_endpoint(metrics.listen)
    missing_keys = [key for key in _KEYS if not getattr(metrics, key)]
    if missing_keys and not ipaddress.ip_address(address).is_loopback:
        text = f"{metrics.listen!r} can be reached from other hosts, and {', '.join(missing_keys)} is not set"
        allowed = "a loopback address such as 127.0.0.1:9464, or tls_cert, tls_key and bearer_token_file"
        raise ConfigError(source, "metrics.listen", text, allowed)
