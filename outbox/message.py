"""The message that a service adds, and RocketMQ's limits on it, checked before anything is written.

Limits are those of a broker with default settings: ``TopicValidator`` (topic), ``Validators`` and
``MessageConst.STRING_HASH_SET`` (reserved property names), ``MessageStoreConfig.maxMessageSize`` (body), and the
16-bit length field in front of the properties (``Short.MAX_VALUE``).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from outbox.errors import InvalidMessage
from outbox.timer import NO_TIMER, Timer, check_earliest

TOPIC_BYTES = 127
KEY_BYTES = 255
TAG_BYTES = 127
BODY_BYTES = 4 * 1024 * 1024
CONTENT_TYPE_BYTES = 100
#: Room for the names and values that the toolkit (outbox-…) and the broker (REAL_TOPIC, PGROUP, …) add.
_ADDED_PROPERTY_BYTES = 2048
PROPERTY_BYTES = 32767 - _ADDED_PROPERTY_BYTES

_TOPIC = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SYSTEM_TOPICS = re.compile(
    r"rmq_sys_.*|TBW102|SCHEDULE_TOPIC_XXXX|BenchmarkTest|OFFSET_MOVED_EVENT|SELF_TEST_TOPIC|"
    r"TRANS_CHECK_MAX_TIME_TOPIC",
    re.IGNORECASE,
)
#: How the names of the toolkit's own properties begin.
RESERVED_PREFIX = "outbox-"
#: Names that RocketMQ gives a meaning; a user property of that name would change what the broker does.
RESERVED_PROPERTIES = frozenset(
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
    TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID
    CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET
    INNER_MULTI_DISPATCH TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES
    TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL TIMER_DELAY_MS __SHARDINGKEY __transactionId__
    DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID CRC32 BORN_HOST BORN_TIMESTAMP INNER_BATCH INNER_NUM
    """.split()  # noqa: SIM905 -- read as a word list
)


class Mode(StrEnum):
    """How a row is published."""

    #: Half message, decision in the database, commit: never two visible messages.
    TRANSACTIONAL = "transactional"
    #: One send, one confirmation: at least once; for topics that the broker does not allow to be transactional.
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Message:
    """A message within RocketMQ's limits; building one raises ``InvalidMessage`` that names the field."""

    topic: str
    #: Identity of the business fact, unique per topic; travels as KEYS and as the property ``outbox-key``.
    key: str
    #: 1 byte to 4 MiB.
    body: bytes
    tag: str | None = None
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = Mode.TRANSACTIONAL
    #: Not published before this moment (aware), or before so long after the insert.
    not_before: datetime | timedelta | None = None
    #: When the broker itself hands the message out; for plain messages.
    timer: Timer = NO_TIMER
    #: Rows of one topic and lane become visible in the order of their ids, all in one queue; None: in any order.
    lane: str | None = None

    def __post_init__(self) -> None:
        _check_topic(self.topic)
        _check_text("key", self.key, KEY_BYTES)
        _check_tag(self.tag)
        _check_text("content_type", self.content_type, CONTENT_TYPE_BYTES)
        _check_body(self.body)
        _check_headers(self.headers, self.key)
        check_earliest(self.not_before)
        _check_lane(self.lane, self.timer)
        if self.timer != NO_TIMER and self.mode is not Mode.PLAIN:
            raise InvalidMessage(
                self.timer.field,
                f"the broker never delivers a transactional message with a timer: use not_before or delay, or make "
                f"{self.topic!r} one of plain_topics",
            )


def encode(payload: Any) -> tuple[bytes, str]:
    """The body and content type of a payload: bytes as they are, pydantic models and everything else as JSON.

    Names are sorted, so that equal payloads are equal bytes.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "application/octet-stream"
    try:
        plain = payload.model_dump(mode="json") if isinstance(payload, BaseModel) else to_jsonable_python(payload)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
        return text.encode(), "application/json"
    except (TypeError, ValueError, PydanticSerializationError) as error:
        raise InvalidMessage(
            "payload", f"cannot be written as JSON ({error}); pass bytes for another format"
        ) from error


def _check_text(name: str, text: str, limit: int) -> None:
    if not isinstance(text, str):
        raise InvalidMessage(name, f"must be text, not {type(text).__name__}")
    if not text.strip():
        raise InvalidMessage(name, "must not be empty or blank")
    if (size := _utf8_size(name, text)) > limit:
        raise InvalidMessage(name, f"is {size} bytes of UTF-8, at most {limit} are possible: shorten it or hash it")
    _check_characters(name, text)


def _utf8_size(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessage(name, "holds a lone surrogate, which UTF-8 cannot carry") from error


def _check_characters(name: str, text: str) -> None:
    if found := _CONTROL.search(text):
        raise InvalidMessage(
            name, f"holds the control character {found[0]!r}; RocketMQ parts its properties with those"
        )


def _check_topic(topic: str) -> None:
    _check_text("topic", topic, TOPIC_BYTES)
    if not _TOPIC.fullmatch(topic):
        raise InvalidMessage("topic", f"{topic!r}: only letters, digits, '-' and '_' are allowed")
    if _SYSTEM_TOPICS.fullmatch(topic):
        raise InvalidMessage("topic", f"{topic!r} belongs to the broker itself")


def _check_tag(tag: str | None) -> None:
    if tag is None:
        return
    _check_text("tag", tag, TAG_BYTES)
    if "|" in tag or tag == "*" or tag != tag.strip():
        raise InvalidMessage("tag", f"{tag!r}: '|', '*' and outer blanks have a meaning in subscriptions")


def _check_lane(lane: str | None, timer: Timer) -> None:
    if lane is None:
        return
    _check_text("lane", lane, KEY_BYTES)
    if timer != NO_TIMER:
        raise InvalidMessage("lane", f"a message with {timer.field} leaves its lane's order: use not_before or delay")


def _check_body(body: bytes) -> None:
    if not body:
        raise InvalidMessage("payload", "is empty; RocketMQ 5 refuses empty bodies")
    if len(body) > BODY_BYTES:
        raise InvalidMessage(
            "payload", f"is {len(body)} bytes, at most {BODY_BYTES} (4 MiB) are possible: send a reference"
        )


def _check_headers(headers: Mapping[str, str], key: str) -> None:
    total = 2 * len(key.encode())
    for name, value in headers.items():
        where = f"headers[{name!r}]"
        _check_text(where, name, PROPERTY_BYTES)
        if name in RESERVED_PROPERTIES or name.startswith(RESERVED_PREFIX):
            raise InvalidMessage(where, "this name is reserved by RocketMQ or by the toolkit: choose another")
        if not isinstance(value, str):
            raise InvalidMessage(where, f"must be text, not {type(value).__name__}")
        _check_characters(where, value)
        total += _utf8_size(where, name) + _utf8_size(where, value) + 2
    if total > PROPERTY_BYTES:
        raise InvalidMessage("headers", f"need {total} bytes with the key, at most {PROPERTY_BYTES} are possible")
