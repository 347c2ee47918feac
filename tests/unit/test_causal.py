"""What a session is told by what a server says of its cluster; Galera itself is in the integration tests."""

from collections.abc import Mapping

import pytest

from outbox.store.causal import read_causally

BEFORE = "SET SESSION group_replication_consistency = 'BEFORE'"
AFTER_FAIL_OVER = "SET SESSION group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER'"


class Cursor:
    """Answers the one question, and keeps what else it is told."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self.told: list[str] = []

    def execute(self, statement: str) -> None:
        if not statement.startswith("SHOW "):
            self.told.append(statement)

    def fetchall(self) -> list[tuple[str, str]]:
        return list(self._settings.items())


def group(consistency: str, single_primary: str) -> Mapping[str, str]:
    return {
        "group_replication_consistency": consistency,
        "group_replication_single_primary_mode": single_primary,
    }


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, []),
        ({"wsrep_on": "OFF"}, []),
        ({"group_replication_consistency": "BEFORE_ON_PRIMARY_FAILOVER"}, []),  # MySQL without the plugin
        ({"wsrep_on": "ON"}, ["SET SESSION wsrep_sync_wait = 1"]),
        (group("EVENTUAL", "OFF"), [BEFORE]),
        (group("BEFORE_ON_PRIMARY_FAILOVER", "OFF"), [BEFORE]),
        (group("EVENTUAL", "ON"), [AFTER_FAIL_OVER]),
        (group("BEFORE", "OFF"), []),
        (group("BEFORE_AND_AFTER", "ON"), []),
        (group("AFTER", "OFF"), []),
    ],
    ids=str,
)
def test_a_session_waits_for_what_the_cluster_has_committed(settings: Mapping[str, str], told: list[str]) -> None:
    cursor = Cursor(settings)
    read_causally(cursor)
    assert cursor.told == told
