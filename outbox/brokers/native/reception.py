"""What the client calls with each message that it has pulled."""

import logging
from typing import Any, Final

from outbox.brokers.native.handover import Ending, Handover
from outbox.brokers.native.places import Place, Places, Pulled
from outbox.brokers.native.returns import Returns
from outbox.brokers.remoting.connections import RemotingError
from outbox.brokers.remoting.stored import MalformedMessage, StoredMessage
from outbox.brokers.source import Delivery

log = logging.getLogger(__name__)

#: ``CConsumeStatus``: the next message of the batch; or the whole batch goes back.
SUCCESS: Final = 0
RECONSUME_LATER: Final = 1
#: Seconds between two questions to a broker that cannot be asked.
_PAUSE: Final = 1.0


class Reception:
    """Hands messages over and waits for what becomes of them; runs in the client's threads."""

    def __init__(self, library: Any, handover: Handover, places: Places, returns: Returns) -> None:
        self._library = library
        self._handover = handover
        self._places = places
        self._returns = returns

    def on_message(self, _consumer: int, pointer: int) -> int:
        """``CConsumeStatus``. Raises nothing: the client would take an exception for success."""
        answer = RECONSUME_LATER
        try:
            if self._received(self._pulled(pointer)):
                answer = SUCCESS
        except BaseException:
            log.exception("a message could not be handed over: its batch comes again")
        return answer

    def _received(self, pulled: Pulled) -> bool:
        found = self._found(pulled)
        if found is None:
            return False
        place, message = found
        if message.unreadable:  # the broker copies it as it was stored
            log.warning("burying %s of topic %s: %s", place.unique_id, pulled.topic, message.unreadable)
            return self._returns.bury(place)
        ending = self._handover.offer(_delivery(message, pulled.topic), place)
        if ending is Ending.LEFT:
            log.info("message %s of %s: nobody has answered, it is given back", place.unique_id, pulled.topic)
            return self._returns.later(place, 0.0)
        return ending is Ending.DONE

    def _found(self, pulled: Pulled) -> tuple[Place, StoredMessage] | None:
        """The message; asked for until its broker answers, since giving back would use up an attempt."""
        level = logging.WARNING
        while True:
            try:
                found = self._places.find(pulled)
            except (RemotingError, MalformedMessage) as problem:
                log.log(level, "offset %d of topic %s waits: %s", pulled.queue_offset, pulled.topic, problem)
                level = logging.DEBUG  # said once for each message
                if self._handover.rest(_PAUSE):
                    return None
                continue
            if found is None:
                log.error("offset %d of topic %s is at no broker", pulled.queue_offset, pulled.topic)
            return found

    def _pulled(self, pointer: int) -> Pulled:
        lib = self._library
        return Pulled(
            topic=lib.GetMessageTopic(pointer).decode(),
            queue=lib.GetMessageQueueId(pointer),
            queue_offset=lib.GetMessageQueueOffset(pointer),
            commit_log_offset=lib.GetMessageCommitLogOffset(pointer),
            is_retry=lib.GetMessageReconsumeTimes(pointer) > 0,
        )


def _delivery(message: StoredMessage, topic: str) -> Delivery:
    """Receipt and time are set when it is received."""
    properties = message.properties
    return Delivery(
        topic=properties.get("RETRY_TOPIC", topic),
        body=message.body,
        unique_id=properties.get("UNIQ_KEY", ""),
        keys=tuple(properties.get("KEYS", "").split()),
        tag=properties.get("TAGS"),
        properties=properties,
        attempt=message.reconsume_times + 1,
        receipt="",
        invisible_until=0.0,
        born_at=message.born_at / 1000,
    )
