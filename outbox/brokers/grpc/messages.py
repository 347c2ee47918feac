"""Messages as a proxy delivers them: checked, decompressed, with the receipt that ends or extends a delivery.

A receipt is the ``facade`` of the proxy that delivered and the proxy's own handle, with a blank between them.
"""

import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from outbox.brokers.grpc.library import DigestType, Encoding
from outbox.brokers.source import Delivery

_INFLATED_MAX: Final = 64 * 1024 * 1024
#: Tells zlib to read its own format and gzip's.
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS
_BLANK: Final = " "

_DIGESTS: Final[Mapping[Any, Callable[[bytes], str]]] = {
    DigestType.CRC32: lambda body: f"{zlib.crc32(body):08x}",
    DigestType.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest(),
    DigestType.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest(),
}


class Corrupted(ValueError):
    """A body that is not what was sent, as far as can be told, or a delivery without a receipt."""


def delivery_of(message: Any, topic: str, facade: str, invisible_until: float) -> Delivery:
    """The delivery in ``apache.rocketmq.v2.Message``; ``Corrupted`` where it cannot be trusted.

    The proxy takes the system's properties out of the user's: those by which other transports tell keys, tag and id are
    put back.
    """
    system = message.system_properties
    if not system.receipt_handle:
        raise Corrupted("it has no receipt")
    keys = tuple(key for listed in system.keys for key in listed.split())
    tag = system.tag or None
    own = {"UNIQ_KEY": system.message_id, "KEYS": _BLANK.join(keys), "TAGS": tag or ""}
    return Delivery(
        topic=topic,
        body=_body(message),
        unique_id=system.message_id,
        keys=keys,
        tag=tag,
        properties={**message.user_properties, **{name: value for name, value in own.items() if value}},
        attempt=max(1, system.delivery_attempt),
        receipt=f"{facade}{_BLANK}{system.receipt_handle}",
        invisible_until=invisible_until,
        born_at=system.born_timestamp.ToMicroseconds() / 1e6 if system.HasField("born_timestamp") else None,
    )


def receipt_of(delivery: Delivery) -> tuple[str, str]:
    """Facade and handle."""
    facade, _, handle = delivery.receipt.partition(_BLANK)
    return facade, handle


def renewed(delivery: Delivery, handle: str) -> str:
    """The receipt after the invisible time was changed."""
    return f"{receipt_of(delivery)[0]}{_BLANK}{handle}"


def _body(message: Any) -> bytes:
    body: bytes = message.body
    digest = message.system_properties.body_digest
    compute = _DIGESTS.get(digest.type)
    if compute is not None and compute(body) != digest.checksum.lower().rjust(8, "0"):
        raise Corrupted(f"its body of {len(body)} bytes does not have the digest {digest.checksum}")
    return _inflate(body) if message.system_properties.body_encoding == Encoding.GZIP else body


def _inflate(body: bytes) -> bytes:
    """What the proxy calls GZIP is what the producer's client made of it: zlib by default."""
    inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        inflated = inflater.decompress(body, _INFLATED_MAX)
    except zlib.error as problem:
        raise Corrupted(f"its body is compressed, and neither by zlib nor by gzip: {problem}") from problem
    if not inflater.eof:
        raise Corrupted(f"its compressed body is cut off or inflates to more than {_INFLATED_MAX} bytes")
    return inflated
