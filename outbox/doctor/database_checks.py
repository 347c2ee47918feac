"""From what a database says of itself and of its schema to findings: pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from outbox.columns import MYSQL_FAMILY
from outbox.doctor import database_subjects as subject
from outbox.doctor.findings import Finding, Level, Subject
from outbox.store.examined_schema import SchemaFacts
from outbox.store.examined_server import ClockFacts, ServerFacts
from outbox.store.supported import dotted, oldest_of
from outbox.words import counted

DATABASE: Final = "database"
#: Seconds between the clocks of database and host, to be told and to be mended.
_CLOCK_TOLD: Final = 2.0
_CLOCK_WRONG: Final = 60.0
_UTC: Final = frozenset(("UTC", "Etc/UTC", "GMT", "+00:00", "Universal", "Etc/Universal", "Zulu"))
_MAY_NOT_COMMIT: Final = frozenset(("serializable", "repeatable read"))
_ON: Final = frozenset(("ON", "1"))


def of_schema(facts: SchemaFacts) -> Iterator[Finding]:
    """Nothing but the revision where the tables are not there."""
    if facts.revision is None:
        yield subject.SCHEMA_REVISION.problem(DATABASE, "the tables are missing")
        return
    needs = "this version needs" if facts.known else "which this version does not know; it needs"
    seen = f"at {facts.revision}, {needs} {facts.head}"
    fits = facts.revision == facts.head
    yield subject.SCHEMA_REVISION.judged(DATABASE, seen, None if fits else Level.PROBLEM)
    for it, wrong, worst in (
        (subject.SCHEMA_TABLES, facts.differences, Level.PROBLEM),
        (subject.SCHEMA_CHECKS, facts.checks, Level.WARNING),
        (subject.KEY_COLLATION, facts.collations, Level.PROBLEM),
    ):
        yield it.judged(DATABASE, _listed(wrong) or "as declared", worst if wrong else None)


def of_clock(facts: ClockFacts) -> Iterator[Finding]:
    """A difference counts only beyond what the way there and back may hide."""
    beyond = abs(facts.ahead) - facts.within
    worst = Level.WARNING if beyond >= _CLOCK_WRONG else Level.NOTE if beyond >= _CLOCK_TOLD else None
    yield subject.CLOCK.judged(DATABASE, f"{facts.ahead:+.3f} s against this host, ± {facts.within:.3f} s", worst)


def of_server(facts: ServerFacts, needed: int) -> Iterator[Finding]:
    """``needed``: connections that one process of the toolkit may hold."""
    if facts.read_only:
        yield subject.DATABASE_WRITABLE.problem(DATABASE, "takes no writes")
    else:
        yield subject.DATABASE_WRITABLE.ok(DATABASE, "takes writes")
    yield from _release(*facts.server)
    if facts.dialect == "sqlite":
        yield from _sqlite(facts.settings)
        return
    yield from _connections(facts, needed)
    yield from _session_defaults(facts.settings)
    if facts.dialect in MYSQL_FAMILY:
        yield from _mysql(facts)
    else:
        yield from _postgresql(facts)


def _release(name: str, release: tuple[int, ...]) -> Iterator[Finding]:
    if release:
        worst = Level.PROBLEM if release < oldest_of(name) else None
        yield subject.DATABASE_RELEASE.judged(DATABASE, f"{name} {dotted(release)}", worst)


def _connections(facts: ServerFacts, needed: int) -> Iterator[Finding]:
    if facts.allowed is None or facts.used is None:
        return
    seen = f"{facts.allowed} allowed, {facts.used} open, a process of the toolkit holds up to {needed}"
    worst = None
    if facts.allowed < needed:
        worst = Level.PROBLEM
    elif facts.allowed - facts.used < needed:
        worst = Level.WARNING
    yield subject.CONNECTIONS.judged(DATABASE, seen, worst)


def _session_defaults(settings: Mapping[str, str]) -> Iterator[Finding]:
    zone = settings.get("TimeZone") or settings.get("time_zone", "")
    if zone == "SYSTEM":
        zone = settings.get("system_time_zone", "")
    yield subject.TIME_ZONE.judged(DATABASE, zone, None if zone in _UTC else Level.NOTE)
    names = ("default_transaction_isolation", "transaction_isolation", "tx_isolation")
    isolation = next((settings[name] for name in names if name in settings), "").lower().replace("-", " ")
    of_postgresql = "default_transaction_isolation" in settings
    fails = isolation in _MAY_NOT_COMMIT if of_postgresql else isolation == "serializable"
    yield subject.ISOLATION.judged(DATABASE, isolation, Level.NOTE if fails else None)


def _postgresql(facts: ServerFacts) -> Iterator[Finding]:
    settings = facts.settings
    commit = settings["synchronous_commit"]
    # `off` may lose what was answered; `local` and `remote_write` weaken what a standby has.
    worst = Level.WARNING if commit == "off" else Level.NOTE if commit in ("local", "remote_write") else None
    yield subject.SYNCHRONOUS_COMMIT.judged(DATABASE, f"synchronous_commit={commit}", worst)
    for name, it in (("fsync", subject.FSYNC), ("full_page_writes", subject.FULL_PAGE_WRITES)):
        yield it.judged(DATABASE, f"{name}={settings[name]}", Level.PROBLEM if settings[name] != "on" else None)
    names, standbys = settings["synchronous_standby_names"], facts.replicas or 0
    seen = f"synchronous_standby_names={names!r}, {counted(standbys, 'standby')} connected"
    yield subject.STANDBY.judged(DATABASE, seen, Level.WARNING if standbys and not names else None)


def _mysql(facts: ServerFacts) -> Iterator[Finding]:
    settings = facts.settings
    yield from _expected(settings, "innodb_flush_log_at_trx_commit", "1", subject.FLUSH_LOG, Level.PROBLEM)
    if settings.get("log_bin", "OFF") in _ON:
        yield from _expected(settings, "sync_binlog", "1", subject.SYNC_BINLOG, Level.WARNING)
    off = settings.get("innodb_doublewrite", "ON") in ("OFF", "0")
    seen = f"innodb_doublewrite={settings.get('innodb_doublewrite', '')}"
    yield subject.DOUBLE_WRITE.judged(DATABASE, seen, Level.WARNING if off else None)
    yield from _semi_sync(settings, facts.replicas)
    yield from _primaries(settings, facts.nodes or 0)


def _primaries(settings: Mapping[str, str], nodes: int) -> Iterator[Finding]:
    """Whether other servers take writes as well; nothing is said of one that is alone."""
    several = settings.get("group_replication_single_primary_mode") == "OFF"
    if nodes > 1 or several:
        seen = f"Galera, {nodes} nodes" if nodes > 1 else "group replication, several primaries"
        yield subject.SEVERAL_PRIMARIES.note(DATABASE, seen)


def _semi_sync(settings: Mapping[str, str], replicas: int | None) -> Iterator[Finding]:
    """Matters where there are replicas; MySQL does not count them, so there it is a note."""
    waits = any(settings.get(f"rpl_semi_sync_{name}_enabled", "OFF") in _ON for name in ("master", "source"))
    points = [settings.get(f"rpl_semi_sync_{name}_wait_point", "") for name in ("master", "source")]
    early = waits and "AFTER_COMMIT" in points
    known = "unknown replicas" if replicas is None else counted(replicas, "replica")
    seen = f"{known}, semi-synchronous {'on' if waits else 'off'}"
    if early:
        seen += ", waits AFTER_COMMIT"
    logs = settings.get("log_bin", "OFF") in _ON
    worst = Level.WARNING if replicas else Level.NOTE if replicas is None and logs else None
    yield subject.SEMI_SYNC.judged(DATABASE, seen, worst if early or not waits else None)


def _expected(settings: Mapping[str, str], name: str, right: str, it: Subject, worst: Level) -> Iterator[Finding]:
    if name in settings:
        yield it.judged(DATABASE, f"{name}={settings[name]}", None if settings[name] == right else worst)


def _sqlite(settings: Mapping[str, str]) -> Iterator[Finding]:
    mode, synchronous = settings["journal_mode"], settings["synchronous"]
    destroys = mode in ("off", "memory")
    worst = Level.PROBLEM if destroys else Level.NOTE if mode != "wal" else None
    yield subject.SQLITE_JOURNAL.judged(DATABASE, f"journal_mode={mode}", worst)
    # 0 OFF, 1 NORMAL, 2 FULL, 3 EXTRA (https://www.sqlite.org/pragma.html#pragma_synchronous)
    yield subject.SQLITE_SYNCHRONOUS.judged(
        DATABASE,
        f"synchronous={synchronous}",
        Level.WARNING if int(synchronous) < 2 else None,
    )


def _listed(wrong: Sequence[str]) -> str:
    return "; ".join(wrong)
