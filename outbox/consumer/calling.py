"""Calls handlers, and tells their errors from the store's."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

from sqlalchemy.orm import Session

from outbox.consumer.drivers import is_outage
from outbox.consumer.errors import HandlerFailed, LostMeanwhile
from outbox.consumer.failures import said
from outbox.consumer.message import Message

Handler = Callable[[Message, Session], object]


def call(work: Callable[[], object], is_own: Callable[[Exception], bool]) -> object:
    """What the work returns; an error of a database that is not the strategy's must not pass for an outage of it.

    ``is_own`` tells whether an error came from the strategy's own connection.
    """
    try:
        returned = work()
    except Exception as error:
        if is_outage(error):
            raise (LostMeanwhile if is_own(error) else HandlerFailed)(said(error)) from error
        raise
    if isinstance(returned, Awaitable | Generator | AsyncGenerator):
        raise HandlerFailed(
            f"the handler returned a {type(returned).__name__}, so its work was not done: use plain def"
        )
    return returned
