"""Writes docs/config.md and the manual page perphd.conf(5) from the schema.

Run ``python -m tools.reference.config`` after a change of the schema. A test compares the files with the
output of this module, so that the reference cannot drift from the parser.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from pathlib import Path

from perphd.config.discovery import MAX_INSTANCES
from perphd.config.file import DEFAULT_PATH, TABLES
from perphd.config.schema import TUNING, Key, expert_keys, size_text, usual_keys
from perphd.config.tables import NOTIFY, NotifyConfig
from perphd.config.workloads import RUNTIME_FILE, WORKLOAD_TABLES
from perphd.domain.workload import Kind
from perphd.monitor.sli.options import OPTIONS

ABOUT = {
    "daemon": "How the daemon runs.",
    "isolation": "How settings are written.",
    "store": "The local time-series store behind perphctl query and perphctl export.",
    "policy": "How certain the policy must be. Its thresholds and delays are in [tuning.policy].",
    "host": "The controlled host.",
    "federated": "Statistics that hosts exchange about the same applications, as files in a folder that you share or "
    "copy. Off by default. See docs/how-to/federated-models.md.",
    "wake": "Early ticks between two samples.",
    "network": "Limits on the traffic of batch. Off unless devices are named; knobs.md describes the changes to them.",
    "resctrl": "Cache and memory bandwidth through resctrl (Intel RDT, AMD QoS).",
    "sizing": "Memory sizes by forecast: the resource shaper. See sizing.md.",
    "model": "How models of LRAs are learned; see predictor.md.",
    "metrics": "Metrics for Prometheus over TCP or through a file; docs/metrics.md lists the series.",
    "window": "Times at which riskier changes are allowed.",
    "notify": "One receiver of notices: a webhook or a command. May be repeated.",
    "forecast": "Forecasts of use; see how-to/size-a-workload.md. Only the resource shaper acts on them.",
    "queue": "The batch queue; see how-to/nightly-batch.md.",
    "contention": "Backoff of batch on contended disks, links and memory; see bands-and-batch.md.",
    "opt_in": "Workloads that declare themselves: units by lines KEY=VALUE in a section [X-Perphd] of their file or a "
    "drop-in, containers and pods by labels or annotations perphd.io/KEY. Keys are those of [[lra]] and [[batch]], "
    "with kind (lra or batch) and sli.OPTION; how-to/opt-in.md lists the keys that each may set. A declaration in the "
    "configuration takes precedence. A reload applies this table.",
    "lra": "One long-running application whose performance perphd protects. May be repeated.",
    "batch": "Work that gives way. May be repeated.",
}
SLI_ABOUT = (
    "The source of an LRA's own indicators (work rate, load, latency). Without one, perphd measures work in "
    "instructions or CPU time, and delay as the time for which the application waits for processors.\n\n"
    "Every source has a resolution: MariaDB, MySQL and Redis count exactly at any moment, PostgreSQL's backends report "
    "at most once a second and only when a transaction has touched a table, exporters may answer from a cache. If the "
    "resolution is not known, perphd derives it from how often the counter changes while the application uses CPU "
    "time; `perphctl status` shows it. A rate over less than the resolution is unavailable, and the last complete "
    "reading stays valid until the next one is due. Percentiles of a histogram need requests: 10 for p50, 100 for "
    "p95, 500 for p99. Judgements wait for that many requests (100 for a work rate), for at most 10 s; `perphctl "
    "explain` reports the wait."
)
OWN_POLICY = (
    "Also any key of [policy] and [tuning.policy], for this LRA alone. Values that concern all batch together (cores, "
    "memory and cache of batch, the idle threshold) are those of the host when perphd decides for several LRAs at once."
)
ABOUT_TUNING = (
    "Few operators need these keys: the defaults follow from measurements and fit the benchmarks. Others serve "
    "comparison and development. They have tables of their own: [tuning.TABLE] beside [TABLE]; [lra.tuning], "
    "[batch.tuning] and [notify.tuning] below the [[lra]], [[batch]] or [[notify]] that they concern."
)
RULES = (
    f"The main file is {DEFAULT_PATH}; the files conf.d/*.toml beside it follow in the order of their names. "
    "In tables, the key of a later file wins; workloads accumulate.",
    "perphd ignores no mistake. It refuses an unknown key, a wrong type, a value out of range, two workloads with one "
    "name, two workloads of which one has or contains the other's cgroup, and a cgroup in which perphd itself runs. "
    "The refusal names the file, the key and the allowed values. perphd waits for a cgroup that does not exist yet.",
    "A world-writable file is refused, because it can name commands that run as root.",
    "Keys that make perphd run or read something with its own rights (the sli sources command and file, password_file, "
    "version_from with a file) are accepted only in a file of the configuration or from root: the control API refuses "
    "them from others, including members of the admin group.",
    'Sizes are texts such as "512M": a whole number, optionally with K, M, G or T (powers of 1024; also Ki, KiB ...).',
    f"Workloads added with perphctl are kept in STATE_DIR/{RUNTIME_FILE}, in the same form; a declared workload "
    "of the same name or cgroup takes precedence.",
    "Check a file with perphctl config check FILE; let a running daemon read it again with perphctl reload "
    "(or SIGHUP). A reload applies workloads and their settings, daemon.mode, daemon.on_stop, "
    "tuning.daemon.on_restart, [opt_in], [tuning.opt_in] and [tuning.resctrl]; other changes need a restart, and the "
    "log names them.",
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
    "Instead of cgroup, a workload may have match: KIND:PATTERN. perphd searches for it every five seconds, and "
    "follows it when it is restarted or moved. unit:NAME is a unit of this host's systemd, in any slice; slice:NAME a "
    "slice, whose path follows from its name; cgroup:/PATH a control group; container:NAME a container of Docker, "
    "Podman, containerd or CRI-O, in Kubernetes NAMESPACE/POD/CONTAINER; pod:NAMESPACE/NAME a pod of Kubernetes with "
    "all of its containers; label:KEY=VALUE pods with that label or annotation, and containers with that label, if "
    "their runtime keeps it in files (Docker: all; CRI-O: the pod's; containerd: io.kubernetes.pod.name, "
    "io.kubernetes.pod.namespace, io.kubernetes.container.name) or perphd-publish run --pods writes it; pidfile:/PATH "
    "the group of the process whose number is in that file. The file must be a regular file (no symbolic link) that "
    "belongs to root or to the user of the process.",
    "pid:NUMBER is the group of a process while that process lives. It is refused in files, and forgotten when perphd "
    "ends, because after a restart of the host the number belongs to another process. It is for the control API.",
    "In NAME, the PATH of cgroup, and VALUE, * stands for any run of characters, ? for one character, [abc], [a-z] and "
    "[!abc] for one of a set; none of them matches a slash. Such a pattern, and any label, declares one workload for "
    f"each match, at most {MAX_INSTANCES}. They are called NAME.INSTANCE, after the text that the wildcards matched or "
    "the containers' names. perphd forgets a workload that has been gone for a minute. A pattern without wildcards "
    "that finds several groups is an error.",
    "perphd never accepts a control group in or below which it runs itself, a group that another workload has, "
    "contains or lies in, or a group whose path is not UTF-8 or holds control characters. perphctl config check and "
    "perphctl status name the path.",
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
        "<!-- Written by python -m tools.reference.config; change the schema, not this page. -->",
        "An example:",
        f"```toml\n{EXAMPLE}```",
        "\n".join(f"- {rule}" for rule in RULES),
    ]
    for name, table in _tables():
        if usual := usual_keys(table):
            parts += [f"## {_head(name)}", ABOUT[name], _rows(usual)]
    parts += ["## Finding control groups", *MATCHING, f"```toml\n{MATCH_EXAMPLE}```"]
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
    parts += ["## Tuning", ABOUT_TUNING]
    for name, table in _tables():
        if expert := expert_keys(table):
            parts += [f"### {_tuning_head(name)}", *_about_tuning(name, table), _rows(expert)]
    return "\n\n".join(parts) + "\n"


def man() -> str:
    """docs/man/perphd.conf.5."""
    lines = [
        '.\\" Written by python -m tools.reference.config; change the schema, not this page.',
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
        if usual := usual_keys(table):
            lines += [f'.SH "TABLE {_head(name)}"', _man(ABOUT[name]), *_man_keys(usual)]
    lines.append(".SH FINDING CONTROL GROUPS")
    for text in MATCHING:
        lines += [".PP", _man(text)]
    lines += [".nf", *(_man(line) for line in MATCH_EXAMPLE.splitlines()), ".fi"]
    lines += ['.SH "TABLE [lra.sli]"', _man(SLI_ABOUT), ".PP", "The key"]
    lines += [".B source", "is required and names one of the following."]
    for source, options in OPTIONS.items():
        lines += [f'.SS "source = \\(dq{source}\\(dq"']
        for option in options:
            lines += [".TP", f".B {_man(option.key)}", _man(_sentence(option.meaning))]
            said = "It is required." if option.required else f"Default: {option.default or 'none'}."
            lines.append(_man(f"Allowed: {option.allowed}. {said}"))
    lines += [".SH TUNING", _man(ABOUT_TUNING)]
    for name, table in _tables():
        if expert := expert_keys(table):
            lines += [
                f'.SS "TABLE {_tuning_head(name)}"',
                *map(_man, _about_tuning(name, table)),
                *_man_keys(expert),
            ]
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


def _tuning_head(name: str) -> str:
    return f"[{name}.{TUNING}]" if name in _REPEATED else f"[{TUNING}.{name}]"


def _about_tuning(name: str, table: type) -> list[str]:
    if name == Kind.LRA:
        return [OWN_POLICY]
    return [] if usual_keys(table) else [ABOUT[name]]


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
