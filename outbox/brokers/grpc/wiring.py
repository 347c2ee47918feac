"""Opens the gRPC transport as the settings say; the client is imported only here, when it is asked for."""

from collections.abc import Collection
from pathlib import Path

from outbox.brokers.base import Broker
from outbox.brokers.grpc.access import Access, Tls, proxies
from outbox.brokers.source import Source
from outbox.errors import SettingsError
from outbox.settings import Settings


def open_grpc(address: str, group: str, settings: Settings) -> Broker:
    """A broker behind proxies; ``SettingsError`` where the client is missing or a setting asks more than gRPC can do.

    TLS files are taken as they are: whoever calls has looked at them.
    """
    access = _access(address, settings)
    try:
        from outbox.brokers.grpc.broker import GrpcBroker
    except ImportError as error:
        raise _missing(error) from error
    return GrpcBroker(access, group)


def open_grpc_source(address: str, group: str, topics: Collection[str], settings: Settings) -> Source:
    """A consumer group's view of topics through proxies; raises as ``open_grpc`` does."""
    access = _access(address, settings)
    try:
        from outbox.brokers.grpc.source import GrpcSource
    except ImportError as error:
        raise _missing(error) from error
    return GrpcSource(access, group, topics, invisible=settings.invisible, orderly=settings.orderly)


def _access(address: str, settings: Settings) -> Access:
    return Access(
        ";".join(_checked(address)),
        settings.access_key,
        settings.secret_key.get_secret_value(),
        _tls(settings) if settings.tls else None,
    )


def _missing(error: ImportError) -> SettingsError:
    return SettingsError(
        f"OUTBOX_BROKER_URL: rocketmq+grpc:// needs rocketmq-python-client 5.1.2 or newer ({error}): "
        "pip install 'rocketmq-outbox[grpc]'; if it is installed, another package has taken the name rocketmq: "
        "pip install --force-reinstall --no-deps rocketmq-python-client"
    )


def _checked(address: str) -> list[str]:
    try:
        return list(proxies(address))
    except ValueError as error:
        raise SettingsError(f"OUTBOX_BROKER_URL: {error}") from error


def _tls(settings: Settings) -> Tls:
    if not settings.tls_check_host:
        raise SettingsError(
            "OUTBOX_TLS_CHECK_HOST: gRPC always compares the certificate with the host; dial the proxy by a name that "
            "its certificate has, and leave this setting true"
        )
    certificate = _read(settings.tls_certificate)
    return Tls(_read(settings.tls_ca_file), _read(settings.tls_key) or certificate, certificate)


def _read(file: str) -> bytes | None:
    return Path(file).read_bytes() if file else None
