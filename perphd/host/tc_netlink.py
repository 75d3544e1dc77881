"""Traffic classes by netlink with pyroute2, which is imported on first use (25 MiB).

pyroute2 runs its own event loop in the calling thread, which fails if one runs there already. It therefore
has its own thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from perphd.domain.errors import Broken, Full, Gone, KernelError, kernel_error
from perphd.host.tc import MAJOR, QUANTUM_BYTES, ROOT_MINOR, HtbClass, Qdisc, Tc, TcCommand, class_rates

_T = TypeVar("_T")
_ROOT: Final = 0xFFFFFFFF
_HANDLE: Final = MAJOR << 16


class NetlinkTc:
    """See ``perphd.host.tc.Tc``. Calls block for about a millisecond."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._route: Any = None

    def qdiscs(self) -> tuple[Qdisc, ...]:
        """See ``Tc``."""

        def ask(route: Any) -> tuple[Qdisc, ...]:
            names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in route.get_links()}
            return tuple(
                Qdisc(
                    names[item["index"]],
                    item.get_attr("TCA_KIND"),
                    item["handle"] >> 16,
                    item["parent"] == _ROOT,
                )
                for item in route.get_qdiscs()
                if item["index"] in names
            )

        return self._call("", "list", ask)

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        """See ``Tc``."""
        return self._call(device, "list", lambda route: tuple(_htb_classes(route, _index(route, device))))

    def add_root(self, device: str) -> None:
        """See ``Tc``."""
        self._call(
            device,
            "add htb",
            lambda route: route.tc("add", "htb", _index(route, device), _HANDLE, parent=_ROOT, default=0),
        )

    def delete_root(self, device: str) -> None:
        """See ``Tc``."""
        self._call(
            device,
            "delete htb",
            lambda route: route.tc("del", "htb", _index(route, device), _HANDLE, parent=_ROOT),
        )

    def set_class(self, device: str, minor: int, ceil_bytes: int, *, exists: bool) -> None:
        """See ``Tc``."""
        rate, priority, burst = class_rates(minor, ceil_bytes)
        self._call(
            device,
            "set a class",
            lambda route: route.tc(
                "change-class" if exists else "add-class",
                "htb",
                _index(route, device),
                _HANDLE | minor,
                parent=_HANDLE if minor == ROOT_MINOR else _HANDLE | ROOT_MINOR,
                rate=rate,
                ceil=ceil_bytes,
                burst=burst,
                cburst=burst,
                prio=priority,
                quantum=QUANTUM_BYTES,
            ),
        )

    def delete_class(self, device: str, minor: int) -> None:
        """See ``Tc``."""
        self._call(
            device,
            "delete a class",
            lambda route: route.tc("del-class", index=_index(route, device), handle=_HANDLE | minor),
        )

    def _call(self, device: str, doing: str, work: Callable[[Any], _T]) -> _T:
        where = f"tc {device}".strip()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "perphd-tc")
        try:
            asked = self._thread.submit(lambda: work(self._opened()))
        except RuntimeError as exc:  # no thread could be started; do not leave the change queued
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None
            advice = "nothing was changed; the limit on threads (TasksMax) may be reached"
            raise Full(where, doing, errno.EAGAIN, detail=str(exc), advice=advice) from exc
        try:
            return asked.result()
        except KernelError:
            raise
        except OSError as exc:
            raise kernel_error(exc, where, doing) from exc
        except Exception as exc:
            number = getattr(exc, "code", None)  # pyroute2's NetlinkError carries the kernel's errno
            if isinstance(number, int) and number > 0:
                number = errno.EBUSY if number == errno.EEXIST else number
                raise kernel_error(OSError(number, str(exc)), where, doing) from exc
            raise Broken(where, doing, errno.EIO, detail=f"pyroute2: {exc!r}") from exc

    def _opened(self) -> Any:
        if self._route is None:
            from pyroute2 import IPRoute

            self._route = IPRoute()
        return self._route

    def close(self) -> None:
        """Close the socket and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._end).result()
            thread.shutdown(wait=True)

    def _end(self) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.close()


def _index(route: Any, device: str) -> int:
    found = route.link_lookup(ifname=device)
    if not found:
        raise Gone(f"tc {device}", "look up", errno.ENODEV, advice="ip link shows the network devices")
    return int(found[0])


def _htb_classes(route: Any, index: int) -> Iterator[HtbClass]:
    for item in route.get_classes(index):
        if item.get_attr("TCA_KIND") != "htb":
            continue
        options = item.get_attr("TCA_OPTIONS")
        ceil = options.get_attr("TCA_HTB_CEIL64") or options.get_attr("TCA_HTB_PARMS")["ceil"]
        yield HtbClass(item["handle"] >> 16, item["handle"] & 0xFFFF, int(ceil))


def open_tc() -> Tc:
    """The best available interface: pyroute2 if it is installed, else tc(8)."""
    return TcCommand() if find_spec("pyroute2") is None else NetlinkTc()
