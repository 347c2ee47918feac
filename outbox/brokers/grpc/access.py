"""How proxies are reached, in values that need nothing of the client."""

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.ports import is_port


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to proxies, in PEM; None: the CA certificates that gRPC ships, no certificate of our own."""

    roots: bytes | None = None
    key: bytes | None = None
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Proxies, and who asks them."""

    #: ``host:port``, several of one cluster with ``;`` between them; see ``proxies``.
    address: str
    access_key: str = ""
    secret_key: str = ""
    #: None: without TLS.
    tls: Tls | None = None


def proxies(address: str) -> Sequence[str]:
    """The proxies of ``host:8081;host2:8081``; ``ValueError`` where one is not ``host:port`` (IPv6 is not known)."""
    found = [part.strip() for part in address.split(";") if part.strip()]
    if not found or not all(_is_address(part) for part in found):
        raise ValueError(f"proxies {address!r}: write host:port, several with ';' between them")
    return found


def _is_address(part: str) -> bool:
    host, _, port = part.partition(":")
    return bool(host) and is_port(port)
