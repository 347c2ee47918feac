"""The wire format: vectors written out by hand, cuts at every byte, and bytes that are no frame."""

import json
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.brokers.remoting.commands import NUMBER, TEXT, Template, quote
from outbox.brokers.remoting.frames import Frame, FrameBuffer, ProtocolError, assemble, decode, encode


def feed(buffer: FrameBuffer, content: bytes, piece: int) -> Iterable[Frame]:
    """Gives the buffer ``piece`` bytes at a time, as a socket would."""
    while content:
        space = buffer.space()
        size = min(piece, len(content), len(space))
        space[:size] = content[:size]
        content = content[size:]
        yield from buffer.take(size)


def test_a_request_is_these_bytes() -> None:
    # Given a heartbeat with one field and two bytes of body; When it is encoded
    frame = encode(34, 7, {"k": "ü"}, b"\x00\xff")
    # Then it is the length, the header's length, the header in ASCII, the body
    header = b'{"code":34,"flag":0,"language":"PYTHON","opaque":7,"version":481,"extFields":{"k":"\\u00fc"}}'
    assert len(header) == 0x5C
    assert frame == b"\x00\x00\x00\x62" + b"\x00\x00\x00\x5c" + header + b"\x00\xff"


def test_an_answer_is_read_from_these_bytes() -> None:
    # Given what a broker answers
    header = b'{"code":1,"flag":1,"language":"JAVA","opaque":9,"remark":"no","version":481}'
    content = b"\x00\x00\x00\x51" + b"\x00\x00\x00\x4c" + header + b"B"
    # When it is read; Then these are its fields, and fields that are missing are empty
    (frame,) = feed(FrameBuffer(), content, len(content))
    assert frame == Frame(1, 9, 1, {}, "no", b"B")


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.dictionaries(st.text(), st.text())), max_size=8),
    st.integers(1, 400),
    st.integers(4, 64),
)
def test_frames_survive_any_cut(sent: list[tuple[bytes, dict[str, str]]], piece: int, room: int) -> None:
    # Given frames, and a receiver that sees them in pieces; When it takes them
    content = b"".join(encode(10, number, ext, body) for number, (body, ext) in enumerate(sent))
    received = list(feed(FrameBuffer(room), content, piece))
    # Then they are the frames that were sent, in order
    assert [(frame.body, frame.ext) for frame in received] == sent
    assert [frame.opaque for frame in received] == list(range(len(sent)))


@given(st.binary(max_size=600))
def test_noise_is_a_protocol_error_or_incomplete(noise: bytes) -> None:
    # Given any bytes; When they are received; Then they are frames, wait for more, or are refused: nothing else
    buffer = FrameBuffer(64, limit=512)
    received: list[Frame] = []
    with suppress(ProtocolError):
        received.extend(feed(buffer, noise, 50))
    assert sum(8 + len(frame.body) for frame in received) <= len(noise)
    assert len(buffer.space()) <= 516


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_a_header_is_never_read_past_its_frame(body: bytes, word: int) -> None:
    # Given a frame with any header length; When it is decoded; Then it is a frame or an error, never a crash
    bodies = [b""]
    with suppress(ProtocolError):
        bodies.append(decode(memoryview(word.to_bytes(4, "big") + body)).body)
    assert len(bodies[-1]) <= len(body)


@pytest.mark.parametrize("length", [0, 3, 16 * 1024 * 1024 + 1, 2**31, 2**32 - 1])
def test_a_length_that_cannot_be_drops_the_stream(length: int) -> None:
    # Given a good frame, followed by an impossible length; When both arrive together
    buffer = FrameBuffer()
    content = encode(10, 1, {}) + length.to_bytes(4, "big") + b"\0" * 8
    received: list[Frame] = []
    with pytest.raises(ProtocolError, match="frame of"):
        received.extend(feed(buffer, content, 4096))
    # Then no memory is taken for it
    assert len(buffer.space()) <= 256 * 1024


def test_a_large_frame_takes_room_and_gives_it_back() -> None:
    # Given a frame larger than the room; When it has been received, with a small one after it
    buffer = FrameBuffer(room=64)
    large, small = encode(10, 1, {}, b"x" * 5000), encode(10, 2, {})
    frames = list(feed(buffer, large + small, 1000))
    # Then both are whole, and the room is as before
    assert [len(frame.body) for frame in frames] == [5000, 0]
    list(feed(buffer, small, 1000))
    assert len(buffer.space()) <= 64 + len(small)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"1",
        b"null",
        b"{}",
        b"{",
        b"\xff\xfe",
        b'{"code":0,"opaque":"1","flag":1}',
        b'{"code":0,"opaque":true,"flag":1}',
        b'{"code":0,"opaque":1}',
        b'{"code":0,"opaque":1,"flag":1,"extFields":[1]}',
        b"[" * 100_000,
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    # Given a well-cut frame whose header says nothing; When it is read; Then it is refused
    content = assemble(header)
    with pytest.raises(ProtocolError):
        list(feed(FrameBuffer(), content, len(content)))


def test_another_serialization_names_the_remedy() -> None:
    # Given a frame in the binary serialization; When it is read; Then the error says what to set at the broker
    with pytest.raises(ProtocolError, match=r"serialize\.type=JSON"):
        decode(memoryview(b"\x01\x00\x00\x02{}"))


@given(st.text(), st.text(), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.binary(max_size=50))
def test_a_template_writes_what_the_encoder_writes(
    fixed: str, text: str, number: int, opaque: int, body: bytes
) -> None:
    # Given any strings, percent signs and quotes among them
    template = Template(310, {"a": fixed, fixed: "%d %s"}, {"i": TEXT, "e": NUMBER})
    # When a request is made; Then a reader finds exactly them
    frame = decode(memoryview(template.frame(opaque, (quote(text), number), body))[4:])
    assert frame.ext == {"a": fixed, fixed: "%d %s"} | {"i": text, "e": str(number)}
    assert (frame.code, frame.opaque, frame.flag, frame.body) == (310, opaque, 0, body)


def test_a_template_is_signed_over_fields_and_body() -> None:
    # Given a template with a signature
    signed: list[tuple[dict[str, str], bytes]] = []

    def sign(ext: object, body: bytes) -> dict[str, str]:
        assert isinstance(ext, dict)
        signed.append((ext, body))
        return {**ext, "Signature": "s"}

    template = Template(37, {"a": "b"}, {"e": NUMBER}, sign, flag=2)
    # When a request is made; Then the signature saw everything and is part of it
    frame = decode(memoryview(template.frame(5, (3,), b"body"))[4:])
    assert signed == [({"a": "b", "e": "3"}, b"body")]
    assert frame.ext == {"a": "b", "e": "3", "Signature": "s"}
    assert (frame.code, frame.opaque, frame.flag) == (37, 5, 2)


def test_a_header_is_plain_json() -> None:
    # Given a request; When a JSON reader looks at its header; Then all is there
    frame = encode(17, 1, {"topic": "t"}, flag=1, remark="said")
    assert json.loads(frame[8:]) == {
        "code": 17,
        "flag": 1,
        "language": "PYTHON",
        "opaque": 1,
        "version": 481,
        "extFields": {"topic": "t"},
        "remark": "said",
    }
