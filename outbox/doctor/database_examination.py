"""Reads the database part by part and has each judged; what cannot be read is a finding itself."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from outbox.doctor import database_checks, database_subjects, row_checks
from outbox.doctor.findings import Finding
from outbox.lifecycle import State
from outbox.message import Mode
from outbox.origin import origin_of
from outbox.settings import Settings
from outbox.shown import where, without_secrets
from outbox.store.database import Database, missing_file
from outbox.store.examined_rows import ExaminedRows
from outbox.store.examined_schema import ExaminedSchema, SchemaFacts
from outbox.store.examined_server import ExaminedServer

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Known:
    """What the database has told, and what the broker is asked about because of it."""

    topics: dict[str, Mode] = field(default_factory=dict)
    #: Committed rows by producer group; that of the settings is always there.
    groups: dict[str, int] = field(default_factory=dict)
    #: Rows of the settings' group may need an answer although none is committed.
    pending: bool = False
    #: A relay has found a broker for these rows.
    published: bool = False
    #: "": not known.
    origin: str = ""


class DatabaseExamination:
    """Everything about the database and its rows."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self.known = Known(groups={settings.producer_group: 0})
        self._schema: SchemaFacts | None = None

    def findings(self) -> Iterator[Finding]:
        """Fills ``known`` on the way."""
        url = self._database.engine.url
        if missing_file(url):
            yield database_subjects.DATABASE_REACHABLE.problem(
                "database", f"{where(url)}: `outbox db upgrade` makes this file"
            )
            return
        try:
            with self._database.transaction() as connection:
                connection.execute(sa.select(sa.literal(1)))
        except DBAPIError as error:
            yield database_subjects.DATABASE_REACHABLE.problem(
                "database", f"{where(url)}: {without_secrets(_line(error), url)}"
            )
            return
        yield database_subjects.DATABASE_REACHABLE.ok("database", where(url))
        for part in (self._of_server, self._of_clock, self._of_schema, self._of_open, self._of_rows, self._of_identity):
            yield from self._guarded(part)

    def _guarded(self, part: Callable[[], Iterable[Finding]]) -> list[Finding]:
        try:
            return list(part())
        except SQLAlchemyError as error:
            _log.debug("a part of the database could not be read", exc_info=True)
            return [database_subjects.DATABASE_READABLE.warning("database", _line(error))]

    def _of_server(self) -> Iterable[Finding]:
        return database_checks.of_server(ExaminedServer(self._database).facts(), self._database.most_connections)

    def _of_clock(self) -> Iterable[Finding]:
        return database_checks.of_clock(ExaminedServer(self._database).clock())

    def _of_schema(self) -> Iterable[Finding]:
        self._schema = ExaminedSchema(self._database).facts()
        return database_checks.of_schema(self._schema)

    def _of_open(self) -> Iterator[Finding]:
        if self._tables_are_missing():
            return
        facts = ExaminedRows(self._database).open()
        self.known.topics |= facts.topics
        self.known.groups |= facts.groups
        self.known.pending = facts.pending
        yield from row_checks.of_groups(facts.groups, self._settings.producer_group)

    def _of_rows(self) -> Iterator[Finding]:
        if self._tables_are_missing():
            return
        facts = ExaminedRows(self._database).facts(row_checks.LONG)
        self.known.published = any(facts.rows[state] for state in (State.COMMITTED, State.DELIVERED))
        yield from row_checks.of_rows(facts)
        yield from row_checks.of_heartbeats(facts, self._settings.heartbeat_gap)

    def _of_identity(self) -> Iterator[Finding]:
        if self._tables_are_missing():
            return
        ids = ExaminedRows(self._database).database_ids()
        if len(ids) == 1:
            self.known.origin = origin_of(self._settings.service, ids[0])
        yield from row_checks.of_origin(self._settings.service, ids)

    def _tables_are_missing(self) -> bool:
        return self._schema is not None and self._schema.revision is None


def _line(error: SQLAlchemyError) -> str:
    """What the driver said, on one line."""
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
