"""Launch flags and configuration files of the servers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

Checks = Literal["fast", "default"]

#: Checks come after one to three seconds. ``transactionOpBatchInterval`` must stay below the two intervals, or halves
#: that were ended are asked about again; the usual 15 checks would be used up within 15 seconds.
CHECKS: Final[Mapping[Checks, Mapping[str, object]]] = MappingProxyType(
    {
        "fast": {
            "transactionTimeOut": 1000,
            "transactionCheckInterval": 1000,
            "transactionCheckMax": 10000,
            "transactionOpBatchInterval": 100,
            "transactionMetricFlushInterval": 1000,
        },
        "default": {},
    }
)

#: A broker that gets no turn for so long refuses what waits: by default for 200 ms, 1 s in the midst of a write, 3 and
#: 5 s. On a busy machine that is no fault to find. Ends of halves keep their 3 s: a COMMIT must not come late.
PATIENT: Final[Mapping[str, object]] = MappingProxyType(
    {
        "waitTimeMillsInSendQueue": 10_000,
        "osPageCacheBusyTimeOutMills": 10_000,
        "waitTimeMillsInAckQueue": 10_000,
        "waitTimeMillsInPullQueue": 30_000,
        "waitTimeMillsInLitePullQueue": 30_000,
        "waitTimeMillsInAdminBrokerQueue": 30_000,
    }
)
TLS_FILE: Final = "tls.properties"
_OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)


#: The simple compiler alone, and no check of classes that the compiler wrote: a fifth of a broker's start.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")


def launch(java: str, jars: Sequence[Path], home: Path, heap: str, *, optimised: bool) -> list[str]:
    """The command line up to the main class; ``optimised`` compiles for speed instead of a fast start.

    Direct memory: each of the broker's threads that stores messages keeps a buffer of the largest message, 4 MiB.
    """
    return [
        java,
        *(() if optimised else _QUICK_START),
        *("-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData", f"-Xms{heap}", f"-Xmx{heap}"),
        "-XX:MaxDirectMemorySize=512m",
        *tls_flags(home),
        *(f"-Drocketmq.home.dir={home}", f"-Duser.home={home}"),
        *_OPENED,
        *("-cp", ":".join(map(str, jars))),
    ]


def tls_flags(home: Path) -> list[str]:
    """TLS only where ``tls.properties`` lies in the server's folder, without TLS otherwise."""
    file = home / TLS_FILE
    if not file.exists():
        return ["-Dtls.server.mode=disabled"]
    return ["-Dtls.enable=true", "-Dtls.server.mode=enforcing", f"-Dtls.config.file={file}"]


def broker_properties(home: Path, name_server: str, port: int) -> dict[str, object]:
    """A broker on loopback whose files are small."""
    store = home / "store"
    return {
        "brokerClusterName": "outbox-tests",
        "brokerName": "broker-a",
        "brokerId": 0,
        "namesrvAddr": name_server,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 16777216,
        "mappedFileSizeConsumeQueue": 600000,
        "maxIndexNum": 10000,
        "maxHashSlotNum": 10000,
        "diskMaxUsedSpaceRatio": 95,
        "flushDiskType": "ASYNC_FLUSH",
        # The timer copies its whole wheel at each flush: once a second that is a fifth of a core for nothing.
        "timerFlushIntervalMs": 60000,
    }


def write_properties(path: Path, properties: Mapping[str, object]) -> Path:
    """A file of ``name=value`` lines."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


def write_logging(home: Path) -> None:
    """Logging to the console, warnings only: 4.9 does not start without these files."""
    folder = home / "conf"
    folder.mkdir(exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml"):
        (folder / name).write_text(
            "<configuration><appender name='console' class='ch.qos.logback.core.ConsoleAppender'><encoder>"
            "<pattern>%d %p %c - %m%n</pattern></encoder></appender>"
            "<root level='WARN'><appender-ref ref='console'/></root></configuration>\n"
        )
