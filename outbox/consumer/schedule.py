"""When a delivery comes again."""

from collections.abc import Sequence
from typing import Final

#: RocketMQ's own delays between deliveries, in seconds (``messageDelayLevel`` from level 3 on); dead letters follow.
RETRY_DELAYS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

#: The same number of retries for an orderly group, whose queue waits meanwhile: a quarter of an hour in all.
ORDERLY_DELAYS: Final = (1, 2, 5, 10, 20, 30, 60, 60, 60, 60, 60, 120, 120, 120, 120, 120)


def delay_after(attempt: int, delays: Sequence[float] = RETRY_DELAYS) -> float:
    """Seconds until the delivery after ``attempt`` (from 1); the last delay repeats."""
    return float(delays[min(max(attempt, 1), len(delays)) - 1])


def is_exhausted(attempt: int, delays: Sequence[float] = RETRY_DELAYS) -> bool:
    """Whether ``attempt`` was the last retry: one first delivery, then as many retries as there are delays."""
    return attempt > len(delays)
