"""CPU lists as the kernel writes and reads them: ``0,2-3``."""

from __future__ import annotations

from collections.abc import Iterable

from rdt.errors import Broken


def parse_cpus(text: str, path: str = "cpus_list") -> frozenset[int]:
    """The CPUs of a list; raises Broken, naming ``path``, where it is none."""
    cpus: set[int] = set()
    for item in text.strip().split(","):
        if not item:
            continue
        first, _, last = item.partition("-")
        try:
            cpus.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise Broken(path, doing="reading", value=text, reason="not a CPU list") from None
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list of these CPUs; empty for none."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
