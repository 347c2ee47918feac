"""Keeps a log readable, and its disk free, where the same thing happens to very many rows."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from outbox.clock import monotonic

#: Level of the lines of a kind, and the words that tell it from others.
Kind = tuple[int, str]

#: Seconds for which lines of one kind are counted together.
SECONDS: Final = 10.0
#: Kinds that are told apart.
_KINDS: Final = 1000


@dataclass(slots=True)
class _Count:
    began: float
    said: int = 0
    left_out: int = 0


class Flood:
    """Lets the first lines of a kind by, and counts the others; thread-safe."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._counts: dict[Kind, _Count] = {}
        self._lock = threading.Lock()

    def admits(self, kind: Kind, most: int) -> int | None:
        """Whether a line of this kind is said; None: it is not, since ``most`` were said within ``SECONDS``. A number:
        it is, after so many were left out."""
        now = self._now()
        with self._lock:
            count = self._counts.get(kind)
            if count is None or now >= count.began + SECONDS:
                if len(self._counts) >= _KINDS:
                    self._counts.clear()  # topics and reasons have no end; better a few lines more than all of memory
                self._counts[kind] = _Count(now, said=1)
                return 0 if count is None else count.left_out
            if count.said < most:
                count.said += 1
                return 0
            count.left_out += 1
            return None

    def ended(self) -> Mapping[Kind, int]:
        """How many lines were left out, once, of each kind that has not come again for as long as they were counted:
        where it does, its next line says so."""
        now = self._now()
        with self._lock:
            over = {kind: count for kind, count in self._counts.items() if now >= count.began + 2 * SECONDS}
            for kind in over:
                del self._counts[kind]
        return {kind: count.left_out for kind, count in over.items() if count.left_out}
