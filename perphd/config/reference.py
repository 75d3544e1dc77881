"""Writes docs/config.md and the manual page perphd.conf(5) from the schema.

Run ``python -m perphd.config.reference`` after a change of the schema. A test compares the files with the
output of this module, so that the reference cannot drift from the parser.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from pathlib import Path

from perphd.config.discovery import MAX_INSTANCES
from perphd.config.file import DEFAULT_PATH, TABLES
from perphd.config.schema import Key, keys_of, size_text
from perphd.config.tables import NOTIFY, NotifyConfig
from perphd.config.workloads import RUNTIME_FILE, WORKLOAD_TABLES
from perphd.domain.workload import Kind
from perphd.monitor.sli.options import OPTIONS

ABOUT = {
    "daemon": "How the daemon runs.",
    "isolation": "How settings are written.",
    "store": "The local time-series store behind perphctl query and perphctl export.",
    "policy": "What the policy may do, and with which confidence. Its thresholds and delays are below Tuning.",
    "host": "The controlled host.",
    "federated": "Off by default. What hosts tell each other about the same applications, as files in a folder that "
    "you share or copy. See docs/how-to/federated-models.md.",
    "wake": "Early ticks between two samples.",
    "network": "Limits of what batch may send. Off unless devices are named; knobs.md describes the changes to them.",
    "resctrl": "Cache and memory bandwidth through resctrl (Intel RDT, AMD QoS).",
    "sizing": "Sizes by forecast: the resource shaper. See sizing.md.",
    "model": "How models of LRAs are learned; see predictor.md.",
    "metrics": "Metrics for Prometheus over TCP or through a file; docs/metrics.md lists the series.",
    "window": "When riskier changes are allowed.",
    "notify": "One receiver of notices: a webhook or a command. May be repeated.",
    "forecast": "Forecasts of use; see how-to/size-a-workload.md. Only the resource shaper acts on them.",
    "queue": "The batch queue; see how-to/nightly-batch.md.",
    "contention": "Backing batch off from contended disks, links and memory; see bands-and-batch.md.",
    "opt_in": "Workloads that declare themselves: units by lines KEY=VALUE in a section [X-Perphd] of their file or a "
    "drop-in, containers and pods by labels or annotations perphd.io/KEY. Keys are those of [[lra]] and [[batch]], "
    "with kind (lra or batch) and sli.OPTION; how-to/opt-in.md lists who may say what. What the configuration "
    "declares counts. A reload takes this table over.",
    "lra": "One long-running application whose performance perphd protects. May be repeated.",
    "batch": "Work that gives way. May be repeated.",
}
SLI_ABOUT = (
    "Where an LRA's own indicators (work rate, load, latency) come from. Without one, work is counted in "
    "instructions or CPU time, and delay by how long the application waits for processors.\n\n"
    "Every source has a resolution: MariaDB, MySQL and Redis count exactly at any moment, PostgreSQL's backends report "
    "once a second and only when a transaction has touched a table, exporters may answer from a cache. Where it is not "
    "known it is found by how often the counter moves while the application uses CPU time; `perphctl status` shows it. "
    "A rate over less than the resolution is unavailable, and the last full reading stands until the next is due. "
    "Percentiles of a histogram need requests: 10 for p50, 100 for p95, 500 for p99. Judgements wait for as many (100 "
    "for a work rate), for 10 s at most; `perphctl explain` says so."
)
OWN_POLICY = (
    "Any key of [policy], for this LRA alone. What concerns all batch together (cores, memory and cache of batch, what "
    "counts as idle) is decided with the host's values where several LRAs are decided for at once."
)
TUNING = (
    "Hardly anybody needs these: the defaults follow from measurements and fit the benchmarks. They stand in the same "
    "tables of the file as the keys above."
)
RULES = (
    f"The main file is {DEFAULT_PATH}; the files conf.d/*.toml beside it follow in the order of their names. "
    "In tables, the key of a later file wins; workloads accumulate.",
    "Nothing is ignored: an unknown key, a wrong type, a value out of range, two workloads with one name, and two "
    "workloads of which one has or contains the other's cgroup are refused, with the file, the key and what is "
    "allowed. So is a cgroup that perphd itself runs in. A cgroup that does not exist yet is waited for.",
    "A world-writable file is refused, because it can name commands that run as root.",
    "What makes perphd run or read something with its own rights (sli sources command and file, password_file, "
    "version_from with a file) stands in a file of the configuration, or is added by root: the control API refuses it "
    "from others, members of the admin group too.",
    'Sizes are texts such as "512M": a whole number, optionally with K, M, G or T (powers of 1024; also Ki, KiB ...).',
    f"Workloads added with perphctl are kept in STATE_DIR/{RUNTIME_FILE}, in the same form; a declared workload "
    "of the same name or cgroup wins over one added there.",
    "Check a file with perphctl config check FILE; let a running daemon read it again with perphctl reload "
    "(or SIGHUP). Workloads and their settings, daemon.mode, on_stop, on_restart, [resctrl] and [opt_in] are taken "
    "over; other changes take a restart, and are named in the log.",
)
EXAMPLE = """\
[daemon]
mode = "enforce"          # the default, observe, writes nothing

[[lra]]
name = "mariadb"
cgroup = "/system.slice/mariadb.service"
tolerance_pct = 5

[lra.sli]
source = "mysql"          # over /run/mysqld/mysqld.sock, account perphd

[[batch]]
name = "nightly"
cgroup = "/batch.slice"
min_cores = 0.5
min_memory = "1G"
"""


MATCHING = (
    "Instead of cgroup a workload may have match: KIND:PATTERN. It is looked for every five seconds, and "
    "followed when it is started again or found elsewhere. unit:NAME is a unit of this host's systemd, in "
    "whatever slice; slice:NAME a slice, whose path follows from its name; cgroup:/PATH a control group; "
    "container:NAME a container of Docker, Podman, containerd or CRI-O, within Kubernetes "
    "NAMESPACE/POD/CONTAINER; pod:NAMESPACE/NAME a pod of Kubernetes with all of its containers; label:KEY=VALUE pods "
    "with that label or annotation, and containers with that label, as far as their runtime leaves "
    "it in files (Docker: all; CRI-O: the pod's; containerd: io.kubernetes.pod.name, "
    "io.kubernetes.pod.namespace, io.kubernetes.container.name) or perphd-publish run --pods does; "
    "pidfile:/PATH the group of the process whose "
    "number is in that file, a plain one (no symbolic link), which has to be root's or belong to the user as whom the "
    "process runs.",
    "pid:NUMBER is the group of a process, while that lives. It is refused in files, and forgotten when perphd ends: "
    "after a restart of the host the number is another process's. It is for the control API.",
    "In NAME, PATH of cgroup, and VALUE * stands for any run of characters, ? for one, [abc], [a-z], "
    "[!abc] for one of a set; none of them for a slash. Such a pattern, and any label, stands for a "
    f"workload for each that is found, at most {MAX_INSTANCES}: they are called NAME.INSTANCE, by what the "
    "wildcards stood for or by the containers' names. One that has been gone for a minute is forgotten. A "
    "pattern without wildcards that finds several is an error.",
    "Never taken: a control group that perphd itself runs in or below, and one that another workload has, "
    "contains or lies in; nor one whose path is no UTF-8 or holds control characters. perphctl config check and "
    "perphctl status say so, with the path.",
)
MATCH_EXAMPLE = """\
[[lra]]
name = "shop"
match = "pod:shop/web-*"           # shop.0, shop.1 ...

[[batch]]
name = "workers"
match = "unit:worker@*.service"    # workers.1, workers.2 ...
"""


_REPEATED = (NOTIFY, *Kind)


def default_text(key: Key) -> str:
    """The default in the form of a configuration file."""
    if key.required:
        return "required"
    match key.default:
        case None:
            return "none"
        case bool():
            return str(key.default).lower()
        case enum.Enum():
            return f'"{key.default.value}"'
        case str():
            return f'"{key.default}"'
        case int() if key.kind in ("size", "rate"):
            return f'"{size_text(key.default)}"'
        case _:
            return f"{key.default:.10g}"


def markdown() -> str:
    """docs/config.md."""
    parts = [
        "# Configuration",
        "<!-- Written by python -m perphd.config.reference; change the schema, not this page. -->",
        "An example:",
        f"```toml\n{EXAMPLE}```",
        "\n".join(f"- {rule}" for rule in RULES),
    ]
    for name, table in _tables():
        parts += [f"## {_head(name)}", ABOUT[name], _rows(key for key in keys_of(table) if not key.expert)]
    parts += ["## Finding control groups", *MATCHING, f"```toml\n{MATCH_EXAMPLE}```"]
    parts += ["## [lra.policy]", OWN_POLICY]
    parts += ["## [lra.sli]", SLI_ABOUT, "`source` is required and names one of the following."]
    for source, options in OPTIONS.items():
        rows = [
            f"| `{option.key}` | {_code('required' if option.required else option.default or 'none')} "
            f"| {_cell(option.allowed)} | {_cell(option.meaning)} |"
            for option in options
        ]
        parts += [
            f'### source = "{source}"',
            "| key | default | allowed | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows),
        ]
    parts += ["## Tuning", TUNING]
    for name, table in _tables():
        if expert := [key for key in keys_of(table) if key.expert]:
            parts += [f"### Further keys of {_head(name)}", _rows(expert)]
    return "\n\n".join(parts) + "\n"


def man() -> str:
    """docs/man/perphd.conf.5."""
    lines = [
        '.\\" Written by python -m perphd.config.reference; change the schema, not this page.',
        '.TH PERPHD.CONF 5 "" perphd "Configuration of perphd"',
        ".SH NAME",
        "perphd.conf \\- configuration of the performance isolation daemon",
        ".SH SYNOPSIS",
        f".I {DEFAULT_PATH}",
        ".br",
        ".I /etc/perphd/conf.d/*.toml",
        ".SH DESCRIPTION",
        "The configuration is TOML.",
    ]
    for rule in RULES:
        lines += [".PP", _man(rule)]
    for name, table in _tables():
        lines += [f'.SH "TABLE {_head(name)}"', _man(ABOUT[name])]
        lines += _man_keys(key for key in keys_of(table) if not key.expert)
    lines.append(".SH FINDING CONTROL GROUPS")
    for text in MATCHING:
        lines += [".PP", _man(text)]
    lines += [".nf", *(_man(line) for line in MATCH_EXAMPLE.splitlines()), ".fi"]
    lines += ['.SH "TABLE [lra.policy]"', _man(OWN_POLICY)]
    lines += ['.SH "TABLE [lra.sli]"', _man(SLI_ABOUT), ".PP", "The key"]
    lines += [".B source", "is required and names one of the following."]
    for source, options in OPTIONS.items():
        lines += [f'.SS "source = \\(dq{source}\\(dq"']
        for option in options:
            lines += [".TP", f".B {_man(option.key)}", _man(_sentence(option.meaning))]
            said = "It is required." if option.required else f"Default: {option.default or 'none'}."
            lines.append(_man(f"Allowed: {option.allowed}. {said}"))
    lines += [".SH TUNING", _man(TUNING)]
    for name, table in _tables():
        if expert := [key for key in keys_of(table) if key.expert]:
            lines += [f'.SS "Further keys of {_head(name)}"', *_man_keys(expert)]
    lines += [".SH EXAMPLE", ".nf", *(_man(line) for line in EXAMPLE.splitlines()), ".fi"]
    lines += [".SH SEE ALSO", ".BR perphctl (1),", ".BR perphd (8)"]
    return "\n".join(lines) + "\n"


def write(docs: Path) -> None:
    """Write both files to this folder."""
    (docs / "man").mkdir(parents=True, exist_ok=True)
    (docs / "config.md").write_text(markdown(), encoding="utf-8")
    (docs / "man" / "perphd.conf.5").write_text(man(), encoding="utf-8")


def _tables() -> list[tuple[str, type]]:
    return [
        *TABLES.items(),
        (NOTIFY, NotifyConfig),
        *((kind.value, table) for kind, table in WORKLOAD_TABLES.items()),
    ]


def _head(name: str) -> str:
    return f"[[{name}]]" if name in _REPEATED else f"[{name}]"


def _rows(keys: Iterable[Key]) -> str:
    rows = [
        f"| `{key.name}` | {key.type_name} | {_code(default_text(key))} | {_cell(key.allowed)} | {_cell(key.doc)} |"
        for key in keys
    ]
    head = "| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n"
    return head + "\n".join(rows)


def _man_keys(keys: Iterable[Key]) -> list[str]:
    lines: list[str] = []
    for key in keys:
        lines += [
            ".TP",
            f'.BR {_man(key.name)} " (\\fI{_man(key.type_name)}\\fP)"',
            _man(f"{_sentence(key.doc)}"),
        ]
        said = "It is required." if key.required else f"Default: {default_text(key)}."
        lines.append(_man(f"Allowed: {key.allowed}. {said}"))
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _code(text: str) -> str:
    return text if text in ("required", "none") else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _man(text: str) -> str:
    """Text safe for troff: backslashes, minus signs, quotes, and a control character at the start of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("~", "\\(ti")
    escaped = re.sub(r"\^", "\\\\(ha", escaped)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    write(Path(__file__).parents[2] / "docs")
