"""Which errors say that a transaction was sacrificed, and what is done about them."""

import pytest
from sqlalchemy.exc import OperationalError

from outbox.store.conflicts import TRIES, is_conflict, repeated


class PostgresError(Exception):
    """As psycopg's."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("words")
        self.sqlstate = sqlstate


def failed(cause: Exception) -> OperationalError:
    return OperationalError("COMMIT", {}, cause)


@pytest.mark.parametrize(
    "cause",
    [
        PostgresError("40001"),
        PostgresError("40P01"),
        Exception(1213, "Deadlock found when trying to get lock; try restarting transaction"),
        Exception(3101, "Plugin instructed the server to rollback the current transaction."),
        Exception(1180, "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT"),
    ],
    ids=repr,
)
def test_a_transaction_that_was_sacrificed(cause: Exception) -> None:
    assert is_conflict(failed(cause))


@pytest.mark.parametrize(
    "cause",
    [
        PostgresError("57014"),
        Exception(1205, "Lock wait timeout exceeded; try restarting transaction"),
        Exception(1180, "Got error 28 - 'No space left on device' during COMMIT"),
        Exception(2013, "Lost connection to MySQL server during query"),
        Exception(),
    ],
    ids=repr,
)
def test_any_other_error(cause: Exception) -> None:
    # Given a transaction that fails otherwise; When it is run; Then it is so once
    runs = []

    def transaction() -> None:
        runs.append(1)
        raise failed(cause)

    with pytest.raises(OperationalError):
        repeated(transaction)
    assert len(runs) == 1


def test_a_sacrificed_transaction_is_run_again_a_few_times() -> None:
    # Given a transaction that is sacrificed as often as it may be, or once more
    ends = [failed(Exception(1213, "Deadlock found"))] * (TRIES - 1)

    def transaction() -> str:
        if ends:
            raise ends.pop()
        return "committed"

    # When it is run; Then its result is that of the last try
    assert repeated(transaction) == "committed"
    ends += [failed(Exception(1213, "Deadlock found"))] * TRIES
    with pytest.raises(OperationalError):
        repeated(transaction)
