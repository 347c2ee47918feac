"""The processes under fire: each is started again when it is dead, and none may end by itself."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil

from outbox import faults
from tests.acceptance.deployment import Deployment, Seen

#: Several passes for a batch; short leases, but a window in which a busy machine gets its look-ups done. The grace is
#: longer than a COMMIT waits in the broker's queue, and than a process stands still: later ones make second messages.
SETTINGS: Final = {
    "OUTBOX_ROWS_PER_PASS": "50",
    "OUTBOX_LEASE": "8",
    "OUTBOX_SEND_TIMEOUT": "3",
    "OUTBOX_COMMIT_WINDOW": "3",
    "OUTBOX_COMMIT_GRACE": "6",
    "OUTBOX_UNKNOWN_DELAY": "1",
    "OUTBOX_OUTAGE_DELAY_MOST": "2",
}
#: Seconds after which any lease given before has run out.
LEASES_OVER: Final = 10.0
CONSUMER: Final = ("consume", "tests.acceptance.shop:inbox")
#: Seconds in which a process has started, on a machine that starts many at once.
STARTED: Final = 180.0
COMMANDS: Final = {
    "relay-1": ("relay",),
    "relay-2": ("relay",),
    "checkback-1": ("checkback",),
    "checkback-2": ("checkback",),
    "consumer": CONSUMER,
}
RELAYS: Final = ("relay-1", "relay-2")
CHECKBACKS: Final = ("checkback-1", "checkback-2")


class Fleet(Deployment):
    """Two relays, two check-back processes, a consumer, and a producer for each batch of orders."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        broker_url: str,
        topic: str,
        visible: Callable[[], list[Seen]],
    ) -> None:
        super().__init__(folder, database_url, broker_url, topic, visible)
        self._shipping: Mapping[str, str] = {}
        #: Who ended otherwise than by SIGKILL, with exit code and last words: there should be none.
        self.fallen: list[str] = []
        self._crew: dict[str, subprocess.Popen[bytes]] = {}
        self._batch: tuple[str, str] | None = None

    def ship_through(self, broker_url: str, settings: Mapping[str, str]) -> None:
        """Relays and check-back processes use another transport than the consumer from now on."""
        self._shipping = {**settings, "OUTBOX_BROKER_URL": broker_url}

    def launch(self, role: str, *arguments: str, fault: str = "", **environment: str) -> None:
        """Starts a role; a process that still plays it is killed before. ``fault`` arms a point."""
        self.kill(role)
        consumes = COMMANDS[role] is CONSUMER
        group = ("--group", f"shop-{self.topic}") if consumes else ()
        settings = {**SETTINGS, **({} if consumes else self._shipping), **environment}
        self._crew[role] = self.outbox(*COMMANDS[role], *group, *arguments, fault=fault, **settings)

    def late(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts an ``outbox`` process of ``tests.crash.late``."""
        return self._start(["-m", "tests.crash.late", *arguments], {**SETTINGS, **environment})

    def enlist(self, role: str, process: subprocess.Popen[bytes]) -> None:
        """Lets a process that was started otherwise play a role; one that still plays it is killed before."""
        self.kill(role)
        self._crew[role] = process

    def kill(self, role: str) -> None:
        """SIGKILL, to a stopped process as well."""
        if role in self._crew:
            self._crew[role].kill()
            self._note_end(role, self._crew.pop(role))

    def freeze(self, role: str) -> None:
        """SIGSTOP."""
        self._crew[role].send_signal(signal.SIGSTOP)

    def thaw(self, role: str) -> None:
        """SIGCONT."""
        self._crew[role].send_signal(signal.SIGCONT)

    def dead(self, role: str) -> bool:
        """Whether the role's process has ended."""
        return self._crew[role].poll() is not None

    def frozen(self, role: str) -> bool:
        """Whether the role's process is stopped."""
        return not self.dead(role) and psutil.Process(self._crew[role].pid).status() == psutil.STATUS_STOPPED

    def comes_to(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition holds within so many seconds."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def revive(self) -> None:
        """Starts every role that nobody plays, and returns once all are at work."""
        self.wait("all processes to be at work", self._all_at_work, STARTED)

    def write(self, first: int, last: int) -> None:
        """Starts to write a batch of orders."""
        self._batch = (str(first), str(last))
        self._start_batch()

    def kill_producer(self) -> None:
        """SIGKILL."""
        self._crew["producer"].kill()

    def producer_ended(self) -> bool:
        """Whether it has written its batch, or died."""
        return self.dead("producer")

    def rearm_producer(self, fault: str) -> None:
        """Kills it and starts the batch again with a point armed; what is committed stays."""
        self.kill("producer")
        self._start_batch(fault)

    def finish_batch(self, deadline: float) -> None:
        """Waits until the batch is written, by one producer after another."""
        self.wait("the batch to be written", self._written, deadline)
        del self._crew["producer"]

    def _all_at_work(self) -> bool:
        """Also starts again who ended meanwhile; those who ended by themselves are noted."""
        for role in COMMANDS:
            if role in self._crew and self.dead(role):
                self._note_end(role, self._crew.pop(role))
            if role not in self._crew:
                self.launch(role)
        return all(map(self._at_work, COMMANDS))

    def _at_work(self, role: str) -> bool:
        """By its log: relays and check-back processes listen for checks, the consumer consumes."""
        return any(word in self.said(self._crew[role]) for word in (" listening groups=", " consuming "))

    def _start_batch(self, fault: str = "") -> None:
        assert self._batch is not None
        armed = {faults.VARIABLE: fault} if fault else {}
        self._crew["producer"] = self._start(["-m", "tests.crash.producer", *self._batch], armed)

    def _written(self) -> bool:
        code = self._crew["producer"].poll()
        if code in (None, 0):
            return code == 0
        self._note_end("producer", self._crew["producer"])
        self._start_batch()
        return False

    def _note_end(self, role: str, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != -signal.SIGKILL:
            self.fallen.append(f"{role} ended with {process.returncode}: {self.said(process)[-1000:]}")
