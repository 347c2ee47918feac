"""Reads that are as new as what the cluster has committed, where several servers make up one database.

What one server of a Galera cluster or a replication group commits, another one applies a moment later, and minutes
later where a backup, a long transaction or a backlog after a fail-over holds it up. Until then it answers what rows
were. A check-back that believes it rolls a half back that the row has chosen meanwhile: over a transport that cannot
look its message up, that message is lost. Writes are safe by themselves, since the cluster compares them before COMMIT.
"""

from collections.abc import Mapping
from typing import Any, Final

#: Galera's, and those of MySQL's group replication, of which a server without has the first alone.
_SETTINGS: Final = ("wsrep_on", "group_replication_consistency", "group_replication_single_primary_mode")
_QUESTION: Final = f"SHOW VARIABLES WHERE Variable_name IN {_SETTINGS}"
_NOT_AHEAD: Final = frozenset(("EVENTUAL", "BEFORE_ON_PRIMARY_FAILOVER"))


def read_causally(cursor: Any) -> None:
    """Has each transaction of a MariaDB or MySQL session begin no sooner than the server has what was committed.

    That costs one round within the cluster for each. A server that does not get there refuses, by an error.
    """
    cursor.execute(_QUESTION)
    if setting := _needed(dict(cursor.fetchall())):
        cursor.execute(f"SET SESSION {setting}")


def _needed(settings: Mapping[str, str]) -> str:
    """ "": each read is of this server's own commits, or waits already."""
    if settings.get("wsrep_on") == "ON":
        return "wsrep_sync_wait = 1"
    single = settings.get("group_replication_single_primary_mode")
    if single is None or settings.get("group_replication_consistency") not in _NOT_AHEAD:
        return ""
    return f"group_replication_consistency = '{'BEFORE' if single == 'OFF' else 'BEFORE_ON_PRIMARY_FAILOVER'}'"
