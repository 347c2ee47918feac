"""The stored form of a message, as checks, queries and POP answers carry it (``MessageDecoder`` of RocketMQ)."""

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Between a property's name and value, and after the value; neither may occur in them.
_EQUALS: Final = "\x01"
_ENDS: Final = "\x02"

_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB
_COMPRESSED: Final = 1
_BORN_HOST_V6: Final = 1 << 4
_STORE_HOST_V6: Final = 1 << 5
_INFLATED_MAX: Final = 64 * 1024 * 1024

#: size, magic, CRC, queue id, flag, queue offset, commit-log offset, system flag, born time.
_HEAD = struct.Struct(">IIIiiqqiq")
#: Times delivered, prepared-transaction offset, body length.
_MIDDLE = struct.Struct(">iqi")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">H")

_KEY_WITHOUT_QUOTES = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)')


class MalformedMessage(ValueError):
    """Bytes that are no stored message; the whole answer is distrusted."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the broker keeps it."""

    topic: str
    body: bytes
    properties: Mapping[str, str]
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    reconsume_times: int
    #: Milliseconds since 1970 by the broker's clock.
    stored_at: int
    #: The same by the producer's clock, when it first sent the message; kept by every redelivery.
    born_at: int
    #: Why the body is left as it was stored: it is compressed in a way that we do not read; "": it is the producer's.
    unreadable: str = ""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Properties in the form of the wire and the store."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Properties from the form of the wire and the store; a piece without a value is left out."""
    pairs = (piece.partition(_EQUALS) for piece in text.split(_ENDS))
    return {name: value for name, equals, value in pairs if equals}


def decode_messages(content: bytes) -> Iterator[StoredMessage]:
    """The messages that stand one after another in ``content``; ``MalformedMessage`` at the first that is none."""
    position = 0
    while position < len(content):
        try:
            size = _HEAD.unpack_from(content, position)[0]
            message = _decode(content[position : position + size])
        except (struct.error, UnicodeDecodeError, IndexError) as problem:
            raise MalformedMessage(f"no stored message at byte {position}: {problem}") from problem
        if size == 0 or position + size > len(content):
            raise MalformedMessage(f"message of {size} bytes at byte {position} of {len(content)}")
        yield message
        position += size


def _decode(content: bytes) -> StoredMessage:
    _, magic, _, queue_id, _, queue_offset, commit_log_offset, flag, born_at = _HEAD.unpack_from(content, 0)
    if magic not in (_MAGIC_V1, _MAGIC_V2):
        raise MalformedMessage(f"magic {magic:#x}")
    position = _HEAD.size + (20 if flag & _BORN_HOST_V6 else 8)
    (stored_at,) = _LONG.unpack_from(content, position)
    position += 8 + (20 if flag & _STORE_HOST_V6 else 8)
    reconsume_times, _, body_length = _MIDDLE.unpack_from(content, position)
    body, position = _piece(content, position + _MIDDLE.size, body_length)
    topic_length = content[position] if magic == _MAGIC_V1 else _SHORT.unpack_from(content, position)[0]
    topic, position = _piece(content, position + (1 if magic == _MAGIC_V1 else 2), topic_length)
    properties, _ = _piece(content, position + 2, _SHORT.unpack_from(content, position)[0])
    inflated, unreadable = _inflated(body) if flag & _COMPRESSED else (body, "")
    return StoredMessage(
        topic=_text(topic),
        body=inflated,
        properties=decode_properties(_text(properties)),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        reconsume_times=reconsume_times,
        stored_at=stored_at,
        born_at=born_at,
        unreadable=unreadable,
    )


def _text(content: bytes) -> str:
    """Others' bytes that are no UTF-8 are spelt out: refused, they would hold up all messages of their answer."""
    return content.decode(errors="backslashreplace")


def _piece(content: bytes, start: int, length: int) -> tuple[bytes, int]:
    if length < 0 or start + length > len(content):
        raise MalformedMessage(f"piece of {length} bytes at byte {start} of a message of {len(content)}")
    return content[start : start + length], start + length


def _inflated(body: bytes) -> tuple[bytes, str]:
    """A zlib body, as producers compress bodies of 4 KiB and more; bounded. What is none is left as it is, and why:
    refused, it would hold up all messages of its answer."""
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, _INFLATED_MAX)
    except zlib.error as problem:
        return body, f"its body is compressed, and not by zlib: {problem}"
    if not inflater.eof:
        return body, f"its compressed body is cut off or inflates to more than {_INFLATED_MAX} bytes"
    return inflated, ""


def loads_lenient(content: bytes) -> Any:
    """JSON as older servers write it, with numbers as keys of objects; ``ValueError`` where it is none."""
    text = content.decode()
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_KEY_WITHOUT_QUOTES.sub(_quote_key, text))


def _quote_key(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'{match[1]}"{match[2]}"{match[3]}'
