"""What the inbox asks of drivers, in the words of each."""

from types import SimpleNamespace
from typing import Any

import pytest

from outbox.consumer.drivers import TransactionState, commits_by_itself, state_of

#: SERVER_STATUS_IN_TRANS and SERVER_STATUS_AUTOCOMMIT of MySQL's protocol.
IN_TRANS, AUTOCOMMIT = 1, 2


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ({"server_status": IN_TRANS | AUTOCOMMIT}, {"server_status": AUTOCOMMIT}),  # PyMySQL, aiomysql, asyncmy
        ({"in_transaction": True}, {"in_transaction": False}),  # Connector/Python
    ],
)
def test_a_driver_of_mysql_tells_whether_a_transaction_is_open(inside: Any, outside: Any) -> None:
    assert state_of(SimpleNamespace(**inside), "mysql") is TransactionState.OPEN
    assert state_of(SimpleNamespace(**outside), "mysql") is TransactionState.NONE


def test_a_driver_that_does_not_tell_is_taken_at_its_word() -> None:
    # As mysqlclient; statements that end the transaction are refused before they are sent all the same
    assert state_of(SimpleNamespace(), "mysql") is TransactionState.OPEN


def test_autocommit_is_a_method_or_an_attribute() -> None:
    pymysql, connector = SimpleNamespace(get_autocommit=lambda: True), SimpleNamespace(autocommit=True)
    assert commits_by_itself(pymysql)
    assert commits_by_itself(connector)
    assert not commits_by_itself(SimpleNamespace(get_autocommit=lambda: False, autocommit=print))
    assert not commits_by_itself(SimpleNamespace(autocommit=False))
