"""Calls a handler inside a guarded transaction."""

from collections.abc import Awaitable, Callable, Generator

from sqlalchemy.orm import Session

from outbox.consumer.drivers import is_outage
from outbox.consumer.errors import HandlerFailed
from outbox.consumer.failures import said
from outbox.consumer.guard import Guard
from outbox.consumer.message import Message

Handler = Callable[[Message, Session], object]


def call(handler: Handler, message: Message, guard: Guard) -> object:
    """What the handler returns; an error of a database that is not the guard's must not pass for an outage of it."""
    try:
        returned = handler(message, guard.session)
    except Exception as error:
        if is_outage(error) and not guard.saw(error):
            raise HandlerFailed(said(error)) from error
        raise
    if isinstance(returned, Awaitable | Generator):
        raise HandlerFailed(
            f"the handler returned a {type(returned).__name__}, so its work was not done: use plain def"
        )
    return returned
