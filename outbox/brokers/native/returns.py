"""Gives single messages back to the broker, which the client does for whole batches only."""

import logging
from typing import Final

from outbox.brokers.native.places import Place
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connections import Connections, RemotingError

log = logging.getLogger(__name__)

#: Seconds of the broker's delay levels, from level 1 (``messageDelayLevel``, its default).
_LEVELS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_DEAD_LETTER: Final = -1
#: Whoever consumes decides when it was enough, not the broker.
_NEVER: Final = str(2**31 - 1)
_ANSWER: Final = 3.0


class Returns:
    """CONSUMER_SEND_MSG_BACK for one group; safe to use from several threads."""

    def __init__(self, connections: Connections, group: str) -> None:
        self._connections = connections
        self._group = group

    def later(self, place: Place, delay: float) -> bool:
        """Has the broker deliver a copy through the retry topic after ``delay`` seconds or the next longer level."""
        return self._send(place, level_for(delay))

    def bury(self, place: Place) -> bool:
        """Has the broker copy the message to ``%DLQ%group``."""
        return self._send(place, _DEAD_LETTER)

    def _send(self, place: Place, level: int) -> bool:
        """Whether the broker has confirmed; if it has not, there may be a copy all the same."""
        fields = {
            "offset": str(place.commit_log_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": place.unique_id,
            "originTopic": place.topic,
            "unitMode": "false",
            "maxReconsumeTimes": _NEVER,
        }
        try:
            self._connections.ask(place.address, Request.SEND_MESSAGE_BACK, fields, timeout=_ANSWER)
        except RemotingError as problem:
            log.warning("%s of topic %s is not given back: %s", place.unique_id, place.topic, problem)
            return False
        return True


def level_for(delay: float) -> int:
    """The first delay level that is not shorter; the longest where none is."""
    return next((level for level, seconds in enumerate(_LEVELS, 1) if seconds >= delay), len(_LEVELS))
