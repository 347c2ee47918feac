"""Identities that the toolkit draws: tokens, lease ids, and the broker's unique message id."""

import itertools
import os
import random
import secrets
import time
from datetime import UTC, datetime

_MASK_32 = 0xFFFFFFFF
_MASK_16 = 0xFFFF


def fresh_token() -> str:
    """A random identity of one attempt or one lease: 16 hexadecimal digits."""
    return secrets.token_hex(8)


#: Of our own: two processes of an application that seeds the one it shares with us would draw the same numbers.
_numbers = random.Random()  # noqa: S311 -- tells claims apart, hides nothing
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_numbers.seed)


def fresh_number() -> int:
    """A random identity of 63 bits, without a system call: threads would hand the interpreter's lock on at each."""
    return _numbers.getrandbits(63)


class UniqueIds:
    """Draws RocketMQ unique ids (UNIQ_KEY): 32 upper-case hexadecimal digits.

    The layout is that of the Java client (``MessageClientIDSetter``), so that broker tools can read the time from it:
    10 bytes that name the process (here: random, drawn again after a fork), 4 bytes of milliseconds since the first
    of the month, 2 bytes of a counter.
    """

    def __init__(self) -> None:
        self._process = self._draw()
        self._counter = itertools.count(secrets.randbelow(_MASK_16))
        self._month = 0.0
        self._next_month = 0.0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._redraw)

    @staticmethod
    def _draw() -> str:
        return secrets.token_hex(10).upper()

    def _redraw(self) -> None:
        self._process = self._draw()

    def fresh(self) -> str:
        """One more unique id."""
        now = time.time()
        if not self._month <= now < self._next_month:
            self._turn_month(now)
        milliseconds = int((now - self._month) * 1000) & _MASK_32
        return f"{self._process}{milliseconds:08X}{next(self._counter) & _MASK_16:04X}"

    def _turn_month(self, now: float) -> None:
        first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month, self._next_month = first.timestamp(), following.timestamp()


unique_ids = UniqueIds()
