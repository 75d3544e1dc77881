"""Read once what a machine offers through resctrl.

Facts come from ``info/``, from the default group's schemata (domains, bandwidth units), from the names in
``mon_data`` and from /proc/mounts. Unknown files and resources are kept as text and are not errors, because
kernel releases add some. See Documentation/arch/x86/resctrl.rst.
"""

from __future__ import annotations

import re

from rdt.access import Access
from rdt.errors import Broken, Gone, ResctrlError, Unsupported
from rdt.frozen import FrozenDict
from rdt.info import BandwidthInfo, BandwidthUnit, CacheInfo, Extra, Info, MonitoringInfo, is_number
from rdt.mount import Mount, find_mount, mount_command, support
from rdt.names import RESERVED
from rdt.schemata import Schemata, is_bandwidth, is_cache

_MON_DOMAIN = re.compile(r"mon_(?P<resource>[A-Z0-9]+)_(?P<domain>[0-9]+)\Z")


def read_info(access: Access) -> Info:
    """Read the description of the machine.

    Raises:
        Unsupported: resctrl is not mounted at the access's root; the text says how to mount it, if the kernel
            supports it.
        Broken: a required file is missing or has unexpected content.
    """
    mount = find_mount(access.fs)
    if not access.exists("info"):
        raise _not_mounted(access, mount)
    top = _Texts(access, "info")
    shown = Schemata.parse(access.read("schemata"), access.path("schemata"))
    seen = _highest(access, shown)
    caches: dict[str, CacheInfo] = {}
    bandwidths: dict[str, BandwidthInfo] = {}
    unknown: dict[str, Extra] = {}
    monitoring: MonitoringInfo | None = None
    if mount is None or mount.path != access.root:
        mount = Mount(access.root, _options_seen(top.directories, seen))
    for name in top.directories:
        files = _Texts(access, "info", name)
        if name == "L3_MON":
            monitoring = _monitoring(access, files)
        elif is_cache(name):
            caches[name] = _cache(name, files, shown)
        elif is_bandwidth(name):
            bandwidths[name] = _bandwidth(name, files, shown, seen.get(name, 0), mount)
        else:
            unknown[name] = FrozenDict(files.texts)
    return Info(
        mount,
        FrozenDict(caches),
        FrozenDict(bandwidths),
        monitoring,
        FrozenDict(unknown),
        FrozenDict(top.texts),
    )


class _Texts:
    """The files of one directory of ``info/``. Methods remove the files that they read; the rest is ``extra``."""

    def __init__(self, access: Access, *parts: str) -> None:
        self._where = access.path(*parts)
        self.texts: dict[str, str] = {}
        self.directories: list[str] = []
        for name in access.listdir(*parts):
            if name == "last_cmd_status":
                continue
            try:
                self.texts[name] = access.read(*parts, name).rstrip("\n")
            except ResctrlError as error:
                if _is_directory(access, *parts, name):
                    self.directories.append(name)
                elif not isinstance(error, Gone):
                    self.texts[name] = f"unreadable: {error}"

    def extra(self) -> Extra:
        return FrozenDict(self.texts)

    def optional(self, name: str) -> str | None:
        return self.texts.pop(name, None)

    def text(self, name: str) -> str:
        found = self.texts.pop(name, None)
        if found is None:
            raise Broken(f"{self._where}/{name}", doing="reading", reason="the file is missing")
        return found

    def number(self, name: str, base: int = 10) -> int:
        text = self.text(name)
        try:
            return int(text, base)
        except ValueError:
            raise Broken(
                f"{self._where}/{name}", doing="reading", value=text, reason="not a number"
            ) from None

    def optional_number(self, name: str, base: int = 10, *, default: int) -> int:
        return self.number(name, base) if name in self.texts else default


def _is_directory(access: Access, *parts: str) -> bool:
    try:
        access.listdir(*parts)
    except ResctrlError:
        return False
    return True


def _not_mounted(access: Access, mount: Mount | None) -> Unsupported:
    if mount is not None and mount.path != access.root:
        reason = f"resctrl is mounted at {mount.path}"
    elif (can := support(access.fs)).kernel:
        reason = f"not mounted; {can}; an operator may mount it: {mount_command(root=access.root)}"
    else:
        reason = str(can)
    return Unsupported(access.root, doing="opening resctrl at", reason=reason)


def _highest(access: Access, shown: Schemata) -> dict[str, int]:
    """The highest value of each bandwidth resource over all groups."""
    highest: dict[str, int] = {}
    schematas = [shown]
    for name in access.listdir():
        if name not in RESERVED:
            try:
                schematas.append(Schemata.parse(access.read(name, "schemata")))
            except ResctrlError:
                continue  # a plain file, or a group that vanished or is in pseudo-lock set-up
    for schemata in schematas:
        for cell, value in schemata.cells():
            if is_bandwidth(cell.resource):
                highest[cell.resource] = max(value, highest.get(cell.resource, 0))
    return highest


def _options_seen(directories: list[str], seen: dict[str, int]) -> frozenset[str]:
    """Mount options deduced from the tree, where /proc/mounts does not show them (simulated trees, containers)."""
    options = set()
    if "L3CODE" in directories:
        options.add("cdp")
    if "L2CODE" in directories:
        options.add("cdpl2")
    if seen.get("MB", 0) == 2**32 - 1:  # the kernel's "no target" of its MBps controller
        options.add("mba_MBps")
    return frozenset(options)


def _cache(name: str, files: _Texts, shown: Schemata) -> CacheInfo:
    sparse = files.optional("sparse_masks")
    return CacheInfo(
        name=name,
        num_closids=files.number("num_closids"),
        cbm_mask=files.number("cbm_mask", 16),
        min_cbm_bits=files.optional_number("min_cbm_bits", default=1),
        shareable_bits=files.optional_number("shareable_bits", 16, default=0),
        sparse_masks=None if sparse is None else sparse.strip() != "0",
        bit_usage=_bit_usage(files.optional("bit_usage") or ""),
        domains=shown.domains(name),
        extra=files.extra(),
    )


def _bit_usage(text: str) -> FrozenDict[int, str]:
    usage: dict[int, str] = {}
    for item in text.split(";"):
        domain, _, letters = item.partition("=")
        if is_number(domain.strip()):
            usage[int(domain)] = letters.strip()
    return FrozenDict(usage)


def _bandwidth(name: str, files: _Texts, shown: Schemata, highest: int, mount: Mount) -> BandwidthInfo:
    linear = files.optional("delay_linear")
    if name == "MB" and mount.mba_mbps:
        unit = BandwidthUnit.MBPS
    elif highest > 100 or (linear is not None and linear.strip() == "0"):
        # The kernel offers percent only on machines with linear steps. With AMD's absolute values,
        # delay_linear is 0.
        unit = BandwidthUnit.ABSOLUTE
    else:
        unit = BandwidthUnit.PERCENT
    return BandwidthInfo(
        name=name,
        num_closids=files.number("num_closids"),
        unit=unit,
        minimum=files.number("min_bandwidth"),
        granularity=max(files.number("bandwidth_gran"), 1),
        linear=None if linear is None else linear.strip() != "0",
        thread_throttle_mode=files.optional("thread_throttle_mode"),
        unthrottled=100 if unit is BandwidthUnit.PERCENT else highest,
        domains=shown.domains(name),
        extra=files.extra(),
    )


def _monitoring(access: Access, files: _Texts) -> MonitoringInfo:
    domains: dict[int, tuple[str, ...]] = {}
    for name in access.listdir("mon_data") if access.exists("mon_data") else ():
        match = _MON_DOMAIN.match(name)
        if match and match["resource"] == "L3":
            inside = access.listdir("mon_data", name)
            domains[int(match["domain"])] = tuple(each for each in inside if each.startswith("mon_sub_"))
    threshold = files.number("max_threshold_occupancy") if "max_threshold_occupancy" in files.texts else None
    return MonitoringInfo(
        features=tuple((files.optional("mon_features") or "").split()),
        num_rmids=files.number("num_rmids"),
        max_threshold_occupancy_bytes=threshold,
        domains=tuple(sorted(domains)),
        sub_domains=FrozenDict({domain: names for domain, names in sorted(domains.items()) if names}),
        extra=files.extra(),
    )
