"""A message as the client takes it: one map of properties, and what cannot be carried at all."""

from collections.abc import Mapping
from typing import Final

from outbox.brokers.base import SHARDING_KEY, Outgoing, Refused

#: Bytes of a body at most (the broker's ``maxMessageSize``); the client's own default is 128 KiB.
BODY_MAX: Final = 4 * 1024 * 1024
#: What a half is sent with beside the message's own; the group is the one that is asked about the half.
HALF_FLAG: Final = "TRAN_MSG"
HALF_GROUP: Final = "PGROUP"
#: C strings end at a zero; the other two part properties (``MessageDecoder.string2messageProperties``).
_CANNOT_BE_CARRIED: Final = ("\x00", "\x01", "\x02")


def properties_of(message: Outgoing, more: Mapping[str, str]) -> dict[str, str]:
    """All properties as the client wants them, the message's unique id among them.

    The client draws a UNIQ_KEY of its own for each wire attempt and has no way to be given one. But it writes
    properties sorted by name, as ``name 01 value 02``, without a look at what is in them, and the broker keeps the last
    of two values and drops a piece without a name. So the name that is made here stands behind the client's own and
    puts ours in its place (``MQDecoder::messageProperties2String``; broker: ``MessageDecoder``).
    """
    own = {"KEYS": message.key, f"UNIQ_KEY\x01{message.unique_id}\x02": ""}
    if message.tag is not None:
        own["TAGS"] = message.tag
    if message.lane is not None:
        own[SHARDING_KEY] = message.lane
    return {**message.properties, **more, **own}


def flaw_of(message: Outgoing) -> Refused | None:
    """Why the message cannot be carried, if so."""
    if not 0 < len(message.body) <= BODY_MAX:
        return Refused(
            f"body of {len(message.body)} bytes: 1 to {BODY_MAX} can be carried; give it content, or less of it"
        )
    own = (message.topic, message.key, message.tag or "", message.lane or "")
    texts = "".join((*own, *message.properties, *message.properties.values()))
    if any(character in _CANNOT_BE_CARRIED or "\ud800" <= character <= "\udfff" for character in texts):
        return Refused(
            "topic, properties, key, tag or lane: a character \\x00, \\x01, \\x02 or half of a pair: leave it out"
        )
    return None
