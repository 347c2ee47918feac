"""Where an example runs: servers that are named on the command line, or files and an embedded broker in a folder."""

import argparse
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from examples.crew import QUICK
from outbox import migrate
from outbox.brokers.ledger import CannotTell
from outbox.clock import monotonic
from outbox.settings import Settings, load
from outbox.wiring import open_database, open_ledger

_STARTS_WITHIN = 30.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that name servers; without them everything is embedded."""
    parser.add_argument("--database-url", help="PostgreSQL, MariaDB or MySQL; default: SQLite in the folder")
    parser.add_argument("--broker-url", help="such as rocketmq://127.0.0.1:9876; default: the embedded broker")
    parser.add_argument("--folder", type=Path, default=Path(".outbox/examples"), help="for logs and embedded databases")


def fresh_folder(folder: Path) -> Path:
    """A new folder for this run, ``folder/1`` and so on: nothing of anybody's is deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)
    run = folder / str(number)
    run.mkdir()
    return run.resolve()


def settings_of(options: argparse.Namespace, folder: Path, origin: str) -> Settings:
    """The settings of a run; the toolkit's tables are in the database, and a real broker has the topic, when this
    returns."""
    settings = load(
        **QUICK,
        origin=origin,
        database_url=options.database_url or f"sqlite:///{folder}/example.db",
        broker_url=options.broker_url or f"embedded://{folder}/broker.db",
    )
    database = open_database(settings)
    migrate.upgrade(database)
    database.close()
    _expect_topic(settings, options.topic)
    return settings


def _expect_topic(settings: Settings, topic: str) -> None:
    """``SystemExit`` where messages would wait for their topic for ever; a proxy does not say what it has."""
    if settings.broker_url.startswith(("embedded:", "rocketmq+grpc:")):
        return
    try:
        with closing(open_ledger(settings)) as ledger:
            known = ledger.exists(topic)
    except CannotTell as problem:
        raise SystemExit(str(problem)) from problem
    if not known:
        raise SystemExit(f"topic {topic}: the broker does not know it: mqadmin updateTopic -n … -c … -t {topic}")


@contextmanager
def local_redis(folder: Path) -> Iterator[str | None]:
    """URL of a ``redis-server`` of our own on a free loopback port, stopped afterwards; None: there is no such program.

    Every write is on disk before it is answered: what Redis forgets would happen again.
    """
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None or not _client_installed():
        yield None
        return
    port, data = _free_port(), folder / "redis"
    data.mkdir()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(data)]
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen([program, *options, *durable], stdout=log, stderr=log)
    try:
        _await(port, server, folder)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


def _client_installed() -> bool:
    try:
        import redis  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _await(port: int, server: "subprocess.Popen[bytes]", folder: Path) -> None:
    until = monotonic() + _STARTS_WITHIN
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or monotonic() > until:
                raise SystemExit(f"redis-server does not answer on port {port}; see {folder}/redis.log") from None
            time.sleep(0.05)
