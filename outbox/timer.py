"""When a message may go: kept back by its row, for any length, or handed to the timer of the broker.

The broker's timer is a property of the message. ``TIMER_DELIVER_MS`` names the moment (RocketMQ 5:
``TimerMessageStore``, to the second, three days ahead at most: ``timerMaxDelaySec``); ``DELAY`` one of 18 levels
(4.9 and 5: ``messageDelayLevel``). A half with either is committed and never delivered, measured on 4.9 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from outbox.errors import InvalidMessage

#: The properties (``MessageConst.PROPERTY_TIMER_DELIVER_MS``, ``PROPERTY_DELAY_TIME_LEVEL``).
DELIVER_AT: Final = "TIMER_DELIVER_MS"
LEVEL: Final = "DELAY"
#: Seconds of each level, from 1 on (``MessageStoreConfig.messageDelayLevel``); a broker may be set otherwise.
LEVEL_SECONDS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: The row keeps its message until the broker's timer can take it: with a day to spare.
_AHEAD: Final = timedelta(days=2)
_LONGEST: Final = timedelta(days=36_525)
#: The ends of what Python can tell: in the time zone of a session, or two days earlier, they are beyond it.
_YEARS: Final = range(1971, 9999)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Timer:
    """The moment at which the broker delivers, or its level of delay, or neither; errors name ``add``'s argument."""

    deliver_at: datetime | None = None
    #: 1 (a second after the broker stored it) to 18 (two hours).
    level: int | None = None

    def __post_init__(self) -> None:
        if self.deliver_at is not None and self.level is not None:
            raise InvalidMessage("delay_level", "given beside deliver_at: the broker's timer takes one of the two")
        if self.deliver_at is not None:
            _check_moment("deliver_at", self.deliver_at)
        if self.level is not None and self.level not in range(1, len(LEVEL_SECONDS) + 1):
            raise InvalidMessage("delay_level", f"{self.level!r}: 1 to {len(LEVEL_SECONDS)} are RocketMQ's levels")

    @property
    def field(self) -> str:
        """The argument of ``add`` that set it."""
        return "delay_level" if self.deliver_at is None else "deliver_at"

    def properties(self) -> dict[str, str]:
        """As the message carries it."""
        if self.deliver_at is not None:
            return {DELIVER_AT: str((self.deliver_at - _EPOCH) // timedelta(milliseconds=1))}
        return {} if self.level is None else {LEVEL: str(self.level)}


NO_TIMER: Final = Timer()


def earliest_of(
    not_before: datetime | None, delay: timedelta | None, deliver_at: datetime | None
) -> datetime | timedelta | None:
    """Until when, or for how long after the insert, the row keeps its message back."""
    _check_kind("not_before", not_before, datetime)
    _check_kind("delay", delay, timedelta)
    _check_kind("deliver_at", deliver_at, datetime)
    if delay is not None and (not_before is not None or deliver_at is not None):
        raise InvalidMessage("delay", "given beside not_before or deliver_at: name the moment, or the delay")
    check_earliest(not_before)
    if deliver_at is None:
        return not_before if delay is None else delay
    _check_moment("deliver_at", deliver_at)
    taken_from = deliver_at.astimezone(UTC) - _AHEAD
    return taken_from if not_before is None else max(not_before, taken_from)


def check_earliest(earliest: datetime | timedelta | None) -> None:
    """``InvalidMessage`` for a moment without a time zone or out of all bounds, and for a delay that is none."""
    if isinstance(earliest, datetime):
        _check_moment("not_before", earliest)
    elif earliest is not None and not timedelta(0) <= earliest <= _LONGEST:
        raise InvalidMessage("delay", f"{earliest!s}: from zero to {_LONGEST.days} days are possible")


def is_timed(properties: Mapping[str, str]) -> bool:
    """Whether the broker's timer delivers the message that carries these properties."""
    return DELIVER_AT in properties or LEVEL in properties


def _check_moment(name: str, moment: datetime) -> None:
    if moment.tzinfo is None:
        raise InvalidMessage(name, f"{moment!r} has no time zone: pass an aware datetime")
    if moment.year not in _YEARS:
        raise InvalidMessage(
            name,
            f"{moment!s}: years {_YEARS[0]} to {_YEARS[-1]} are possible; leave it out where the row may go at once",
        )


def _check_kind(name: str, given: object, kind: type) -> None:
    if given is not None and not isinstance(given, kind):
        raise InvalidMessage(name, f"must be a {kind.__name__}, not {type(given).__name__}")
