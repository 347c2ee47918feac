"""``python -m examples.tracking_events``: many small events, two kills, some duplicates, one count."""

import argparse
import signal
import sys
import time
import uuid

import sqlalchemy as sa

from examples.counting import Line, Report, unpublished
from examples.crew import QUIET, Crew
from examples.engine import open_engine
from examples.resender import Resender
from examples.servers import add_options, fresh_folder, settings_of
from examples.tracking_events.models import create, page_views
from examples.tracking_events.website import TOPIC, Website
from outbox.clock import monotonic
from outbox.settings import Settings
from outbox.wiring import open_broker

#: Who is killed when a third is written, and when two thirds are.
VICTIMS = ("relay", "statistics")


def main() -> int:
    """Runs the example; 0 if every event was counted once."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    folder = fresh_folder(options.folder)
    settings = settings_of(options, folder, origin="website")
    with Crew(folder, settings, TRACKING_TOPIC=options.topic) as crew:
        return Story(options, settings, crew).tell()


class Story:
    """One campaign."""

    def __init__(self, options: argparse.Namespace, settings: Settings, crew: Crew) -> None:
        self._options = options
        self._settings = settings
        self._crew = crew
        self._campaign = uuid.uuid4().hex
        self._engine = open_engine(settings.database_url)
        self._website = Website(self._engine, self._campaign, options.topic)
        create(self._engine, self._campaign)

    def tell(self) -> int:
        """Starts relay and statistics, writes, waits, counts."""
        self._crew.start("relay", "relay")
        self._crew.start("statistics", "consume", "examples.tracking_events.statistics:inbox")
        self._crew.wait_at_work()
        began = monotonic()
        duplicates = self._write()
        self._crew.wait("every event", lambda: (now := self._report()).exact or now.surplus)
        seconds = monotonic() - began
        time.sleep(QUIET)
        return self._count(seconds, duplicates)

    def _write(self) -> int:
        """All events; a kill and some duplicates after each third but the last. How many duplicates."""
        duplicates, victims = 0, list(VICTIMS)
        for written in self._website.visits(self._options.events):
            third = len(VICTIMS) + 1 - len(victims)
            if victims and written * 3 >= self._options.events * third:
                self._crew.strike(victims.pop(0))
                due = self._options.duplicates * third // len(VICTIMS)
                duplicates += self._send_again(due - duplicates)
        return duplicates

    def _send_again(self, count: int) -> int:
        broker = open_broker(self._settings)
        try:
            return Resender(self._engine, broker, self._options.topic).send(count)
        finally:
            broker.close()

    def _report(self) -> Report:
        with self._engine.connect() as connection:
            totals = sa.select(page_views).where(page_views.c.campaign == self._campaign).order_by(page_views.c.page)
            lines = [
                Line("statistics", row.page, self._website.written[row.page], row.views)
                for row in connection.execute(totals)
            ]
            return Report(tuple(lines), unpublished(connection))

    def _count(self, seconds: float, duplicates: int) -> int:
        counted = self._report()
        for line in counted.lines:
            print(line)
        events = self._website.written.total()
        print(f"{events:,} events in {seconds:.1f} s: {events / seconds:,.0f} a second from first write to last count")
        print(f"{self._crew.kills} processes killed, {duplicates:,} duplicates sent")
        print("every event was counted once" if counted.exact else "NOT EXACT: see the lines above")
        return 0 if counted.exact else 1


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.tracking_events", description=__doc__)
    add_options(parser)
    parser.add_argument("--topic", default=TOPIC, help="must exist on a real broker, for normal messages")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--duplicates", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
