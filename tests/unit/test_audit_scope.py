"""The moments that an audit counts from."""

from datetime import UTC, datetime, timedelta

from outbox.audit import before, scope_of

NOW = datetime(2030, 1, 31, 8, tzinfo=UTC)


def test_a_span_longer_than_the_calendar_ends_at_its_beginning() -> None:
    assert before(NOW, 60.0) == NOW - timedelta(minutes=1)
    assert before(NOW, 1e18) == datetime(1970, 1, 1, tzinfo=UTC)
    assert scope_of(NOW, NOW, NOW, None, 1e18, 1e18).purged_before == before(NOW, 1e18)
