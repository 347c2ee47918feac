"""A transaction that opens with the claim of a key, in one round trip on PostgreSQL.

The insert is prepared, since the server spends as long on reading it as on carrying it out; by SQL's PREPARE, so that
one query can hold it beside BEGIN. psycopg deallocates everything at each ROLLBACK, so what is known of a connection
counts from one COMMIT of ours to the next claim; where a transaction ended in another way nothing is known, and the
next claim asks, in the same round trip. Where the statement is gone all the same (a pooler, a handler's rollback to a
savepoint) the claim is repeated without one, and so are all others on that connection.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName

from outbox.consumer.drivers import lock_limit
from outbox.consumer.single_trip import Answer, Wire

# The try-lock answers at once where the unique index would wait for the other transaction to end; the insert still
# decides, also against writers that know nothing of the lock. The conflict target is named, or other violations would
# hide behind it.
_INSERT: Final = (
    "INSERT INTO outbox_inbox (consumer, key, topic, payload_hash, received_at, done_at) "
    "SELECT {}, {}, {}, {}, statement_timestamp(), statement_timestamp() "
    "WHERE pg_try_advisory_xact_lock({}) ON CONFLICT (consumer, key) DO NOTHING"
)
#: Another release's statement has another name: behind a pooler both may meet on one connection.
_NAME: Final = f"outbox_claim_{sha256(_INSERT.encode()).hexdigest()[:12]}"
_PREPARE: Final = (
    f"PREPARE {_NAME} (text, bytea, text, bytea, bigint) AS {_INSERT.format('$1', '$2', '$3', '$4', '$5')}"
)
_IS_PREPARED: Final = f"SELECT FROM pg_prepared_statements WHERE name = '{_NAME}'"

#: Kept with the driver's connection: whether the statement is there, as of our last COMMIT, and as of the next.
_KNOWN: Final = "outbox_claim_known"
_NEXT: Final = "outbox_claim_next"
#: It was not where it should have been.
_LOST: Final = "outbox_claim_lost"


def opened(wire: Wire, values: Sequence[str], lock_timeout: float) -> bool:
    """Begins the transaction and inserts the row as done; whether it is new.

    ``values`` are SQL: consumer, key, topic, payload hash, number of the lock. ``lock_timeout`` is in seconds.
    """
    begin, memory = wire.opening(), wire.memory
    head = [*begin, lock_limit(lock_timeout)]
    known = memory.pop(_KNOWN, None)
    if _LOST in memory or not wire.may_prepare:
        return _is_new(wire.sent(*head, _INSERT.format(*values))[-1])
    if known is None:
        *_, inserted, found = wire.sent(*head, _INSERT.format(*values), _IS_PREPARED)
        memory[_NEXT] = bool(found.ntuples)
        return _is_new(inserted)
    memory[_NEXT] = True
    if not known:
        head.append(_PREPARE)
    try:
        return _is_new(wire.sent(*head, f"EXECUTE {_NAME} ({', '.join(values)})")[-1])
    except (InvalidSqlStatementName, DuplicatePreparedStatement):
        memory[_LOST] = True
        if not begin:
            raise
        wire.sent("ROLLBACK")
        return opened(wire, values, lock_timeout)


def committed(memory: dict[str, Any]) -> None:
    """The transaction was committed, so that what its opening knew of the connection holds for the next one."""
    if _NEXT in memory:
        memory[_KNOWN] = memory.pop(_NEXT)


def _is_new(inserted: Answer) -> bool:
    return inserted.command_tuples == 1
