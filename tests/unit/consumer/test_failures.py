"""What is told of a handler's error."""

import logging

import pytest
from sqlalchemy.exc import DBAPIError

from outbox.consumer.failures import outcome_of
from outbox.consumer.outcome import Retry


def test_where_an_error_was_raised_is_told_without_the_statement(caplog: pytest.LogCaptureFixture) -> None:
    # Given a handler whose statement fails
    def reserve() -> None:
        raise DBAPIError("UPDATE stock SET reserved = :secret", {"secret": 7}, Exception("deadlock\ndetected"))

    caplog.set_level(logging.DEBUG, "outbox.consumer")
    # When it is called
    with pytest.raises(DBAPIError) as caught:
        reserve()
    outcome = outcome_of(caught.value)
    # Then the message comes again for what the database said, and the place can be found
    assert isinstance(outcome, Retry)
    assert outcome.reason == "DBAPIError: deadlock detected"
    assert "in reserve" in caplog.text
    assert ":secret" not in caplog.messages[0].splitlines()[0]
    assert "{'secret': 7}" not in caplog.text
