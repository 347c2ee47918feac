"""What a scraper is told."""

from outbox.health.metrics import Metrics
from relay.reporting import CountedEvents


def test_what_has_not_happened_yet_is_counted_from_zero() -> None:
    # Given a relay that has just begun / When it is scraped
    metrics = Metrics()
    events = CountedEvents(metrics, "east")
    # Then the first outage and the first dead row will be a growth, which an alert sees
    assert 'outbox_outages_total{database="east"} 0\n' in metrics.text()
    assert 'outbox_buried_rows_total{database="east"} 0\n' in metrics.text()
    events.outage("no connection", 1.0)
    assert 'outbox_outages_total{database="east"} 1\n' in metrics.text()
