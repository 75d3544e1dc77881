"""What a configuration may say about SLI sources."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import ConfigError
from perphd.domain.workload import SliSpec
from perphd.monitor.sli import OPTIONS, PushSource, open_source, validate_options

GOOD = {
    "mysql": {"socket": "/run/m.sock", "metric": "transactions", "timeout_s": "0.5"},
    "postgresql": {"host": "127.0.0.1", "port": "5433", "database": "shop"},
    "redis": {"latency": "tcp"},
    "prometheus": {"url": "http://127.0.0.1:9104/metrics", "work": 'requests_total{code="200"}'},
    "tcp": {"ports": "80, 8080", "from": "first"},
    "file": {"path": "/run/app/sli"},
    "command": {"command": "/usr/bin/env 'two words'"},
    "push": {"max_age_s": "5"},
}


def test_every_source_has_an_accepted_example():
    assert GOOD.keys() == OPTIONS.keys()


@pytest.mark.parametrize("source", sorted(GOOD))
async def test_accepted(source: str):
    spec = validate_options(source, GOOD[source])
    assert dict(spec.options) == GOOD[source]
    opened = open_source(spec)
    assert isinstance(opened, PushSource) == (source == "push")
    await opened.close()
    await opened.close()


@pytest.mark.parametrize(
    ("source", "options", "key", "allowed"),
    [
        ("oracle", {}, "source", "mysql"),
        ("mysql", {"sokcet": "/x"}, "sokcet", "socket"),
        ("mysql", {"socket": "run/m.sock"}, "socket", "absolute path"),
        ("mysql", {"metric": "commits"}, "metric", "queries or transactions"),
        ("mysql", {"port": "3306"}, "port", "host and port"),
        ("mysql", {"socket": "/x", "host": "h"}, "host", "one of the two"),
        ("mysql", {"host": "h", "port": "0"}, "port", "65535"),
        ("mysql", {"host": "h", "port": "٣"}, "port", "65535"),
        ("mysql", {"user": ""}, "user", "printable"),
        ("tcp", {"ports": "80,"}, "ports", "65535"),
        ("tcp", {"ports": ",".join(["80"] * 17)}, "ports", "16 ports"),
        ("tcp", {"from": "middle"}, "from", "last or first"),
        ("mysql", {"latency": "udp"}, "latency", "none, tcp or server"),
        ("postgresql", {"latency": "server"}, "latency", "none or tcp"),
        ("push", {"max_age_s": "0"}, "max_age_s", "more than 0"),
        ("push", {"max_age_s": "nan"}, "max_age_s", "more than 0"),
        ("push", {"max_age_s": "1e99"}, "max_age_s", "86400"),
        ("file", {}, "path", "absolute path"),
        ("file", {"path": "/a\nb"}, "path", "absolute path"),
        ("command", {"command": "mysqladmin status"}, "command", "absolute path"),
        ("command", {"command": "/bin/sh 'open"}, "command", "absolute path"),
        ("command", {"command": ""}, "command", "absolute path"),
        ("prometheus", {"work": "x"}, "url", "http"),
        ("prometheus", {"url": "http://h/m"}, "work", "latency_p95"),
        ("prometheus", {"url": "ftp://h/m", "work": "x"}, "url", "http"),
        ("prometheus", {"url": "http://me:sec/ret@h/m", "work": "x"}, "url", "http"),
        ("prometheus", {"url": "http://h:99999/m", "work": "x"}, "url", "http"),
        ("prometheus", {"url": "http://[h/m", "work": "x"}, "url", "http"),
        ("prometheus", {"url": "http://h/m", "work": "x y"}, "work", "metric name"),
        ("prometheus", {"url": "http://h/m", "work": "x", "latency_unit": "us"}, "latency_unit", "s or ms"),
    ],
)
def test_refused_with_key_and_allowed_values(source: str, options: dict[str, str], key: str, allowed: str):
    with pytest.raises(ConfigError) as refused:
        validate_options(source, options)
    assert refused.value.key == key
    assert allowed in refused.value.allowed
    with pytest.raises(ConfigError):
        open_source(SliSpec(source, tuple(options.items())))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:sec/ret@h/m", "http://***@h/m"),
        ("http://me:sec ret@h/m", "http://***@h/m"),
        ("https://me:s@c?ret#@h:9104/m", "https://***@h:9104/m"),
        ("ftp://me:secret@h/m", "ftp://***@h/m"),
        ("me:secret@h/m", "***@h/m"),
        ("http:/h/m", "http:/h/m"),
    ],
)
def test_a_refused_url_is_shown_without_its_account(url: str, shown: str):
    with pytest.raises(ConfigError) as refused:
        validate_options("prometheus", {"url": url, "work": "x"})
    assert f"{shown!r} is refused" in str(refused.value)
    assert "ret" not in str(refused.value)


@given(
    st.sampled_from(sorted(OPTIONS)), st.dictionaries(st.text(max_size=12), st.text(max_size=40), max_size=4)
)
def test_arbitrary_options_are_accepted_or_refused_and_never_crash(source: str, options: dict[str, str]):
    try:
        spec = validate_options(source, options)
    except ConfigError:
        return
    assert dict(spec.options) == options


@given(st.sampled_from([(s, o.key) for s, all_ in OPTIONS.items() for o in all_]), st.text(max_size=60))
def test_arbitrary_values_are_accepted_or_refused_and_never_crash(where: tuple[str, str], value: str):
    source, key = where
    with contextlib.suppress(ConfigError):
        validate_options(source, {**GOOD[source], key: value})


def test_every_option_says_what_it_means_and_defaults_are_acceptable():
    for options in OPTIONS.values():
        for option in options:
            assert option.meaning
            assert option.allowed
            assert option.default == "" or option.accepts(option.default), option.key
