"""What ends the relay's rest early: a bell in this process, and PostgreSQL's notifications."""

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from relay.notifications import Notifications

_BYTES: Final = 4096


class Bell:
    """A socket pair that one thread waits for beside others; ``ring`` is safe in any thread, and never blocks."""

    def __init__(self) -> None:
        self._hears, self._rings = socket.socketpair()
        for end in (self._hears, self._rings):
            end.setblocking(False)

    def ring(self) -> None:
        """Ends the rest under way, or the next one."""
        with suppress(BlockingIOError, OSError):  # it rings already; or nobody is there any more
            self._rings.send(b"!")

    def fileno(self) -> int:
        """What to wait for."""
        return self._hears.fileno()

    def close(self) -> None:
        """From now on ``ring`` does nothing."""
        self._hears.close()
        self._rings.close()

    def silence(self) -> bool:
        """Whether it rang since the last call."""
        try:
            return bool(self._hears.recv(_BYTES))
        except BlockingIOError:
            return False


class Wake:
    """The rest of one loop: ``rest`` and ``doze`` are for its thread, ``ring`` is for all."""

    def __init__(self, now: Callable[[], float], notifications: Notifications | None = None) -> None:
        self._bell = Bell()
        self._now = now
        self._notifications = notifications

    def ring(self) -> None:
        """There may be rows, or the loop shall stop."""
        self._bell.ring()

    def rest(self, seconds: float) -> bool:
        """Rests so long, or until somebody rings; whether somebody did."""
        until = self._now() + seconds
        while not (woken := self._wait(max(0.0, until - self._now()))) and self._now() < until:
            pass
        return woken

    def doze(self, *, at_once: bool = False) -> bool:
        """Asks to be told of new rows from now on; ``at_once``: although it was refused lately.

        True: look at the rows once more, then ``told`` holds.
        """
        return self._notifications is not None and self._notifications.doze(at_once=at_once)

    def rise(self) -> None:
        """There is enough to do: writers need not tell."""
        if self._notifications is not None:
            self._notifications.rise()

    def told(self) -> bool:
        """Whether every row that is added ends the rest; a row that comes back otherwise may wait for the next look."""
        return self._notifications is not None and self._notifications.dozing

    def leave(self) -> None:
        """Has the other relays look at once, and be told in this one's place."""
        if self._notifications is not None:
            self._notifications.leave()

    def close(self) -> None:
        """Leaves, since the last passes may have let lanes go on, and ends the connection; from now on ``ring`` does
        nothing, and nobody may rest."""
        self.leave()
        if self._notifications is not None:
            self._notifications.close()
        self._bell.close()

    def _wait(self, seconds: float) -> bool:
        told = self._notifications
        if told is not None:
            seconds = min(seconds, told.tend())
            if told.heard():  # it came with the answer to something else: there is nothing left to wait for
                return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            if told is not None and (number := told.fileno()) is not None:
                selector.register(number, selectors.EVENT_READ)
            selector.select(seconds)
        rang = self._bell.silence()
        return (told is not None and told.heard()) or rang
