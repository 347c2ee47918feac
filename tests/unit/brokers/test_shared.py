"""A connection to the broker that several databases share."""

import pytest

from outbox.brokers.shared import SharedBroker
from outbox.errors import SettingsError
from tests.integration.scripted import ScriptedBroker


def test_an_origin_is_served_once_at_a_time() -> None:
    # Given a database that is served over the connection
    shared = SharedBroker(ScriptedBroker())
    first = shared.of("shop.1a")
    # When another one says that it is the same, a copy, or listed twice; Then it is refused, and the remedy named
    with pytest.raises(SettingsError, match="outbox db adopt"):
        shared.of("shop.1a")
    # And others are not; nor is the same one, when it is opened anew
    shared.of("shop.2b")
    first.close()
    shared.of("shop.1a")
