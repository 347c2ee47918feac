"""What is known of one database's daemon: its loops, and what it needs from others."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outbox.clock import monotonic
from outbox.health.pulse import Life, Pulse, Sign

_UNKNOWN = "not known yet"
_STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that the daemon depends on, and since when (monotonic seconds) it has been so."""

    ok: bool
    reason: str
    since: float


class Vitals:
    """Thread-safe. Live: no loop is stalled. Ready: that, every loop runs, and every need is fulfilled."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._pulses: dict[str, Pulse] = {}
        self._needs: dict[str, Need] = {}
        self._lock = threading.Lock()
        self._stopping = False

    def pulse(self, name: str, patience: float, *, beats: bool = True) -> Pulse:
        """The pulse of a loop, made where it is asked for first."""
        with self._lock:
            if name not in self._pulses:
                self._pulses[name] = Pulse(patience, beats=beats, now=self._now)
            return self._pulses[name]

    def expect(self, *names: str) -> None:
        """Things that must be known to be well before the daemon is ready."""
        for name in names:
            self.lacks(name, _UNKNOWN)

    def has(self, name: str) -> bool:
        """A need is fulfilled; whether it was not until now."""
        return self._note(name, ok=True, reason="")

    def lacks(self, name: str, reason: str) -> bool:
        """A need is not fulfilled; whether it was until now."""
        return self._note(name, ok=False, reason=reason)

    def stop(self) -> None:
        """The daemon takes no new work from now on; it is not ready any more, but alive."""
        self._stopping = True

    def live(self) -> bool:
        """Whether no loop is stalled: one that is will not mend itself."""
        return all(sign.life is not Life.STALLED for sign in self.signs().values())

    def ready(self) -> bool:
        """Whether rows are shipped and checks answered at this moment."""
        return not self.faults()

    def faults(self) -> dict[str, str]:
        """What keeps the daemon from being ready, and why."""
        found = {name: need.reason for name, need in self.needs().items() if not need.ok}
        found |= {
            name: f"{sign.life} {sign.error}".strip()
            for name, sign in self.signs().items()
            if sign.life not in (Life.ALIVE, Life.STOPPED)
        }
        return found | ({"daemon": _STOPPING} if self._stopping else {})

    def signs(self) -> Mapping[str, Sign]:
        """The loops by name."""
        with self._lock:
            pulses = dict(self._pulses)
        return {name: pulse.sign() for name, pulse in pulses.items()}

    def needs(self) -> Mapping[str, Need]:
        """The needs by name."""
        with self._lock:
            return dict(self._needs)

    def as_json(self) -> dict[str, Any]:
        """Everything, as probes are told."""
        now = self._now()
        return {
            "live": self.live(),
            "ready": self.ready(),
            "needs": {
                name: {"ok": need.ok, "reason": need.reason, "for_seconds": round(now - need.since, 1)}
                for name, need in self.needs().items()
            },
            "loops": {name: asdict(sign) | {"silent": round(sign.silent, 1)} for name, sign in self.signs().items()},
        }

    def _note(self, name: str, *, ok: bool, reason: str) -> bool:
        with self._lock:
            before = self._needs.get(name)
            changed = before is None or before.ok != ok
            since = self._now() if before is None or changed else before.since
            self._needs[name] = Need(ok, reason, since)
            return changed
