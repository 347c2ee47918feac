"""Opens what the settings name: database, broker, source. The one place where a broker URL is read."""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL

from outbox.brokers.base import Broker
from outbox.brokers.embedded.broker import EmbeddedBroker
from outbox.brokers.embedded.examiner import EmbeddedExaminer
from outbox.brokers.embedded.ledger import EmbeddedLedger
from outbox.brokers.embedded.source import EmbeddedSource
from outbox.brokers.embedded.timing import BrokerTiming
from outbox.brokers.examiner import Examiner
from outbox.brokers.grpc.wiring import open_grpc, open_grpc_source
from outbox.brokers.ledger import Ledger
from outbox.brokers.namespaces import Namespace
from outbox.brokers.native.broker import NativeBroker
from outbox.brokers.native.library import load
from outbox.brokers.native.producer import Credentials
from outbox.brokers.native.source import PushSource
from outbox.brokers.remoting.acl import signature
from outbox.brokers.remoting.broker import RemotingBroker
from outbox.brokers.remoting.commands import Sign
from outbox.brokers.remoting.examiner import RemotingExaminer
from outbox.brokers.remoting.ledger import RemotingLedger
from outbox.brokers.remoting.pop import PopSource
from outbox.brokers.remoting.routes import split_addresses
from outbox.brokers.remoting.streams import Dial, dial
from outbox.brokers.remoting.tls import tls_context, tls_dial
from outbox.brokers.source import Source
from outbox.errors import SettingsError
from outbox.settings import REAL_BROKERS, Settings
from outbox.store.database import STATEMENT_TIMEOUT, Database, parsed, sqlite_file

#: Schemes whose address is one of name servers, which answer for the whole cluster.
_WITH_NAME_SERVERS = frozenset(("rocketmq", "rocketmq+native"))
#: The scheme whose address is one of proxies.
_PROXIES = "rocketmq+grpc"
_RIGHT = (
    "use rocketmq://host:9876;host2:9876 (name servers), the same with rocketmq+native://, rocketmq+grpc://host:8081 "
    "(a proxy), or embedded:///path/to/file.db for first runs and tests"
)
#: Names that RocketMQ takes (``TopicValidator``); of any other a broker says that the group does not exist.
_GROUP = re.compile(r"[%|A-Za-z0-9_-]+")


def database_address(settings: Settings) -> URL:
    """The URL of the one database that is meant; ``SettingsError`` if there are several."""
    if settings.databases:
        names = ", ".join(it.name for it in settings.databases)
        raise SettingsError(f"OUTBOX_DATABASE: several databases are listed: choose one with --database: {names}")
    return parsed(settings.database_url)


def open_database(settings: Settings, statement_timeout: float = STATEMENT_TIMEOUT) -> Database:
    """The database; a SQLite file's folder is made if it is missing. ``SettingsError`` if there are several."""
    url = database_address(settings)
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise SettingsError("OUTBOX_DATABASE_URL: names no file, and memory ends with the process: sqlite:///outbox.db")
    if path := sqlite_file(url):
        _make_folder(path, "OUTBOX_DATABASE_URL")
    # Passes, and what runs beside them: claim, renewal, reconciler, retention, check-back, answers to checks.
    return Database(settings.database_url, pool_size=settings.passes + 8, statement_timeout=statement_timeout)


def open_broker(settings: Settings) -> Broker:
    """The broker under the settings' producer group; nothing is dialled before it is needed."""
    scheme, address = _split(settings.broker_url)
    openers: dict[str, Callable[[str, Settings], Broker]] = {
        "embedded": _embedded,
        "rocketmq": _remoting,
        "rocketmq+native": _native,
        _PROXIES: _grpc,
    }
    return _namespace(settings).broker(openers[scheme](address, settings))


def open_source(settings: Settings, topics: Collection[str], group: str) -> Source:
    """A consumer group's view of topics; ``SettingsError`` for a group whose name no broker takes."""
    if not _GROUP.fullmatch(group):
        raise SettingsError(
            f"consumer group {group!r}: only letters, digits, '-', '_', '%' and '|' are allowed: name another one by "
            "--group, or by group=… where the consumer is made"
        )
    scheme, address = _split(settings.broker_url)
    space = _namespace(settings)
    group, topics = space.wrap(group), tuple(space.wrap(topic) for topic in topics)
    if scheme == "embedded":
        return space.source(
            EmbeddedSource(
                _file(address), group, topics, settings.invisible, broker_timing(settings), orderly=settings.orderly
            )
        )
    if scheme == _PROXIES:
        _dial(settings)  # says what is wrong with the files for TLS
        return space.source(open_grpc_source(address, group, topics, settings))
    if scheme == "rocketmq+native":
        return space.source(_push_source(address, group, topics, settings))
    return space.source(
        PopSource(
            address,
            group,
            topics,
            invisible=settings.invisible,
            dialler=_dial(settings),
            sign=_sign(settings),
            orderly=settings.orderly,
        )
    )


def open_ledger(settings: Settings) -> Ledger:
    """What an audit reads of the broker; nothing is dialled before it is needed."""
    scheme, address = _split(settings.broker_url)
    space = _namespace(settings)
    if scheme == "embedded":
        return space.ledger(EmbeddedLedger(_file(address), broker_timing(settings)))
    if scheme == _PROXIES:
        raise SettingsError(
            "OUTBOX_BROKER_URL: rocketmq+grpc:// sends, receives and answers checks, it does not read what lies in a "
            "topic; for this command set OUTBOX_BROKER_URL to rocketmq://host:9876 (a name server of the same cluster)"
        )
    return space.ledger(RemotingLedger(address, dialler=_dial(settings), sign=_sign(settings)))


def open_examiner(settings: Settings) -> Examiner | None:
    """What ``doctor`` reads of the broker; None: the transport has no name server to ask. Nothing is dialled yet."""
    scheme, address = _split(settings.broker_url)
    space = _namespace(settings)
    if scheme == "embedded":
        return space.examiner(EmbeddedExaminer(_file(address), broker_timing(settings)))
    if scheme not in _WITH_NAME_SERVERS:
        return None
    return space.examiner(RemotingExaminer(address, dialler=_dial(settings), sign=_sign(settings)))


def _embedded(address: str, settings: Settings) -> Broker:
    return EmbeddedBroker(_file(address), _group(settings), broker_timing(settings))


def _remoting(address: str, settings: Settings) -> Broker:
    return RemotingBroker(address, _group(settings), dialler=_dial(settings), sign=_sign(settings))


def _native(address: str, settings: Settings) -> Broker:
    """Sends through the C++ client; ``SettingsError`` where it cannot be loaded, or lacks what is asked of it."""
    library, key = _native_client(settings)
    return NativeBroker(address, _group(settings), library, threads=settings.native_threads, credentials=key)


def _push_source(address: str, group: str, topics: Collection[str], settings: Settings) -> Source:
    """Receives through the C++ client, as 4.9 wants it; ``SettingsError`` as ``_native``."""
    if settings.orderly:
        raise SettingsError(
            "OUTBOX_ORDERLY: consumers over rocketmq+native:// keep no order; use rocketmq:// (5.x), or leave it off"
        )
    library, key = _native_client(settings)
    return PushSource(
        address,
        group,
        topics,
        library,
        invisible=settings.invisible,
        threads=settings.native_threads,
        credentials=key,
    )


def _native_client(settings: Settings) -> tuple[Any, Credentials | None]:
    """The C++ client, and who signs."""
    if settings.tls:
        raise SettingsError("OUTBOX_TLS: the client of rocketmq+native speaks no TLS; use rocketmq://, or turn it off")
    key = None
    if settings.access_key:
        key = Credentials(settings.access_key, settings.secret_key.get_secret_value())
    return load(settings.native_library), key


def _grpc(address: str, settings: Settings) -> Broker:
    """Sends through a proxy; ``SettingsError`` where the client is missing, or lacks what is asked of it."""
    _dial(settings)  # says what is wrong with the files for TLS
    return open_grpc(address, _group(settings), settings)


def _namespace(settings: Settings) -> Namespace:
    return Namespace(settings.namespace)


def _group(settings: Settings) -> str:
    """The producer group as the broker knows it."""
    return _namespace(settings).wrap(settings.producer_group)


def _sign(settings: Settings) -> Sign | None:
    """What signs requests; None: the broker has no ACL."""
    if not settings.access_key:
        return None
    return signature(settings.access_key, settings.secret_key.get_secret_value())


def _dial(settings: Settings) -> Dial:
    """How servers are connected to; ``SettingsError`` where a file for TLS cannot be used."""
    if not settings.tls:
        return dial
    files = (settings.tls_ca_file, settings.tls_certificate, settings.tls_key)
    try:
        return tls_dial(tls_context(*files, check_host=settings.tls_check_host))
    except OSError as error:
        raise SettingsError(
            f"OUTBOX_TLS_CA_FILE, OUTBOX_TLS_CERTIFICATE, OUTBOX_TLS_KEY: {', '.join(filter(None, files))}: {error}; "
            "name readable PEM files, the key without a password"
        ) from error


def broker_timing(settings: Settings) -> BrokerTiming:
    """The embedded broker's times; all processes that share its file must agree on them."""
    return BrokerTiming(transaction_timeout=settings.check_timeout, check_interval=settings.check_interval)


def _split(url: str) -> tuple[str, str]:
    """Scheme and address of a broker URL; ``SettingsError`` for one that no transport reads."""
    scheme, _, address = url.partition(":")
    address = address.removeprefix("//")
    if scheme != "embedded" and scheme not in REAL_BROKERS:  # the rest is not repeated: it may have a password
        raise SettingsError(f"OUTBOX_BROKER_URL: {scheme!r} is no scheme of a transport: {_RIGHT}")
    if not address:
        raise SettingsError(f"OUTBOX_BROKER_URL: {url!r} names no broker: {_RIGHT}")
    if scheme != "embedded" and "@" in address:  # not repeated: what stands before it may be a password
        raise SettingsError(
            "OUTBOX_BROKER_URL: no user and password belong in it: set OUTBOX_ACCESS_KEY and OUTBOX_SECRET_KEY"
        )
    if scheme in _WITH_NAME_SERVERS:
        _check_name_servers(address)
    return scheme, address


def _check_name_servers(address: str) -> None:
    try:
        split_addresses(address)
    except ValueError as error:
        raise SettingsError(f"OUTBOX_BROKER_URL: {error}") from error


def _file(address: str) -> Path:
    """The embedded broker's file; its folder is made if it is missing."""
    path = Path(address)
    _make_folder(path, "OUTBOX_BROKER_URL")
    return path


def _make_folder(path: Path, setting: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{setting}: cannot make the folder of {path}: {error}; name another file") from error
