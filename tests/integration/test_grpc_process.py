"""The gRPC transport and its surroundings: forks, the client's log, and another package of the same name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A broker that was opened in the parent and used there, used again in a child.
FORKED = """
import os, sys
from outbox.brokers.base import Outgoing
from outbox.brokers.grpc.access import Access
from outbox.brokers.grpc.broker import GrpcBroker

broker = GrpcBroker(Access("127.0.0.1:1"), "group")
message = Outgoing("payments", b"body", "A" * 32, "key")
used_before = sys.argv[1] == "used"
if used_before:
    print(broker.prepare([message], 5))
child = os.fork()
if child == 0:
    try:
        print(broker.prepare([message], 5))
    except ValueError as error:
        print("ValueError", error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""
# What the transport needs of the client, and what the other client needs of its own package.
IMPORTS = """
import os, sys
import outbox.brokers.grpc.broker
from outbox.brokers.native import library
from importlib import metadata

client = sys.modules["rocketmq.v5.client"].__file__
assert client.startswith(sys.argv[1]), client
assert next(library._places()).startswith(sys.argv[1])
assert metadata.distribution("rocketmq-client-python").version
print("both", os.listdir(os.environ["HOME"]))
"""
GRPC, NATIVE = "rocketmq-python-client==5.1.2", "rocketmq-client-python==2.0.0"


def run(program: str, *arguments: str, **environment: str) -> str:
    """What the program prints; it must end well."""
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_forked_child_of_one_that_used_it_is_told() -> None:
    # Given a broker that was used before a fork; When the child uses it; Then it says what to do instead
    assert "ValueError rocketmq+grpc: this process was forked" in run(FORKED, "used")


def test_a_forked_child_may_use_what_nobody_used_before() -> None:
    # Given a broker that was opened, and not used, before a fork; When the child uses it; Then it works
    assert "Outage" in run(FORKED, "unused")


def test_the_clients_log_goes_through_logging(tmp_path: Path) -> None:
    # Given a home in which no folder can be made; When the transport is used; Then nobody misses it
    home = tmp_path / "home"
    home.touch()
    assert "Outage" in run(FORKED, "unused", HOME=str(home))


@pytest.mark.parametrize("order", [(GRPC, NATIVE), (NATIVE, GRPC)], ids=["native last", "grpc last"])
def test_both_clients_may_be_installed_in_any_order(tmp_path: Path, order: tuple[str, str]) -> None:
    # Given both distributions, of which the second has overwritten what they share
    for name in order:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--ignore-installed"]
        subprocess.run([*install, "--prefix", str(tmp_path / "prefix"), name], check=True, capture_output=True)
    (packages,) = (tmp_path / "prefix").glob("lib/python*/site-packages")
    (packages / "rocketmq" / "librocketmq.so").touch()
    # When both transports are imported; Then each finds its own, and neither leaves anything at home
    home = tmp_path / "home"
    home.mkdir()
    assert run(IMPORTS, str(packages), PYTHONPATH=str(packages), HOME=str(home)) == "both []\n"
