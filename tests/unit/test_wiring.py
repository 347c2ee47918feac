"""What settings become when transports are opened."""

import re
import sys
from pathlib import Path

import pytest

from outbox.brokers.base import Outgoing
from outbox.clock import monotonic
from outbox.errors import SettingsError
from outbox.identity import unique_ids
from outbox.settings import load
from outbox.wiring import open_broker, open_database, open_source

_WAIT = 60.0


@pytest.mark.parametrize("scheme", ["rocketmq", "rocketmq+native", "rocketmq+grpc"])
def test_a_password_in_the_broker_s_url_is_refused_and_not_repeated(scheme: str) -> None:
    settings = load(broker_url=f"{scheme}://user:secret@host:9876", origin="orders")
    with pytest.raises(SettingsError, match="OUTBOX_SECRET_KEY") as raised:
        open_broker(settings)
    assert "secret@" not in str(raised.value)


@pytest.mark.parametrize("url", ["kafka://user:secret@host", "rocketmq+x://host:9876", "user:secret@host:9876"])
def test_a_scheme_that_no_transport_has_is_called_wrong_and_not_the_origin(url: str) -> None:
    # Given a URL of another scheme, and no origin; When the broker is opened; Then the scheme is named alone
    scheme = url.partition(":")[0]
    with pytest.raises(SettingsError, match=f"OUTBOX_BROKER_URL: {re.escape(repr(scheme))} is no scheme") as raised:
        open_broker(load(broker_url=url))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    # Given a database of which the next process would see nothing / Then it is refused, and a file is asked for
    with pytest.raises(SettingsError, match=r"OUTBOX_DATABASE_URL: names no file, .* sqlite:///"):
        open_database(load(database_url=url))


@pytest.mark.parametrize(
    ("url", "remedy"),
    [("mysql://app@host/orders", r"\): pip install 'rocketmq-outbox\[mysql\]'"),
     ("postgresql+psycopg2://app@host/orders", r"\): leave the driver out and pip install 'rocketmq-outbox'")],
)  # fmt: skip
def test_a_missing_driver_is_named_with_what_brings_it(url: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in ("pymysql", "psycopg2"):
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(SettingsError, match=remedy):
        open_database(load(database_url=url))


def test_a_folder_is_made_for_a_file_of_sqlite_and_not_for_a_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # When databases are opened by the name of their file, and by a URI
    for url in ("sqlite:///by-name/shop.db", "sqlite:///file:by-uri/shop.db?uri=true"):
        open_database(load(database_url=url)).close()
    # Then the one folder is there, and nothing that has the URI's name
    assert [it.name for it in tmp_path.iterdir()] == ["by-name"]


@pytest.mark.parametrize("group", ["outbox-new orders", "", "outbox-仓库", "outbox-stock\n"])
def test_a_group_that_no_broker_takes_is_refused_by_the_embedded_one_too(tmp_path: Path, group: str) -> None:
    settings = load(broker_url=f"embedded://{tmp_path}/broker.db")
    with pytest.raises(SettingsError, match=r"consumer group .* --group"):
        open_source(settings, ["payments"], group)


def test_what_a_dead_consumer_held_comes_again_after_the_time_that_is_set(tmp_path: Path) -> None:
    # Given a message that a consumer received and never answered
    settings = load(broker_url=f"embedded://{tmp_path}/broker.db", invisible=0.5)
    broker = open_broker(settings)
    broker.send([Outgoing("payments", b"{}", unique_ids.fresh(), "1")], _WAIT)
    asked = monotonic()
    dead = open_source(settings, ["payments"], "stock")
    (held,) = dead.receive(1, _WAIT)
    assert held.invisible_until <= monotonic() + settings.invisible
    # When another one asks
    other = open_source(settings, ["payments"], "stock")
    (again,) = other.receive(1, _WAIT)
    # Then it gets the message, not sooner than the time that was set (deliveries that nobody gets in time are left out)
    assert again.unique_id == held.unique_id
    assert again.attempt > held.attempt
    assert monotonic() >= asked + settings.invisible
    for opened in (dead, other, broker):
        opened.close()
