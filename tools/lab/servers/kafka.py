"""One Kafka broker without ZooKeeper, with native/kafka/Clients.java for its load.

On first use, Maven fetches the jars from its registry into a cache, PERPHD_KAFKA_HOME or
``~/.cache/perphd-lab/kafka-PIN`` (45 MB).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.lab.load import Load, Reporting, Running, warm_up
from tools.lab.processes import LabError
from tools.lab.servers.keyed import answers
from tools.lab.servers.seam import (
    NATIVE,
    Place,
    Unavailable,
    family,
    free_port,
    listens,
    need,
    run,
    wait_until,
)

VARIABLE: Final = "PERPHD_KAFKA_HOME"
PARTITIONS, OUTSTANDING = 4, 64
OPEN_RATE = 1000
_COMPILED_S: Final = 120.0
"""Longest time for the broker to be compiled under load: until then its rate rises."""
LOADS = (
    Load("kafka", "kafka", "messages",
         f"messages of 1 KB, closed loop, {OUTSTANDING} between producer and consumer; latency from end to end",
         warm_s=12.0),
    Load("kafka-open", "kafka", "messages",
         f"messages of 1 KB, open loop, {OPEN_RATE} messages/s; latency from arrival to consumer", open_loop=True,
         warm_s=12.0),
)  # fmt: skip
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_HERE: Final = NATIVE / "kafka"
_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.segment.bytes=33554432
log.retention.bytes=67108864
log.retention.check.interval.ms=5000
log.segment.delete.delay.ms=1000
"""
_LOGGING = """\
status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
"""
_EXPORTED = """\
startDelaySeconds: 0
lowercaseOutputName: true
rules:
  - pattern: "kafka.server<type=BrokerTopicMetrics, name=(.+)PerSec><>Count"
    name: "kafka_$1_total"
    type: COUNTER
"""


def home() -> Path:
    """The folder of the jars: named by PERPHD_KAFKA_HOME, or by the pins of the project file."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    pins = hashlib.sha256((_HERE / "pom.xml").read_bytes()).hexdigest()[:12]
    return Path.home() / ".cache" / "perphd-lab" / f"kafka-{pins}"


def jars() -> Path:
    """The folder of the jars, fetched by Maven if missing.

    Raises:
        Unavailable: Maven or Java is missing, or the registry does not answer.
    """
    need(("java", "javac"), "openjdk-17-jdk-headless maven")
    folder = home()
    if any(folder.glob("kafka_*.jar")):
        return folder
    need(("mvn",), f"maven (or name a folder with Kafka's jars by {VARIABLE})")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="kafka.") as made:
        shutil.copy(_HERE / "pom.xml", made)
        try:
            run("mvn", "-q", "-B", "-f", f"{made}/pom.xml", _PLUGIN, "-DincludeScope=runtime",
                f"-DoutputDirectory={made}/lib", wait_s=1800.0)  # fmt: skip
        except LabError as exc:
            raise Unavailable(f"Kafka's jars are missing: {exc}") from exc
        Path(made, "lib").rename(folder)
    return folder


class Kafka:
    """One broker that is its own controller."""

    def __init__(self, place: Place) -> None:
        self._place, self._ledger = place, place.ledger
        self._compiled = False
        self._jars = jars()
        self.port, controller, self._metrics = free_port(), free_port(), free_port()
        folder = place.folder
        logging = folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        self._options = [
            "-XX:+UseSerialGC",
            f"-Dlog4j2.configurationFile={logging}",
            "-Djava.net.preferIPv4Stack=true",
        ]
        config, exported = folder / "server.properties", folder / "jmx.yml"
        config.write_text(_CONFIG.format(port=self.port, controller=controller, folder=place.data))
        exported.write_text(_EXPORTED)
        run("javac", "-cp", f"{self._jars}/*", "-d", str(folder), str(_HERE / "Clients.java"))
        tool = ["java", *self._options, "-cp", f"{self._jars}/*", "kafka.tools.StorageTool"]
        cluster = run(*tool, "random-uuid").strip().splitlines()[-1]
        run(*tool, "format", "-t", cluster, "-c", str(config))
        agent = next(self._jars.glob("jmx_prometheus_javaagent-*.jar"), None)
        if agent is None:
            raise Unavailable(f"there is no jmx_prometheus_javaagent in {self._jars}")
        log = folder / "broker.log"
        heap = 512 * place.scale
        with log.open("wb") as output:
            self.process = self._ledger.start(
                ["java", f"-javaagent:{agent}=127.0.0.1:{self._metrics}:{exported}", f"-Xms{heap}m", f"-Xmx{heap}m",
                 *self._options, "-cp", f"{self._jars}/*", "kafka.Kafka", str(config)],
                groups=place.groups, stdout=output, stderr=output,
            )  # fmt: skip
        wait_until(self._is_up, self.process, log, "Kafka", wait_s=120.0)

    def _is_up(self) -> bool:
        return listens(self.port) and answers(f"http://127.0.0.1:{self._metrics}/metrics")

    @property
    def pids(self) -> Sequence[int]:
        """The broker's process."""
        return family(self.process.pid)

    def version(self) -> str:
        """Its version."""
        name = next(self._jars.glob("kafka-clients-*.jar")).stem
        return f"Kafka {name.rpartition('-')[2]}"

    def sli(self) -> str:
        """Messages per second, as exported by the broker."""
        return (
            f'source = "prometheus"\nurl = "http://127.0.0.1:{self._metrics}/metrics"\n'
            'work = "kafka_messagesin_total"\n'
        )

    def prepare(self, load: Load) -> None:
        """Load a new broker until it is compiled, else its first runs are slower than all later ones.

        The clients create their own topic, and remove those of earlier clients.
        """
        if self._compiled:
            return
        rates = warm_up(self.start(LOADS[0], []), _COMPILED_S)
        span = slice(0, 3), slice(-3, None)
        first, last = (sum(rates[part]) / len(rates[part]) for part in span)
        print(f"lab: kafka is warm: {first:.0f} to {last:.0f} messages/s in {len(rates)} s", flush=True)
        self._compiled = True

    def start(self, load: Load, groups: list[str]) -> Running:
        """Start producer and consumer, in one process."""
        scale = self._place.scale
        rate = OPEN_RATE * scale if load.open_loop else 0
        command = [
            "java", "-Xmx256m", *self._options, "-cp", f"{self._place.folder}:{self._jars}/*", "Clients",
            f"127.0.0.1:{self.port}", str(PARTITIONS * scale), str(OUTSTANDING * scale), str(rate),
        ]  # fmt: skip
        return Reporting(self._ledger, command, groups)

    def stop(self) -> None:
        """End the broker."""
        self._ledger.end(self.process, signal.SIGTERM, 30.0)
