"""Machines to test on: what resctrl shows on them, and the sources of these facts.

``CAPTURED`` is the machine on which the behaviour of the simulated tree was captured. The others represent
the kinds of hardware that programs meet. Facts without a source (number of CPUs, size of a cache) are marked
as assumptions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.resctrl.hardware import (
    LINUX_6_1,
    LINUX_6_12,
    LINUX_6_15,
    BandwidthControl,
    CacheControl,
    Domain,
    Monitoring,
    RdtMachine,
)

_MIB: Final = 1 << 20
_INTEL_UNIT: Final = 65536
_AMD_UNIT: Final = 64


def _cpus(first: int, count: int) -> CpuSet:
    return CpuSet(((1 << count) - 1) << first)


def _blocks(ids: tuple[int, ...], size: int) -> tuple[Domain, ...]:
    """Domains of ``size`` consecutive CPUs each."""
    return tuple(Domain(number, _cpus(index * size, size)) for index, number in enumerate(ids))


def _all(domains: tuple[Domain, ...]) -> CpuSet:
    everything = CpuSet()
    for domain in domains:
        everything = everything | domain.cpus
    return everything


_TWO: Final = _blocks((0, 1), 2)
CAPTURED: Final = RdtMachine(
    name="captured",
    source=(
        "Captured: Linux 6.1.0-50-amd64 under QEMU with a model of RDT. 4 CPUs, 2 sockets, L3 of 16 MiB with 11 "
        "ways and 16 CLOSIDs, CDP; MBA with 8 CLOSIDs; 64 RMIDs."
    ),
    cpus=_cpus(0, 4),
    caches=(CacheControl("L3", _TWO, 16 * _MIB, ways=11, num_closids=16, shareable_bits=0x600, cdp=True),),
    bandwidths=(BandwidthControl("MB", _TWO, num_closids=8),),
    monitoring=Monitoring(_TWO, 16 * _MIB, num_rmids=64, unit_bytes=_INTEL_UNIT),
    kernel=LINUX_6_1,
)

_ONE: Final = _blocks((0,), 8)
ONE_SOCKET: Final = RdtMachine(
    name="one-socket",
    source=(
        "11 ways, shareable bits 600, 16 and 8 CLOSIDs, MBA steps of 10: as captured. Without CDP, so that names "
        "are not padded (checked in the capture). 8 CPUs, 22 MiB and 128 RMIDs are assumptions."
    ),
    cpus=_all(_ONE),
    caches=(CacheControl("L3", _ONE, 22 * _MIB, ways=11, num_closids=16, shareable_bits=0x600),),
    bandwidths=(BandwidthControl("MB", _ONE, num_closids=8),),
    monitoring=Monitoring(_ONE, 22 * _MIB, num_rmids=128, unit_bytes=_INTEL_UNIT),
)

_SPARSE: Final = _blocks((0, 8), 8)
SPARSE_IDS: Final = RdtMachine(
    name="sparse-ids",
    source=(
        "20 ways: the realistic mask of resctrl.rst, Example 2. Ids with a gap: resctrl.rst, 'Cache IDs', and "
        "koordinator issue 1777, where ids 0-7 and 16-23 occur. Values are padded to 5 columns, the width of a "
        "20-bit mask. 16 CPUs, 40 MiB, 16 CLOSIDs and 176 RMIDs are assumptions."
    ),
    cpus=_all(_SPARSE),
    caches=(
        CacheControl("L3", _SPARSE, 40 * _MIB, ways=20, num_closids=16, shareable_bits=0xC0000, cdp=True),
    ),
    bandwidths=(BandwidthControl("MB", _SPARSE, num_closids=8),),
    monitoring=Monitoring(_SPARSE, 40 * _MIB, num_rmids=176, unit_bytes=_INTEL_UNIT),
)

UNPADDED: Final = replace(
    SPARSE_IDS.on(LINUX_6_15),
    name="unpadded",
    source="Linux 6.15: schemata does not pad values any more. Otherwise the machine with sparse ids.",
)
CDP: Final = replace(
    CAPTURED,
    name="cdp",
    source="Captured: the captured machine, mounted with -o cdp. CLOSIDs of the cache are halved.",
    options="cdp",
)
MBA_MBPS: Final = replace(
    CAPTURED,
    name="mba-mbps",
    source="Captured: the captured machine, mounted with -o mba_MBps. MB is in MiB/s and begins at 4294967295.",
    options="mba_MBps",
)

_L2: Final = _blocks((0, 1), 2)
L2_ONLY: Final = RdtMachine(
    name="l2-only",
    source=(
        "resctrl.rst, Example 4 and 'Example of Cache Pseudo-Locking': two L2 caches of 1 MiB with an 8-bit mask. "
        "4 CLOSIDs and two CPUs a cache are assumptions."
    ),
    cpus=_all(_L2),
    caches=(CacheControl("L2", _L2, 1 * _MIB, ways=8, num_closids=4),),
)

MB_ONLY: Final = RdtMachine(
    name="mb-only",
    source=(
        "resctrl.rst: features are orthogonal, a system may have only some of them; cri-resource-manager issue 577 "
        "has bandwidth without cache allocation. Bandwidth as captured. No monitoring."
    ),
    cpus=_all(_TWO),
    bandwidths=(BandwidthControl("MB", _TWO, num_closids=8),),
)

_CCX: Final = tuple(Domain(number, _cpus(index * 4, 4)) for index, number in enumerate((0, 1, 8, 9)))
AMD: Final = RdtMachine(
    name="amd",
    source=(
        "resctrl.rst, 'on AMD systems with SMBA feature': limits in eighths of GB/s, 2048 is no limit, 16-bit masks, "
        "values padded to 4 columns. Linux for AMD: masks may have holes or be empty, bandwidth from 0 in steps of 1, "
        "not linear, no thread_throttle_mode; bandwidth events can be configured (BMEC). Ids with a gap as in "
        "koordinator issue 1777. 4 CPUs and 32 MiB a core complex, 16 CLOSIDs and 256 RMIDs are assumptions."
    ),
    cpus=_all(_CCX),
    caches=(
        CacheControl(
            "L3", _CCX, 32 * _MIB, ways=16, num_closids=16, min_cbm_bits=0, cdp=True, sparse_masks=True
        ),
    ),
    bandwidths=tuple(
        BandwidthControl(
            name,
            _CCX,
            num_closids=16,
            min_bandwidth=0,
            maximum=2048,
            bandwidth_gran=1,
            delay_linear=False,
            throttle_mode=None,
            width=4,
        )
        for name in ("MB", "SMBA")
    ),
    monitoring=Monitoring(_CCX, 32 * _MIB, num_rmids=256, unit_bytes=_AMD_UNIT, configurable=True),
)

_CLUSTERED: Final = tuple(
    replace(domain, nodes=(2 * index, 2 * index + 1)) for index, domain in enumerate(_blocks((0, 1), 8))
)
SNC: Final = RdtMachine(
    name="snc",
    source=(
        "resctrl.rst, 'Notes on Sub-NUMA Cluster mode': mon_sub_L3_YY for every node, sums above them, a bit of the "
        "mask is the node's share. RMIDs are divided among the nodes of a cache, and so is what one count means "
        "(Linux 6.12). Two nodes a cache, 15 ways, 16 CPUs, 60 MiB and 128 RMIDs a node are assumptions."
    ),
    cpus=_all(_CLUSTERED),
    caches=(CacheControl("L3", _CLUSTERED, 60 * _MIB, ways=15, num_closids=15, cdp=True),),
    bandwidths=(BandwidthControl("MB", _CLUSTERED, num_closids=15, throttle_mode="per-thread"),),
    monitoring=Monitoring(_CLUSTERED, 60 * _MIB, num_rmids=128, unit_bytes=_INTEL_UNIT // 2),
)

NO_MONITORING: Final = replace(
    ONE_SOCKET,
    name="no-monitoring",
    source="resctrl.rst: a system may support only control. Otherwise the machine with one socket.",
    monitoring=None,
)
MONITORING_ONLY: Final = RdtMachine(
    name="monitoring-only",
    source=(
        "resctrl.rst, Example 3 of monitoring: a system with CQM and no CAT. No control groups, monitor groups in "
        "the root. Linux still makes schemata, size and mode in the root, and leaves them empty."
    ),
    cpus=_all(_TWO),
    monitoring=Monitoring(_TWO, 16 * _MIB, num_rmids=64, unit_bytes=_INTEL_UNIT),
)

_HASWELL: Final = _blocks((0, 1), 4)
FOUR_CLOSIDS: Final = RdtMachine(
    name="four-closids",
    source=(
        "Linux's table entry for Haswell servers, which do not report them: 4 CLOSIDs, 20 ways, at least 2 "
        "bits a mask, shareable bits c0000; no MBA. 8 CPUs, 20 MiB and 48 RMIDs are assumptions."
    ),
    cpus=_all(_HASWELL),
    caches=(
        CacheControl(
            "L3", _HASWELL, 20 * _MIB, ways=20, num_closids=4, min_cbm_bits=2, shareable_bits=0xC0000
        ),
    ),
    monitoring=Monitoring(
        _HASWELL, 20 * _MIB, num_rmids=48, unit_bytes=_INTEL_UNIT, events=("llc_occupancy",)
    ),
)

MACHINES: Final = {
    machine.name: machine
    for machine in (
        CAPTURED,
        replace(CAPTURED.on(LINUX_6_12), name="captured-6.12"),
        ONE_SOCKET,
        SPARSE_IDS,
        UNPADDED,
        CDP,
        MBA_MBPS,
        L2_ONLY,
        MB_ONLY,
        AMD,
        SNC,
        NO_MONITORING,
        MONITORING_ONLY,
        FOUR_CLOSIDS,
    )
}
"""All machines, by name."""
