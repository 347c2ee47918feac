"""``BusinessConsumer`` (C4): the business statement itself tells repeats; no row is kept beside it."""

import math
from typing import Unpack

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.consumer.calling import Handler, call
from outbox.consumer.drivers import opened
from outbox.consumer.errors import HandlerFailed
from outbox.consumer.failures import outcome_of
from outbox.consumer.guard import guarded
from outbox.consumer.message import Message
from outbox.consumer.outcome import Duplicate, Outcome, Park, Processed, Retry
from outbox.consumer.sql_consumer import Options, SqlConsumer


class BusinessConsumer(SqlConsumer):
    """A consumer whose handlers, ``def on_paid(message, session)``, return what ``outbox.consumer.statements`` said.

    The handler's writes commit together if it returns ``Processed``, and are undone for every other outcome: exactly
    once for as long as the business rows say so. It must not end its transaction. Effects elsewhere happen at least
    once. Nothing is remembered beside the business rows, so nothing has to be forgotten.
    """

    def __init__(self, database: Engine | AsyncEngine | str, **options: Unpack[Options]) -> None:
        options["retention"] = math.inf
        super().__init__(database, **options)

    def _execute(self, message: Message, handler: Handler) -> Outcome:
        try:
            return self._transaction(message, handler)
        except Exception as error:  # noqa: BLE001 -- named in the outcome, which the runner logs
            return outcome_of(error)

    def _transaction(self, message: Message, handler: Handler) -> Outcome:
        with opened(self._guarded, self._lock_timeout) as connection, guarded(connection) as guard:
            outcome = _outcome(call(lambda: handler(message, guard.session), guard.saw))
            guard.settle()
            if isinstance(outcome, Processed):
                guard.commit()
            else:
                guard.undo()
        return outcome

    def purge(self) -> int:
        """Nothing: the business rows are the memory."""
        return 0


def _outcome(returned: object) -> Outcome:
    if isinstance(returned, Processed | Duplicate | Retry | Park):
        return returned
    raise HandlerFailed(
        f"the handler returned {returned!r}: return Processed, Duplicate, Retry or Park, as the statements of "
        "outbox.consumer say it"
    )
