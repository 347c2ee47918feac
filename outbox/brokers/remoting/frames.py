"""The wire format: length, header length, JSON header, body (``RemotingCommand`` of RocketMQ).

A frame is 4 bytes of length (of all that follows), 4 bytes of header length (top byte: serialization, 0 is JSON), the
header and the body, all big-endian.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

#: A longer frame drops the connection: no answer that the toolkit asks for comes near it.
MAX_FRAME: Final = 16 * 1024 * 1024
#: Room that a connection keeps for what it receives.
ROOM: Final = 256 * 1024
#: Bits of ``flag``.
RESPONSE: Final = 1
ONE_WAY: Final = 2
#: The version that requests carry; 4.9 and 5.x accept it.
VERSION: Final = 481

_LENGTHS = struct.Struct(">II")
_LENGTH = struct.Struct(">I")
_decoder = json.JSONDecoder()


class ProtocolError(Exception):
    """The peer sent bytes that are no frame; the connection is dropped, nothing after them is read."""


class Frame(NamedTuple):
    """One received request or response."""

    code: int
    opaque: int
    flag: int
    ext: dict[str, Any]
    remark: str
    body: bytes


def assemble(header: bytes, body: bytes = b"") -> bytes:
    """The bytes of one frame with a JSON header."""
    return b"".join((_LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body))


def encode(
    code: int, opaque: int, ext: Mapping[str, str], body: bytes = b"", *, flag: int = 0, remark: str | None = None
) -> bytes:
    """One frame from its fields; all values of ``ext`` are strings, as the broker expects them."""
    header: dict[str, Any] = {
        "code": code,
        "flag": flag,
        "language": "PYTHON",
        "opaque": opaque,
        "version": VERSION,
        "extFields": dict(ext),
    }
    if remark is not None:
        header["remark"] = remark
    return assemble(json.dumps(header, separators=(",", ":")).encode("ascii"), body)


def decode(content: memoryview) -> Frame:
    """One frame from what follows its length; ``ProtocolError`` where it is none."""
    (word,) = _LENGTH.unpack_from(content, 0)
    end = 4 + (word & 0xFFFFFF)
    if word >> 24:
        raise ProtocolError(f"serialization {word >> 24}: set rocketmq.serialize.type=JSON at the broker")
    if end > len(content):
        raise ProtocolError(f"header of {end - 4} bytes in a frame of {len(content)}")
    try:
        header = _parsed(str(content[4:end], "utf-8"))
        ext = header.get("extFields") or {}
        frame = Frame(
            header["code"], header["opaque"], header["flag"], ext, header.get("remark") or "", bytes(content[end:])
        )
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
        raise ProtocolError(f"header is no JSON object with code, opaque and flag: {problem!r}") from problem
    if not (type(frame.code) is type(frame.opaque) is type(frame.flag) is int and type(ext) is dict):
        raise ProtocolError("header fields code, opaque and flag must be numbers, extFields an object")
    return frame


def _parsed(text: str) -> Any:
    """The one JSON value of a header. No server puts blanks around it, and a decoder that looks for them takes twice as
    long."""
    value, end = _decoder.raw_decode(text)
    return value if end == len(text) else _decoder.decode(text)


class FrameBuffer:
    """Cuts received bytes into frames; memory stays below ``limit`` plus the room it starts with."""

    def __init__(self, room: int = ROOM, limit: int = MAX_FRAME) -> None:
        self._room = room
        self._limit = limit
        self._bytes = bytearray(room)
        self._end = 0

    def space(self) -> memoryview:
        """Where the next bytes are received; never empty."""
        return memoryview(self._bytes)[self._end :]

    def take(self, size: int) -> Iterator[Frame]:
        """The frames that are complete with ``size`` more bytes; ``ProtocolError`` at the first that is none."""
        self._end += size
        position, end, view = 0, self._end, memoryview(self._bytes)
        needed = 0
        while end - position >= 4:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 4 <= length <= self._limit:
                raise ProtocolError(f"frame of {length} bytes, expected 4 to {self._limit}")
            needed = 4 + length
            if position + needed > end:
                break
            yield decode(view[position + 4 : position + needed])
            position += needed
            needed = 0
        self._keep(position, needed)

    def _keep(self, position: int, needed: int) -> None:
        """Moves the unfinished rest to the front, in a buffer that has room for ``needed`` bytes."""
        rest = self._bytes[position : self._end]
        self._end = len(rest)
        capacity = max(self._room, needed)
        if len(self._bytes) != capacity or self._end >= capacity:
            self._bytes = bytearray(capacity)
        self._bytes[: self._end] = rest
