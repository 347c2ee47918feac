"""What the settings make of ``rocketmq+grpc://``, and what they refuse."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from outbox.brokers.base import BrokerClosed, Outage, Prepared, Stored
from outbox.errors import SettingsError
from outbox.settings import Settings, load
from outbox.wiring import open_broker, open_examiner, open_ledger, open_source
from tests.contracts.rig import message
from tests.services.certificates import Certificate, make_ca, make_certificate
from tests.services.require import require
from tests.unit.brokers.grpc_proxy import ScriptedProxy
from tests.waiting import expect_soon

URL = "rocketmq+grpc://127.0.0.1:8081"


def settings(**named: object) -> Settings:
    return load(**{"broker_url": URL, "origin": "orders", **named})


def test_it_opens_without_a_proxy() -> None:
    # Given no proxy; When the transport is opened; Then nothing is dialled, and it says what it is
    broker = open_broker(settings(access_key="me", secret_key="secret"))
    assert broker.capabilities.check_scope == "topic"
    assert broker.group == "outbox-orders"
    broker.close()
    source = open_source(settings(), ["payments"], "group")
    assert source.receive(1, 0) == []
    source.close()
    with pytest.raises(BrokerClosed, match="group"):
        source.receive(1, 0)


@pytest.mark.parametrize("address", ["host", "host:port", "host:8081;other", ":8081", "::1:8081"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    wrong = settings(broker_url=f"rocketmq+grpc://{address}")
    for opening in (lambda: open_broker(wrong), lambda: open_source(wrong, ["payments"], "group")):
        with pytest.raises(SettingsError, match=r"OUTBOX_BROKER_URL.*host:port"):
            opening()


WITHOUT_THE_CLIENT = f"""
import sys
sys.modules["rocketmq"] = None
from outbox.settings import load
from outbox.wiring import open_broker, open_source
loaded = load(broker_url="{URL}", origin="orders")
for opening in (lambda: open_broker(loaded), lambda: open_source(loaded, ["payments"], "group")):
    try:
        opening()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_the_client_the_remedy_is_named() -> None:
    # Given a process without rocketmq-python-client; When the transport is opened; Then the error says how to get it
    ended = subprocess.run([sys.executable, "-c", WITHOUT_THE_CLIENT], capture_output=True, text=True, check=True)
    assert ended.stdout.count("SettingsError OUTBOX_BROKER_URL") == 2
    assert ended.stdout.count("pip install 'rocketmq-outbox[grpc]'") == 2


@pytest.fixture
def ca(tmp_path: Path) -> Certificate:
    """A CA that nobody else trusts."""
    return require(lambda: make_ca(tmp_path))


@pytest.fixture
def proxy(tmp_path: Path, ca: Certificate) -> Iterator[ScriptedProxy]:
    """A proxy that wants a certificate of its clients."""
    own = make_certificate(tmp_path, ca, "proxy")
    pair = (Path(own.key).read_bytes(), Path(own.file).read_bytes())
    roots = Path(ca.file).read_bytes()
    scripted = ScriptedProxy(grpc.ssl_server_credentials([pair], roots, require_client_auth=True))
    yield scripted
    scripted.stop()


def outcome(proxy: ScriptedProxy, **files: str) -> Prepared:
    """What becomes of a half that is sent over TLS with these files."""
    broker = open_broker(settings(broker_url=f"rocketmq+grpc://{proxy.address}", tls=True, **files))
    (seen,) = broker.prepare([message("payments")], 60)
    broker.close()
    return seen


def test_both_sides_show_their_certificates(tmp_path: Path, ca: Certificate, proxy: ScriptedProxy) -> None:
    # Given a certificate of ours, its key in a file of its own, or in the same one
    ours = make_certificate(tmp_path, ca, "client")
    both = tmp_path / "both.pem"
    both.write_text(Path(ours.file).read_text() + Path(ours.key).read_text())
    # When a half is sent; Then it is stored
    files = {"tls_ca_file": ca.file, "tls_certificate": ours.file, "tls_key": ours.key}
    assert isinstance(outcome(proxy, **files), Stored)
    assert isinstance(outcome(proxy, tls_ca_file=ca.file, tls_certificate=str(both)), Stored)


def test_a_source_speaks_tls_as_well(tmp_path: Path, ca: Certificate, proxy: ScriptedProxy) -> None:
    # Given a proxy that wants a certificate; When a source with ours receives; Then it is known, and polls
    ours = make_certificate(tmp_path, ca, "client")
    files = {"tls_ca_file": ca.file, "tls_certificate": ours.file, "tls_key": ours.key}
    loaded = settings(broker_url=f"rocketmq+grpc://{proxy.address}", tls=True, **files)
    source = open_source(loaded, ["payments"], "stock")
    expect_soon(lambda: bool(source.receive(1, 0.1) or proxy.received), "it polls")
    source.close()
    assert proxy.received[0].group.name == "stock"


def test_a_proxy_that_nobody_vouches_for_gets_nothing(tmp_path: Path, proxy: ScriptedProxy) -> None:
    # Given a proxy with a certificate of another CA; When a half is sent; Then nothing leaves, and the reason says so
    (tmp_path / "other").mkdir()
    seen = outcome(proxy, tls_ca_file=make_ca(tmp_path / "other").file)
    assert isinstance(seen, Outage)
    assert "CERTIFICATE_VERIFY_FAILED" in seen.reason
    assert proxy.sent == []


def test_a_tls_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="OUTBOX_TLS_CA_FILE"):
        open_broker(settings(tls=True, tls_ca_file=str(tmp_path / "missing.pem")))


def test_the_host_is_always_checked() -> None:
    with pytest.raises(SettingsError, match="OUTBOX_TLS_CHECK_HOST"):
        open_broker(settings(tls=True, tls_check_host=False))


def test_what_only_name_servers_lead_to_is_refused() -> None:
    with pytest.raises(SettingsError, match="rocketmq://host:9876"):
        open_ledger(settings())
    assert open_examiner(settings()) is None
