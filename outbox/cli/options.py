"""Flags that several commands share, and what they open."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

from outbox import revision, settings
from outbox.errors import SettingsError
from outbox.settings import Settings
from outbox.shown import cause, where, without_secrets
from outbox.store.database import STATEMENT_TIMEOUT, Database
from outbox.wiring import open_database


def utf8(text: str | None) -> str | None:
    """Refuses what a shell passes in another encoding; no database could hold it."""
    if text is not None and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise typer.BadParameter("is not UTF-8") from error
    return text


DatabaseUrl = Annotated[str | None, typer.Option("--database-url", help="Overrides OUTBOX_DATABASE_URL.")]
BrokerUrl = Annotated[str | None, typer.Option("--broker-url", help="Overrides OUTBOX_BROKER_URL.")]
Origin = Annotated[str | None, typer.Option("--origin", help="Overrides OUTBOX_ORIGIN.")]
Named = Annotated[
    str | None,
    typer.Option("--database", help="Which of the databases listed in outbox.toml; overrides OUTBOX_DATABASE."),
]
OfTopic = Annotated[str | None, typer.Option("--topic", help="Only rows of this topic.", callback=utf8)]

#: Seconds that a statement may take for somebody who waits for it: a filter that no index serves reads every row.
_PATIENCE = 120.0

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str, flag: str) -> float:
    """A span of time such as ``90m``; ``BadParameter`` names the flag."""
    if (parts := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])?", text)) is None:
        raise typer.BadParameter(f"{text!r}: seconds, or a number with s, m, h or d", param_hint=flag)
    return float(parts[1]) * _UNITS[parts[2] or "s"]


@contextmanager
def opened(database_url: str | None, named: str | None = None, *, at_head: bool = True) -> Iterator[Database]:
    """The database of a command that needs no broker; ``at_head``: its schema must be this version's."""
    loaded = settings.load(database_url=database_url, database=named)
    with ready(loaded, at_head=at_head, statement_timeout=_PATIENCE) as database:
        yield database


@contextmanager
def ready(
    loaded: Settings, *, at_head: bool = True, statement_timeout: float = STATEMENT_TIMEOUT
) -> Iterator[Database]:
    """The settings' database; ``SchemaError`` unless it is migrated (``at_head``).

    What the database or its driver refuses until the end is one line that names the setting, without the password.
    """
    database = open_database(loaded, statement_timeout)
    try:
        if at_head:
            revision.check(database)
        yield database
    except DBAPIError as error:
        url = database.engine.url
        said = without_secrets(cause(error), url)
        # Without a statement nothing was asked yet: there is no connection.
        remedy = "; start it, or correct the URL" if error.statement is None else ""
        raise SettingsError(f"OUTBOX_DATABASE_URL: cannot use {where(url)}: {said}{remedy}") from error
    finally:
        database.close()
