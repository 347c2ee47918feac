"""An attempt: a row under a fresh lease, what is read for it, and how."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from outbox.message import Mode
from outbox.schema import outbox

#: What a claim reads of a row; ``attempt_of`` takes it in this order.
CLAIMED: Final = (
    outbox.c.id,
    outbox.c.topic,
    outbox.c.key,
    outbox.c.tag,
    outbox.c.payload,
    outbox.c.content_type,
    sa.cast(outbox.c.headers, sa.Text()).label("headers"),  # most rows have none, which needs no parser
    outbox.c.lane,
    outbox.c.mode,
    outbox.c.failures,
    outbox.c.attempts,
    outbox.c.token,
)

_NO_HEADERS: Final = "{}"
_MODES: Final = {mode.value: mode for mode in Mode}


class Attempt(NamedTuple):
    """A row under a fresh lease, as the relay ships it; a tuple, since a claim makes hundreds."""

    row_id: int
    topic: str
    key: str
    tag: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    lane: str | None
    mode: Mode
    #: Refusals so far.
    failures: int
    #: Claims so far, this one included.
    attempts: int
    #: Of this attempt; of a plain row the token of the first one that had no outcome.
    token: str
    #: Of this attempt alone.
    lease_id: str


def attempt_of(row: Any, lease_id: str) -> Attempt:
    """The attempt whose row, read as ``CLAIMED``, was leased under ``lease_id``."""
    row_id, topic, key, tag, payload, content_type, given_headers, lane, mode, failures, attempts, token, *_ = row
    headers = {} if given_headers == _NO_HEADERS else json.loads(given_headers)
    mode = _MODES[mode]
    return Attempt(
        row_id, topic, key, tag, payload, content_type, headers, lane, mode, failures, attempts, token, lease_id
    )
