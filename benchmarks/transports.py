"""Half + commit over every transport, and over the public clients bare, side by side on one broker.

    python -m benchmarks.transports [--rounds 5] [--seconds 4] [--warm-up 15]

Each client is a program of its own (``benchmarks.clients``, ``benchmarks/java``) with the threads and processes that
suit it best. All stay up from the first round to the last, and work one after another: in each round each has
``--settle`` seconds to get going, and is then measured for ``--seconds``. Before the first round all work for
``--warm-up`` seconds each, so that the broker and the Java client have compiled what is hot: a Java client's CPU time a
message falls to a quarter within its first minute or two of work, and it is the warm one that is compared.

Of a client: committed messages a second, its own CPU time a message (all its processes, all threads), that of broker
and proxy beside it, and the time from the half's first byte to the end of the commit, as p50 and p99 of the messages.
Our transports over remoting and the native client wait for the broker's answer to COMMIT; the public native and Java
clients send it one-way, and over gRPC the proxy answers it alone: their times are shorter by that answer. A message in
a batch takes as long as the batch, so the pipelined sides have longer times at their full rate; ``remoting, one at a
time`` is the lone message.

Ratios are taken within a round, one process of the remoting transport against the better of that family's sides, and
the median of the rounds is reported; the load average is said beside it. Rates say something on a quiet machine only:
where others compete for its cores, a client of many threads or processes gets more of them than one of two threads.
CPU time does not depend on that, so ``cpu_vs_…`` compares what client and servers together spend on a message.

The last line is one JSON object: ``vs_native``, ``vs_grpc``, ``vs_java`` (null where that client cannot be had),
``vs_two_processes``, ``cpu_vs_…``, ``client_us`` and ``broker_us`` (CPU a message of the remoting transport and of the
broker under it), ``per_s`` by side, ``load``. Nothing is asserted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.clients.gate import TOPIC
from tests.services.errors import ServiceMissing
from tests.services.librocketmq import librocketmq
from tests.services.rocketmq import RocketMQ, create_topics
from tests.services.rocketmq.cluster import DEFAULT_VERSION
from tests.services.rocketmq.jars import jars, java
from tests.services.rocketmq.proxy import Proxy

ROOT: Final = Path(__file__).parents[1]
JAVA_SOURCE: Final = ROOT / "benchmarks" / "java" / "TransactionBench.java"
#: The side that the others are compared with.
REFERENCE: Final = "remoting"
COMPARED: Final = ("native", "grpc", "java")


@dataclass(frozen=True, slots=True)
class Side:
    """One way to send: a client, its threads and its processes."""

    name: str
    family: str
    command: Sequence[str]
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """What one side did in one round."""

    per_s: float
    client_us: float
    broker_us: float
    both_us: float
    p50_ms: float
    p99_ms: float
    failed: int


class Client:
    """The processes of one side, resting between rounds."""

    def __init__(self, side: Side, home: str) -> None:
        """``home``: where the public clients may write their logs."""
        self.side = side
        environment = {**os.environ, "HOME": home, "ROCKETMQ_CLIENT_LOG_DIR": home}
        self._processes = [
            subprocess.Popen(
                side.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
            )
            for _ in range(side.processes)
        ]

    def work(self, settle: float, seconds: float, servers: Sequence[psutil.Process]) -> Figures:
        """Lets all processes work at once."""
        before = _cpu(servers)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{settle} {seconds}\n")
            process.stdin.flush()
        reports = [self._report(process) for process in self._processes]
        count = sum(report["count"] for report in reports) or 1
        client_us = 1e6 * sum(report["cpu_seconds"] for report in reports) / count
        broker_us = 1e6 * (_cpu(servers) - before) / count * seconds / (settle + seconds)
        return Figures(
            per_s=sum(report["count"] / report["seconds"] for report in reports),
            client_us=client_us,
            broker_us=broker_us,
            both_us=client_us + broker_us,
            p50_ms=statistics.mean(report["p50_ms"] for report in reports),
            p99_ms=max(report["p99_ms"] for report in reports),
            failed=int(sum(report["failed"] for report in reports)),
        )

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.communicate()

    def _report(self, process: "subprocess.Popen[str]") -> dict[str, float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.side.name}: the client ended with {process.wait()}; see above what it said")
        report: dict[str, float] = json.loads(line)
        return report


def _cpu(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def sides(namesrv: str, proxy: str, body: int) -> list[Side]:
    """The sides that can be run here, the reference first."""
    port = [sys.executable, "-m", "benchmarks.clients.port"]
    remoting = [*port, f"rocketmq://{namesrv}"]
    return [
        Side(REFERENCE, "remoting", [*remoting, "3", "170", str(body)]),
        Side("remoting, 2 processes", "remoting x 2", [*remoting, "3", "170", str(body)], processes=2),
        Side("remoting, one at a time", "latency", [*remoting, "1", "1", str(body)]),
        *_native(port, namesrv, str(body)),
        *_grpc(port, proxy, str(body)),
        *(
            Side(f"java, {threads} threads", "java", [*_java(), namesrv, TOPIC, str(threads), str(body)])
            for threads in (16, 64)
        ),
    ]


def _native(port: Sequence[str], namesrv: str, body: str) -> list[Side]:
    """The transport over the C++ client, and its Python package alone; nothing where the library is not to be had."""
    try:
        library = str(librocketmq())
    except ServiceMissing as missing:
        print(f"native: left out: {missing}", file=sys.stderr)
        return []
    through = ["env", f"OUTBOX_NATIVE_LIBRARY={library}", *port, f"rocketmq+native://{namesrv}", "2", "256", body]
    alone = [sys.executable, "-m", "benchmarks.clients.plain_native", namesrv, "8", body, library]
    return [
        Side("native", "native", through),
        Side("native, 2 processes", "native", through, processes=2),
        Side("native client alone, 2 x 8", "native", alone, processes=2),
    ]


def _grpc(port: Sequence[str], proxy: str, body: str) -> list[Side]:
    """The transport over gRPC, and the public client alone."""
    through = [*port, f"rocketmq+grpc://{proxy}", "1", "64", body]
    alone = [sys.executable, "-m", "benchmarks.clients.plain_grpc", proxy, "32", body]
    return [
        Side("grpc", "grpc", through),
        Side("grpc, 2 processes", "grpc", through, processes=2),
        Side("grpc client alone, 32", "grpc", alone),
    ]


def _java() -> list[str]:
    """The Java client: the broker's own jars hold it."""
    path = ":".join(map(str, (JAVA_SOURCE.parent, *jars(DEFAULT_VERSION))))
    return [java(), "-Xmx512m", "-cp", path, str(JAVA_SOURCE)]


@contextmanager
def servers() -> Iterator[tuple[str, str, list[psutil.Process]]]:
    """Name server, proxy, and the processes whose CPU time counts as the broker's."""
    with RocketMQ(checks="default", optimised=True) as cluster:
        create_topics(cluster.namesrv, [TOPIC], message_type="TRANSACTION")
        with Proxy(cluster.namesrv, optimised=True) as proxy:
            yield cluster.namesrv, proxy.url, [psutil.Process(cluster.broker.pid), psutil.Process(proxy.pid)]


@contextmanager
def clients(every: Sequence[Side]) -> Iterator[list[Client]]:
    """All sides' processes, up and resting."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        started = [Client(side, home) for side in every]
        for client in started:
            stack.callback(client.close)
        yield started


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description="The transports and the public clients, side by side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--settle", type=float, default=1.0)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--body", type=int, default=512)
    options = parser.parse_args()
    with servers() as (namesrv, proxy, processes):
        every = sides(namesrv, proxy, options.body)
        with clients(every) as started:
            for client in started:
                client.work(options.warm_up, options.settle, processes)
            work = (options.settle, options.seconds, processes)
            rounds = [_round(started, number, *work) for number in range(options.rounds)]
    report(every, rounds)


def _round(
    started: Sequence[Client], number: int, settle: float, seconds: float, servers: Sequence[psutil.Process]
) -> dict[str, Figures]:
    """All clients one after another; each round begins with another one."""
    first = number % len(started)
    load = os.getloadavg()[0]
    figures = {it.side.name: it.work(settle, seconds, servers) for it in (*started[first:], *started[:first])}
    print(f"round {number + 1}: load {load:.1f}", *map(_brief, figures.items()), sep="  ", flush=True)
    return figures


def _brief(item: tuple[str, Figures]) -> str:
    return f"{item[0]} {item[1].per_s:.0f}/s"


def report(every: Sequence[Side], rounds: Sequence[dict[str, Figures]]) -> None:
    """The table and the figures."""
    titles = ("per s", "client µs", "broker µs", "both µs", "p50 ms", "p99 ms", "failed")
    print(f"\n{'side':<26} {' '.join(f'{title:>9}' for title in titles)}")
    for side in every:
        print(_row(side.name, [each[side.name] for each in rounds]))
    families: dict[str, list[str]] = defaultdict(list)
    for side in every:
        families[side.family].append(side.name)
    rate = {f"vs_{family}": _ratio(rounds, families[family]) for family in COMPARED}
    cpu = {f"cpu_vs_{family}": _cpu_ratio(rounds, families[family]) for family in COMPARED}
    two = {"vs_two_processes": _ratio(rounds, families["remoting x 2"])}
    own = [each[REFERENCE] for each in rounds]
    client_us = round(statistics.median(it.client_us for it in own), 1)
    broker_us = round(statistics.median(it.broker_us for it in own), 1)
    per_s = {side.name: round(statistics.median(each[side.name].per_s for each in rounds)) for side in every}
    load = round(os.getloadavg()[1], 1)
    result = {"benchmark": "transports", **rate, **two, **cpu, "client_us": client_us, "broker_us": broker_us}
    print(json.dumps({**result, "per_s": per_s, "load": load}))


def _row(name: str, measured: Sequence[Figures]) -> str:
    columns = {"per_s": 0, "client_us": 0, "broker_us": 0, "both_us": 0, "p50_ms": 2, "p99_ms": 2}
    medians = (
        f"{statistics.median(getattr(it, column) for it in measured):>9.{digits}f}"
        for column, digits in columns.items()
    )
    return f"{name:<26} {' '.join(medians)} {sum(it.failed for it in measured):>9}"


def _ratio(rounds: Sequence[dict[str, Figures]], others: Sequence[str]) -> float | None:
    """Median over the rounds of the reference's rate by the best of the others'."""
    if not others:
        return None
    return round(statistics.median(it[REFERENCE].per_s / max(it[name].per_s for name in others) for it in rounds), 2)


def _cpu_ratio(rounds: Sequence[dict[str, Figures]], others: Sequence[str]) -> float | None:
    """The same of the CPU time that client and servers spend on a message: the least of the others' by ours."""
    if not others:
        return None
    return round(
        statistics.median(min(it[name].both_us for name in others) / it[REFERENCE].both_us for it in rounds), 2
    )


if __name__ == "__main__":
    main()
