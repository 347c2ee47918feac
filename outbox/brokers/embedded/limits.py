"""What RocketMQ 5 refuses to store (``Validators``, ``TopicValidator``, ``MessageStoreConfig``)."""

import re
from typing import Final

from outbox.brokers.base import Outgoing
from outbox.brokers.embedded.schema import DISCARD_TOPIC, TIMER_TOPIC

MAX_BODY: Final = 4 * 1024 * 1024
MAX_PROPERTIES: Final = 32 * 1024 - 1
MAX_TOPIC: Final = 127
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
#: Names that the broker keeps for itself.
_SYSTEM_TOPICS: Final = frozenset(
    {DISCARD_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TBW102"}
)
#: What separates names and values on the wire (``MessageDecoder``).
_SEPARATORS: Final = ("\x01", "\x02")


def refusal(message: Outgoing) -> str | None:
    """Why the broker refuses the message, or None."""
    return _refused_topic(message.topic) or _refused_body(message.body) or _refused_properties(message)


def _refused_topic(topic: str) -> str | None:
    if not _TOPIC.fullmatch(topic) or len(topic) > MAX_TOPIC:
        return f"topic {topic!r}: use 1 to {MAX_TOPIC} of the characters a-z A-Z 0-9 _ - % |"
    if topic in _SYSTEM_TOPICS:
        return f"topic {topic!r}: the broker keeps this name for itself"
    return None


def _refused_body(body: bytes) -> str | None:
    if not body:
        return "body: empty; RocketMQ 5 refuses it"
    if len(body) > MAX_BODY:
        return f"body: {len(body)} bytes, the limit is {MAX_BODY}"
    return None


def _refused_properties(message: Outgoing) -> str | None:
    texts = [
        message.unique_id,
        message.key,
        message.tag or "",
        *message.properties.keys(),
        *message.properties.values(),
    ]
    if any(separator in text for text in texts for separator in _SEPARATORS):
        return "properties: the characters U+0001 and U+0002 separate properties on the wire"
    try:
        size = sum(len(text.encode()) + 1 for text in texts)
    except UnicodeEncodeError:
        return "properties: a lone surrogate has no UTF-8 form"
    return f"properties: {size} bytes, the limit is {MAX_PROPERTIES}" if size > MAX_PROPERTIES else None
