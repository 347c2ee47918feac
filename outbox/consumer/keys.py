"""The identity of a message: which key it has, and how that key and its payload are stored."""

import hashlib
from collections.abc import Callable

from outbox.brokers.base import KEY
from outbox.brokers.source import Delivery

#: Longest key that is stored as it is, in bytes of UTF-8; a longer one is stored as its SHA-256.
STORED_KEY_BYTES = 200
_HASHED = b"sha256:"

#: Finds the key in a delivery; None or blank: it is not there.
Extractor = Callable[[Delivery], str | None]


def header(name: str) -> Extractor:
    """The key is the user property ``name``."""
    return lambda delivery: delivery.properties.get(name)


def key_of(delivery: Delivery, configured: Extractor | None, *, message_id: bool) -> str | None:
    """The delivery's key, or None; the first of these that is not blank.

    The property ``outbox-key`` (our producer's), what ``configured`` finds, KEYS if there is exactly one, and the
    broker's unique id if ``message_id`` asks for it: that one changes when the application sends again.
    """
    if _usable(own := delivery.properties.get(KEY)):
        return own
    # Not asked where our own key is there: it may know only the messages of others, and raise.
    found = (
        _checked(configured(delivery)) if configured else None,
        delivery.keys[0] if len(delivery.keys) == 1 else None,
        delivery.unique_id if message_id else None,
    )
    return next(filter(_usable, found), None)


def _checked(key: object) -> str | None:
    """Another type would be known by other bytes than the same key as text."""
    if key is None or isinstance(key, str):
        return key
    raise TypeError(f"key: the handler's extractor found a {type(key).__name__}, {key!r}; it must return str or None")


def _usable(key: str | None) -> bool:
    return bool(key and key.strip())


def stored_key(key: str) -> bytes:
    """The key as it is compared: its bytes, so that case, blanks and Unicode forms count.

    A key that looks like a stored hash is hashed as well, so that no two keys share their stored form.
    """
    exact = key.encode("utf-8", "surrogatepass")
    if len(exact) <= STORED_KEY_BYTES and not exact.startswith(_HASHED):
        return exact
    return _HASHED + hashlib.sha256(exact).hexdigest().encode()


def payload_hash(tag: str | None, body: bytes) -> bytes:
    """SHA-256 over tag and body: two messages of one key that differ here are two facts."""
    digest = hashlib.sha256(f"{tag or ''}\x00".encode("utf-8", "surrogatepass"))
    digest.update(body)
    return digest.digest()
