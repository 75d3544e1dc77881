"""A ResourceManager and NodeManagers as child processes, on random ports of loopback.

Maven fetches their jars into a cache, PERPHD_YARN_HOME or ``~/.cache/perphd-cluster/yarn-PIN``, by
``make cluster-engines``. Nothing is downloaded here unless ``fetch`` is called.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from tools.cluster.control_plane import free_ports
from tools.cluster.engines import CACHE, NoProgram

VARIABLE: Final = "PERPHD_YARN_HOME"
READY_S: Final = 180.0
STOP_S: Final = 10.0
"""Seconds after which a NodeManager is killed, because it ignores signals while it searches its ResourceManager."""
MEMORY_MB: Final = 4096
CORES: Final = 4
LICENCES: Final = 7
"""Amount of the cluster's additional resource type on the last node."""
LICENCE: Final = "perphd-test.io/licence"
_HERE: Final = Path(__file__).parent / "hadoop"
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DAEMONS: Final = "org.apache.hadoop.yarn.server"
_OPTIONS: Final = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true", "-Xmx192m",
)  # fmt: skip


def home() -> Path:
    """The folder of the jars: named by PERPHD_YARN_HOME, or by the pins of the project file."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return CACHE / f"yarn-{hashlib.sha256((_HERE / 'pom.xml').read_bytes()).hexdigest()[:12]}"


def jars() -> Path:
    """The folder of the jars.

    Raises:
        NoProgram: they are not there, or Java is not.
    """
    if shutil.which("java") is None:
        raise NoProgram("java is not installed (openjdk-17-jre-headless)")
    if not any(home().glob("hadoop-yarn-server-resourcemanager-*.jar")):
        raise NoProgram(f"no jars of YARN in {home()}: make cluster-engines, or set {VARIABLE}")
    return home()


def fetch() -> Path:
    """Fetch the jars (81 MB) into the cache with Maven, unless they exist.

    Raises:
        NoProgram: Maven is missing or fails.
    """
    try:
        return jars()
    except NoProgram as exc:
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise NoProgram(f"{exc}; java and mvn are needed to fetch them") from exc
    home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home().parent, prefix="yarn.") as folder:
        shutil.copy(_HERE / "pom.xml", folder)
        done = subprocess.run(
            ["mvn", "-q", "-B", _PLUGIN, "-DincludeScope=runtime", "-DoutputDirectory=lib"],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise NoProgram(f"Maven fetched no jars: {(done.stdout + done.stderr).strip()[-500:]}")
        Path(folder, "lib").rename(home())
    return home()


def _configuration(path: Path, values: Mapping[str, object]) -> None:
    lines = [
        f"<property><name>{escape(key)}</name><value>{escape(str(value))}</value></property>"
        for key, value in values.items()
    ]
    path.write_text("\n".join(("<configuration>", *lines, "</configuration>\n")))


class Yarn:
    """One cluster in a folder of its own, with nodes 1, 2 ... of 4 GiB and 4 vcores.

    Queues are ``batch`` and ``services``. ``cgroup``: with -1, -2 ... the control group of each node's
    containers, which the LinuxContainerExecutor fills; None: the default executor, without groups. The last node has
    a further resource type.

    Raises:
        NoProgram: the jars, Java or the rights are missing.
    """

    def __init__(self, folder: Path, nodes: int = 2, cgroup: str | None = None) -> None:
        self._jars = jars()
        if os.geteuid() != 0:
            raise NoProgram("YARN's daemons here need root, for control groups")
        self.folder, self.nodes, self._cgroup = folder, nodes, cgroup
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._http, *self._ports = free_ports(5 + 4 * nodes)
        self._made: list[Path] = []
        self._configure()

    @property
    def url(self) -> str:
        """Address of the ResourceManager's REST interface."""
        return f"http://127.0.0.1:{self._http}"

    def node_id(self, number: int) -> str:
        """Name of a node in the cluster."""
        return f"localhost:{self._node_ports(number)[0]}"

    def node_url(self, number: int) -> str:
        """Address of a NodeManager's REST interface."""
        return f"http://127.0.0.1:{self._node_ports(number)[2]}"

    def hierarchy(self, number: int) -> str:
        """Control group of a node's containers."""
        return f"{self._cgroup}-{number}"

    def start(self) -> None:
        """Start everything and wait until all nodes are registered."""
        for mount in self._mounts():
            for number in range(1, self.nodes + 1):
                group = Path(f"{mount}{self.hierarchy(number)}")
                group.mkdir()
                self._made.append(group)
        self.start_resource_manager()
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        self.wait_for_nodes(self.nodes)

    def start_resource_manager(self) -> None:
        """Start the ResourceManager; it forgets applications."""
        self._run("rm", f"{_DAEMONS}.resourcemanager.ResourceManager")

    def start_node(self, number: int) -> None:
        """Start a NodeManager with its configured capacity."""
        address, localizer, web, collector = self._node_ports(number)
        place = self.folder / f"nm{number}"
        own: dict[str, object] = {
            "address": f"127.0.0.1:{address}",
            "localizer.address": f"127.0.0.1:{localizer}",
            "webapp.address": f"127.0.0.1:{web}",
            "collector-service.address": f"127.0.0.1:{collector}",
            "local-dirs": place / "local",
            "log-dirs": place / "log",
        }
        if number == self.nodes:
            own[f"resource-type.{LICENCE}"] = LICENCES
        if self._cgroup is not None:
            own["linux-container-executor.cgroups.hierarchy"] = self.hierarchy(number)
        for name in ("local", "log"):
            (place / name).mkdir(parents=True, exist_ok=True)
        options = [word for key, value in own.items() for word in ("-D", f"yarn.nodemanager.{key}={value}")]
        self._run(f"nm{number}", f"{_DAEMONS}.nodemanager.NodeManager", *options)

    def wait_for_nodes(self, count: int) -> None:
        """Wait until that many nodes are running."""
        ends = time.monotonic() + READY_S
        while self.running_nodes() < count:
            daemons = {name: each for name, each in self._running.items() if name.startswith(("rm", "nm"))}
            dead = [name for name, process in daemons.items() if process.poll() is not None]
            if dead or time.monotonic() > ends:
                raise RuntimeError(
                    f"YARN is not ready ({', '.join(dead) or 'too slow'}): {self.folder}/*.out"
                )
            time.sleep(0.3)

    def running_nodes(self) -> int:
        """Number of nodes that the ResourceManager counts as running; 0 if it does not answer."""
        try:
            return int(self.get("cluster/metrics")["clusterMetrics"]["activeNodes"])
        except (OSError, ValueError, KeyError):
            return 0

    def get(self, path: str) -> Any:
        """The ResourceManager's answer below /ws/v1/."""
        request = urllib.request.Request(f"{self.url}/ws/v1/{path}", headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def send(self, method: str, path: str, body: object) -> Any:
        """Send JSON to the ResourceManager below /ws/v1/."""
        request = urllib.request.Request(
            f"{self.url}/ws/v1/{path}?user.name=root", json.dumps(body).encode(),
            {"Content-Type": "application/json", "Accept": "application/json"}, method=method,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def submit(
        self, command: str, queue: str, kind: str, tags: Sequence[str] = (), memory_mb: int = 256
    ) -> str:
        """Submit an application of a single container with one vcore; returns its id.

        The container takes the place of the application's master but never registers, so YARN ends it as failed after
        ten minutes.
        """
        app = str(self.send("POST", "cluster/apps/new-application", {})["application-id"])
        self.send("POST", "cluster/apps", {
            "application-id": app, "application-name": kind.lower(), "queue": queue, "priority": 0,
            "unmanaged-AM": False, "max-app-attempts": 1, "application-type": kind,
            "application-tags": {"tag": list(tags)},
            "resource": {"memory": memory_mb, "vCores": 1},
            "am-container-spec": {"commands": {"command": command}},
        })  # fmt: skip
        return app

    def distributed_shell(
        self, script: Path, queue: str, containers: int, memory_mb: int = 256
    ) -> subprocess.Popen[bytes]:
        """The client of an application that runs this script in this many containers of one vcore."""
        jar = next(self._jars.glob("hadoop-yarn-applications-distributedshell-*.jar"))
        return self._run(
            f"shell-{queue}", "org.apache.hadoop.yarn.applications.distributedshell.Client", "-jar", str(jar),
            "-appname", f"shell-{queue}", "-queue", queue, "-num_containers", str(containers),
            "-container_vcores", "1", "-container_memory", str(memory_mb), "-master_vcores", "1",
            "-master_memory", "256", "-shell_command", str(script), "-timeout", "600000",
        )  # fmt: skip

    def kill_apps(self) -> None:
        """Kill every application that has not ended."""
        found = self.get("cluster/apps?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING")["apps"] or {}
        for app in found.get("app", []):
            self.send("PUT", f"cluster/apps/{app['id']}/state", {"state": "KILLED"})

    def stop(self, *names: str) -> None:
        """End these processes (``rm``, ``nm1`` ...), or all of them and their containers."""
        if not names and self.running_nodes():
            self.kill_apps()
            ends = time.monotonic() + STOP_S
            while time.monotonic() < ends and any(self._containers()):
                time.sleep(0.3)
        ending = {
            name: self._running.pop(name) for name in names or tuple(self._running) if name in self._running
        }
        for process in ending.values():
            process.terminate()
        ends = time.monotonic() + STOP_S
        for process in ending.values():
            try:
                process.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not names:
            for group in self._made:
                for path in (*sorted(group.glob("container_*")), group):
                    _remove(path)
            self._made = []

    def kill(self, name: str) -> None:
        """End a process as a crash would."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def _containers(self) -> Iterator[object]:
        for node in (self.get("cluster/nodes")["nodes"] or {}).get("node", []):
            yield from range(node["numContainers"])

    def _mounts(self) -> list[str]:
        if self._cgroup is None:
            return []
        mounts = [Path("/sys/fs/cgroup", name) for name in ("cpu", "cpuacct", "memory")]
        return [str(mount) for mount in mounts if mount.is_dir() and not mount.is_symlink()]

    def _node_ports(self, number: int) -> list[int]:
        return self._ports[4 * number : 4 * number + 4]

    def _configure(self) -> None:
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        scheduler, tracker, client, admin = self._ports[:4]
        rm, nm, queues = "yarn.resourcemanager", "yarn.nodemanager", "yarn.scheduler.capacity"
        _configuration(
            conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.folder / "tmp"}
        )
        values: dict[str, object] = {
            f"{rm}.hostname": "127.0.0.1",
            f"{rm}.bind-host": "127.0.0.1",
            f"{rm}.scheduler.address": f"127.0.0.1:{scheduler}",
            f"{rm}.resource-tracker.address": f"127.0.0.1:{tracker}",
            f"{rm}.address": f"127.0.0.1:{client}",
            f"{rm}.admin.address": f"127.0.0.1:{admin}",
            f"{rm}.webapp.address": f"127.0.0.1:{self._http}",
            f"{rm}.nodemanagers.heartbeat-interval-ms": 500,
            f"{rm}.connect.retry-interval.ms": 1000,
            "yarn.scheduler.include-port-in-node-name": "true",
            "yarn.scheduler.minimum-allocation-mb": 64,
            "yarn.nm.liveness-monitor.expiry-interval-ms": 20000,
            "yarn.resource-types": LICENCE,
            f"{nm}.bind-host": "127.0.0.1",
            f"{nm}.resource.memory-mb": MEMORY_MB,
            f"{nm}.resource.cpu-vcores": CORES,
            f"{nm}.vmem-check-enabled": "false",
            f"{nm}.delete.debug-delay-sec": 0,
            f"{nm}.disk-health-checker.max-disk-utilization-per-disk-percentage": 99,
            f"{nm}.env-whitelist": "JAVA_HOME,HADOOP_CONF_DIR,LANG,TZ",
            "yarn.application.classpath": f"{conf},{self._jars}/*",
        }
        if self._cgroup is not None:
            executor = f"{nm}.linux-container-executor"
            values |= {
                f"{nm}.container-executor.class": f"{_DAEMONS}.nodemanager.LinuxContainerExecutor",
                f"{executor}.path": _HERE / "container_executor.py",
                f"{executor}.group": "root",
                f"{executor}.nonsecure-mode.limit-users": "false",
                f"{executor}.cgroups.mount": "false",
                f"{nm}.resource.cpu.enabled": "true",
                f"{nm}.resource.memory.enabled": "true",
            }
        _configuration(conf / "yarn-site.xml", values)
        _configuration(
            conf / "capacity-scheduler.xml",
            {
                f"{queues}.root.queues": "batch,services",
                **{f"{queues}.root.{name}.capacity": 50 for name in ("batch", "services")},
                **{f"{queues}.root.{name}.maximum-capacity": 100 for name in ("batch", "services")},
                **{f"{queues}.root.{name}.user-limit-factor": 10 for name in ("batch", "services")},
                f"{queues}.maximum-am-resource-percent": "1.0",
                # Without this setting, YARN ignores cores.
                f"{queues}.resource-calculator": (
                    "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
                ),
                f"{queues}.node-locality-delay": -1,
            },
        )
        (conf / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,console\n"
            "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.target=System.err\n"
            "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n\n"
        )

    def _run(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = Path(shutil.which("java") or "java").resolve()
        environment = {
            **os.environ, "HADOOP_CONF_DIR": f"{self.folder}/conf", "JAVA_HOME": str(java.parents[1]),
        }  # fmt: skip
        command = [
            str(java), *_OPTIONS, f"-Dhadoop.log.dir={self.folder}", f"-Dyarn.log.dir={self.folder}",
            "-cp", f"{self.folder}/conf:{self._jars}/*", program, *arguments,
        ]  # fmt: skip
        with (self.folder / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._running[name] = process
        return process


def _remove(group: Path) -> None:
    """Remove a group; processes that a container left behind are ended first."""
    for _ in range(50):
        try:
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), 9)
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except (OSError, ProcessLookupError):
            time.sleep(0.1)


@contextmanager
def running(folder: Path, nodes: int = 2, cgroup: str | None = None) -> Iterator[Yarn]:
    """Start a cluster for the block, and stop it in any case."""
    cluster = Yarn(folder, nodes, cgroup)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


if __name__ == "__main__":
    try:
        print(fetch())
    except NoProgram as missing:
        sys.exit(str(missing))
