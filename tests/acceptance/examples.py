"""Runs the examples as anybody would, from the command line.

``python -m tests.acceptance.examples`` (``make examples``) is the full run: 2,000 orders and 20,000 events, embedded
and on PostgreSQL, RocketMQ and Redis servers of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from outbox.identity import fresh_token
from tests.services.databases import fresh_database
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.rocketmq import RocketMQ, create_topics

ROOT = Path(__file__).parents[2]
#: Seconds; no claim about time hangs on it.
DEADLINE = 600.0


def run_example(name: str, folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of ``python -m examples.NAME``; whatever it started is gone when this returns."""
    command = [sys.executable, "-m", f"examples.{name}", "--folder", str(folder), *options]
    example = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = example.communicate(timeout=DEADLINE)
        return example.returncode, said
    finally:
        _end_session(example)


def _end_session(leader: "subprocess.Popen[str]") -> None:
    """SIGKILL to the processes that the leader left behind, if it did not get to it."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def on_servers(database_url: str, namesrv: str, redis_url: str | None = None) -> tuple[str, ...]:
    """The options that name servers, and a topic of the run's own, which is made."""
    topic = f"example-{fresh_token()}"
    create_topics(namesrv, [topic], queues=4)
    redis = ("--redis-url", redis_url) if redis_url else ()
    return ("--database-url", database_url, "--broker-url", f"rocketmq://{namesrv}", "--topic", topic, *redis)


def main() -> int:
    """The full runs, one after another; how many were not exact."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        failed = _told("order_payment", folder) + _told("tracking_events", folder)
        server = stack.enter_context(Postgres())
        namesrv = stack.enter_context(RocketMQ(checks="default")).namesrv
        redis = stack.enter_context(Redis(durable=True))
        url = stack.enter_context(fresh_database(server.url))
        failed += _told("order_payment", folder, *on_servers(url, namesrv, redis.url))
        return failed + _told("tracking_events", folder, *on_servers(url, namesrv))


def _told(name: str, folder: Path, *options: str) -> int:
    print(f"--- python -m examples.{name} {' '.join(options)}", flush=True)
    code, said = run_example(name, folder, *options)
    print(said, flush=True)
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
