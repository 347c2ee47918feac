"""The outbox in figures, for scrapers: read when somebody asks, and not more often than every few seconds."""

import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from outbox.clock import monotonic
from outbox.health.metrics import Metrics
from outbox.lifecycle import State
from outbox.shown import cause
from outbox.store.gauges import Figures

_log = logging.getLogger(__name__)

#: Seconds for which figures are told again, and for which a scrape waits for new ones.
_FRESH: Final = 10.0
_PATIENCE: Final = 2.0


class FreshFigures:
    """Thread-safe; a database that cannot be asked has no figures.

    The database is asked in a thread of its own. A scrape waits for that a little, and not at all where the last try
    failed; meanwhile the last figures are told. So one database that hangs keeps nobody from those of the others.
    """

    def __init__(self, read: Callable[[], Figures], now: Callable[[], float] = monotonic) -> None:
        self._read = read
        self._now = now
        self._figures: Figures | None = None
        self._due = -math.inf
        self._asking: threading.Thread | None = None
        self._patience = _PATIENCE
        self._lock = threading.Lock()

    def get(self) -> Figures | None:
        """As of now, or of a few seconds ago."""
        with self._lock:
            if self._asking is None and self._now() >= self._due:
                thread = threading.Thread(target=self._ask, name="outbox-figures", daemon=True)
                thread.start()  # raises where the system has no thread left: then nobody asks
                self._asking = thread
            asking, patience = self._asking, self._patience
        if asking is not None:
            asking.join(patience)
            self._patience = 0.0 if asking.is_alive() else self._patience
        return self._figures

    def _ask(self) -> None:
        figures = None
        try:
            figures = self._read()
        except SQLAlchemyError as error:
            _log.info("no figures: %s", cause(error))
        finally:
            with self._lock:
                self._figures, self._due, self._asking = figures, self._now() + _FRESH, None
                self._patience = 0.0 if figures is None else _PATIENCE


def register_figures(metrics: Metrics, figures: FreshFigures, database: str) -> None:
    """Adds rows by state and the two ages of ``outbox status``."""

    def number(of: Callable[[Figures], float]) -> Callable[[], float | None]:
        """Reads one of them."""

        def read() -> float | None:
            """None: the database cannot be asked."""
            found = figures.get()
            return None if found is None else float(of(found))

        return read

    for state in State:
        rows = number(lambda it, state=state: it.rows[state])  # type: ignore[misc]
        metrics.gauge(
            "outbox_rows", "Rows by state; estimates where there are many.", rows, database=database, state=state
        )
    metrics.gauge(
        "outbox_held_lanes",
        "Lanes that a dead row holds until an operator decides.",
        number(lambda it: it.held_lanes),
        database=database,
    )
    metrics.gauge(
        "outbox_oldest_due_seconds",
        "For how long the oldest due row has waited.",
        number(lambda it: it.oldest_due),
        database=database,
    )
    metrics.gauge(
        "outbox_oldest_unsettled_seconds",
        "Age of the oldest decision that the broker has not confirmed.",
        number(lambda it: it.oldest_unsettled),
        database=database,
    )
