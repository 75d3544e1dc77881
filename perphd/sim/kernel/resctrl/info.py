"""The ``info`` directory: properties of the resources of this mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perphd.sim.kernel.resctrl.controls import Schema
from perphd.sim.kernel.resctrl.hardware import OCCUPANCY, BandwidthControl, CacheControl
from perphd.sim.kernel.resctrl.monitor import Monitor
from perphd.sim.kernel.vfs import Directory, Reader, Writer

if TYPE_CHECKING:
    from perphd.sim.kernel.resctrl.tree import ResctrlTree

_MODE = 0o555


def fill_info(tree: ResctrlTree) -> None:
    """Rebuild ``info`` for the present mount."""
    info = _directory(tree.directory, "info")
    _put(tree, info, "info", "last_cmd_status", tree.status.read)
    for schema in tree.controls.schemas:
        path = f"info/{schema.name}"
        place = _directory(info, schema.name)
        for name, read in _control_files(tree, schema):
            _put(tree, place, path, name, read)
    if tree.monitor is not None:
        _fill_monitoring(tree, tree.monitor, _directory(info, "L3_MON"))


def _control_files(tree: ResctrlTree, schema: Schema) -> list[tuple[str, Reader]]:
    resource = schema.resource
    files: list[tuple[str, Reader]] = [("num_closids", lambda: f"{schema.num_closids}\n")]
    if isinstance(resource, CacheControl):
        files += [
            ("cbm_mask", lambda: f"{resource.full_mask:x}\n"),
            ("min_cbm_bits", lambda: f"{resource.min_cbm_bits}\n"),
            ("shareable_bits", lambda: f"{resource.shareable_bits:x}\n"),
            ("bit_usage", lambda: tree.controls.bit_usage(schema)),
        ]
        if tree.machine.kernel.sparse_masks_file:
            files.append(("sparse_masks", lambda: f"{int(resource.sparse_masks)}\n"))
        return files
    return files + _bandwidth_files(resource)


def _bandwidth_files(limit: BandwidthControl) -> list[tuple[str, Reader]]:
    files: list[tuple[str, Reader]] = [
        ("min_bandwidth", lambda: f"{limit.min_bandwidth}\n"),
        ("bandwidth_gran", lambda: f"{limit.bandwidth_gran}\n"),
        ("delay_linear", lambda: f"{int(limit.delay_linear)}\n"),
    ]
    if limit.throttle_mode is not None and limit.name == "MB":
        files.append(("thread_throttle_mode", lambda: f"{limit.throttle_mode}\n"))
    return files


def _fill_monitoring(tree: ResctrlTree, monitor: Monitor, place: Directory) -> None:
    path, hardware = "info/L3_MON", monitor.machine
    bandwidth = [event for event in hardware.events if event != OCCUPANCY]
    features: list[str] = []
    for event in hardware.events:
        features.append(event)
        if hardware.configurable and event in bandwidth:
            features.append(f"{event}_config")
    _put(tree, place, path, "mon_features", lambda: "".join(f"{feature}\n" for feature in features))
    _put(tree, place, path, "num_rmids", lambda: f"{hardware.num_rmids}\n")
    _put(
        tree,
        place,
        path,
        "max_threshold_occupancy",
        lambda: f"{monitor.threshold_bytes}\n",
        monitor.write_threshold,
    )
    for event in bandwidth if hardware.configurable else ():
        _put(
            tree,
            place,
            path,
            f"{event}_config",
            lambda event=event: monitor.show_config(event),  # type: ignore[misc]
            lambda data, event=event: monitor.write_config(event, data),  # type: ignore[misc]
        )


def _directory(parent: Directory, name: str) -> Directory:
    place = Directory(strict_open=True)
    place.mode = _MODE
    parent.children[name] = place
    return place


def _put(
    tree: ResctrlTree, place: Directory, path: str, name: str, read: Reader, write: Writer | None = None
) -> None:
    tree.add_file(place, lambda: path, name, read, write)
