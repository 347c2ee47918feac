"""Passes under observation: each claim is a sign of life of the loop, each pass is work that must end."""

from collections.abc import Sequence

from outbox.health.pulse import Pulse
from outbox.store.attempt import Attempt
from relay.shipping import Pass, Stage


class ObservedPass(Pass):
    """As ``Pass``."""

    def __init__(self, stage: Stage, loop: Pulse, passes: Pulse) -> None:
        super().__init__(stage)
        self._loop = loop
        self._passes = passes

    def claim(self) -> tuple[list[Attempt], float]:
        """As ``Pass.claim``."""
        self._loop.beat()
        return super().claim()

    def ship(self, attempts: Sequence[Attempt], since: float) -> None:
        """As ``Pass.ship``."""
        with self._passes.busy():
            super().ship(attempts, since)
