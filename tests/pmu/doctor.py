"""What the report says of performance events: ``python3 -m tests.pmu.doctor``, inside the guest."""

from __future__ import annotations

from perphd.host.capabilities import probe
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs


def main() -> None:
    fs = RealFs()
    report = probe(fs, discover(fs))
    for name in ("perf.permission", "perf.hardware", "perf.software"):
        item = report[name]
        print(f"{name}: {'yes' if item.present else 'no'}: {item.detail} | {item.remedy}")


if __name__ == "__main__":
    main()
