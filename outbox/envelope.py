"""What a message carries on the wire: the identities that check-back, operators and consumers read from it."""

from outbox.brokers.base import CONTENT_TYPE, KEY, MODE, ORIGIN, ROW_ID, TOKEN, Check, Outgoing
from outbox.identity import unique_ids
from outbox.store.attempt import Attempt
from outbox.verdict import HalfView


class Envelopes:
    """Puts rows into envelopes of one origin, and reads the address off the halves that come back."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    def seal(self, attempt: Attempt) -> Outgoing:
        """The row as a message under a unique id of its own."""
        properties = {
            **attempt.headers,
            ORIGIN: self.origin,
            KEY: attempt.key,
            ROW_ID: str(attempt.row_id),
            TOKEN: attempt.token,
            MODE: attempt.mode.value,
            CONTENT_TYPE: attempt.content_type,
        }
        return Outgoing(
            attempt.topic, attempt.payload, unique_ids.fresh(), attempt.key, attempt.tag, properties, attempt.lane
        )

    def address(self, check: Check) -> tuple[int, HalfView] | None:
        """The row that a checked half belongs to; None: another origin, or properties that cannot be read."""
        row_id, token = check.properties.get(ROW_ID, ""), check.properties.get(TOKEN)
        if check.properties.get(ORIGIN) != self.origin or token is None or not row_id.isascii() or not row_id.isdigit():
            return None
        return int(row_id), HalfView(token, check.half.half_id)
