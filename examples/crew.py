"""The processes of an example: started, killed at bad moments, started again."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox.clock import monotonic
from outbox.settings import Settings

#: What a daemon logs once it works.
AT_WORK = (" consuming ", " listening groups=")
#: Seconds; a machine may be busy.
PATIENCE = 240.0

#: Short leases, so that what a killed process held is repaired while one watches. The defaults suit production.
QUICK: Mapping[str, Any] = {
    "lease": 6.0,
    "send_timeout": 3.0,
    "commit_window": 2.0,
    "commit_grace": 2.0,
    "reconcile_every": 0.5,
    "heartbeat_every": 1.0,
    "check_timeout": 1.0,
    "check_interval": 1.0,
    "invisible": 4.0,
}
#: Where the crew works.
PLACES = ("database_url", "broker_url", "origin")
#: Seconds to watch for a late second effect: longer than it takes for what a killed consumer held to come again.
QUIET = 6.0


@dataclass(slots=True)
class _Member:
    command: tuple[str, ...]
    process: "subprocess.Popen[bytes]"
    log: Path
    #: Where the log of this process begins.
    begin: int


class Crew:
    """Processes by name; their logs lie in ``folder``. Use it in a ``with``: it ends exactly what it started."""

    def __init__(self, folder: Path, settings: Settings, **environment: str) -> None:
        self._folder = folder
        named = {f"OUTBOX_{name.upper()}": str(getattr(settings, name)) for name in (*QUICK, *PLACES)}
        self._environment = {**os.environ, **named, **environment}
        self._members: dict[str, _Member] = {}
        self.kills = 0

    def start(self, name: str, *command: str) -> None:
        """Starts ``outbox COMMAND``."""
        log = self._folder / f"{name}.log"
        with log.open("ab") as file:
            begin = file.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "outbox", *command], env=self._environment, stdout=file, stderr=file
            )
        self._members[name] = _Member(command, process, log, begin)

    def strike(self, name: str) -> None:
        """SIGKILL to a process that is at work; it is started again at once."""
        self.wait(f"{name} to be at work", lambda: self._at_work(name))
        member = self._members[name]
        member.process.kill()
        member.process.wait()
        self.kills += 1
        self.start(name, *member.command)

    def wait_at_work(self) -> None:
        """Returns once all have started."""
        for name in self._members:
            self.wait(f"{name} to be at work", lambda name=name: self._at_work(name))  # type: ignore[misc]

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Waits for a condition; ``SystemExit`` says where to look if it takes too long or a process has ended."""
        until = monotonic() + PATIENCE
        while not done():
            if fallen := [name for name, member in self._members.items() if member.process.poll() is not None]:
                raise SystemExit(f"{', '.join(fallen)}: ended by itself; see the logs in {self._folder}")
            if monotonic() > until:
                raise SystemExit(f"not within {PATIENCE:.0f} s: {what}; see the logs in {self._folder}")
            time.sleep(0.1)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members.values():
            member.process.terminate()
        for member in self._members.values():
            try:
                member.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    def _at_work(self, name: str) -> bool:
        member = self._members[name]
        with member.log.open("rb") as log:
            log.seek(member.begin)
            said = log.read().decode(errors="replace")
        return any(words in said for words in AT_WORK)
