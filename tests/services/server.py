"""One server process on a throw-away folder: start, crash, restart, stop."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.services import reaper
from tests.services.errors import ServiceFailed
from tests.services.ports import free_port

#: Seconds; generous, since the machine may be shared.
START_DEADLINE = 300.0
STOP_DEADLINE = 120.0
#: Starts with a port of their own: a port can be taken between the choice and the server's bind.
ATTEMPTS = 3


class Server(ABC):
    """A server process that is ours: it listens on loopback only and leaves nothing behind."""

    name: str
    #: The server's own word for "end now, in good order".
    stop_signal: signal.Signals = signal.SIGTERM
    #: What the reaper sends, when nobody needs the folder any more.
    abandon_signal: signal.Signals = signal.SIGTERM

    def __init__(self, *, account: str | None = None) -> None:
        self.account = account
        self.port = 0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[str] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect; the same after ``restart``."""

    @abstractmethod
    def command(self) -> list[str]:
        """The server's command line, in the foreground, on ``port`` and ``folder``."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it is this server that answers a client: a stranger may have been faster at its port."""

    def initialise(self) -> None:  # noqa: B027 -- nothing to lay is a complete answer
        """Lay the data folder; runs once, before the first start."""

    @property
    def folder(self) -> Path:
        """The server's throw-away folder; it belongs to ``account``."""
        if self._folder is None:
            raise ServiceFailed(f"{self.name} is not started: call start() or use it in a with statement")
        return self._folder

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ServiceFailed(f"{self.name} is not running: call start() or restart()")
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the server and its set-up programs print."""
        return self.folder / "server.log"

    def start(self) -> Self:
        """Lay the folder, start on a free port and return once the server answers."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"outbox-{self.name}-"))
        try:
            self._reaper = self._start_reaper()
            self._own(self._folder)
            self.initialise()
            self._start_on_free_port()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """Crash: SIGKILL the server and all its children at one moment, as a power cut would; the folder stays."""
        server = psutil.Process(self.pid)
        server.suspend()  # no new child between the count and the kill
        family = [server, *server.children(recursive=True)]
        for process in family:
            process.kill()
        self._wait_until_gone(family)

    def halt(self) -> None:
        """End the server in good order; the folder stays."""
        family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        os.kill(self.pid, self.stop_signal)
        self._wait_until_gone(family)

    def restart(self) -> Self:
        """Come back on the same folder and port, after ``kill``, ``halt`` or a crash, or of a running server."""
        if self._is_running():
            self.halt()
        self._launch()
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """End the server and remove its folder; to stop twice is fine."""
        try:
            if self._is_running():
                self.halt()
        finally:
            self._dismiss_reaper()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, command: list[str]) -> None:
        """Run a set-up program under the server's account; its output goes to the log."""
        if (code := self._popen(command).wait()) != 0:
            raise ServiceFailed(f"{command[0]} ended with {code}; its log ends with:\n{self._log_tail()}")

    def _own(self, path: Path) -> None:
        """Give a path to the account that the server runs under."""
        if self.account is not None:
            shutil.chown(path, self.account)

    def _start_on_free_port(self) -> None:
        """Try another port where the server ends at once: the last one may have been taken meanwhile."""
        for _ in range(ATTEMPTS - 1):
            try:
                self._start_on(free_port())
            except ServiceFailed:
                if self._is_running():
                    raise
            else:
                return
        self._start_on(free_port())

    def _start_on(self, port: int) -> None:
        self.port = port
        self._launch()
        self._wait_until_ready()

    def _launch(self) -> None:
        self._process = self._popen(self.command())
        self._tell_reaper(f"watch {self._process.pid}")

    def _popen(self, command: list[str]) -> "subprocess.Popen[bytes]":
        """Start in a session of its own: an interrupt at the terminal is for the owner alone."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self.account,
                group=None if self.account is None else pwd.getpwnam(self.account).pw_gid,
                extra_groups=None if self.account is None else [],
                start_new_session=True,
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE
        while time.monotonic() < deadline:
            if not self._is_running():
                raise ServiceFailed(f"{self.name} ended while starting; its log ends with:\n{self._log_tail()}")
            if self.is_ready():
                return
            time.sleep(0.02)
        raise ServiceFailed(
            f"{self.name} is not ready after {START_DEADLINE} s; its log ends with:\n{self._log_tail()}"
        )

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _wait_until_gone(self, family: list[psutil.Process]) -> None:
        """Wait until the server has ended, and SIGKILL what does not end in time."""
        assert self._process is not None
        _, alive = psutil.wait_procs(family, timeout=STOP_DEADLINE)
        for process in alive:
            process.kill()
        self._process.wait(timeout=STOP_DEADLINE)
        self._process = None
        self._tell_reaper("forget")
        if alive:
            raise ServiceFailed(f"{self.name} had to be killed; its log ends with:\n{self._log_tail()}")

    def _start_reaper(self) -> "subprocess.Popen[str]":
        """Start the reaper outside our process group, where a signal for the test run does not reach it."""
        started = subprocess.Popen(
            [sys.executable, "-P", reaper.__file__, str(self.folder), str(int(self.abandon_signal))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert started.stdout is not None
        if not started.stdout.readline():
            started.communicate()
            raise ServiceFailed(
                f"the reaper of {self.name} ended at once with {started.returncode}: see standard error"
            )
        return started

    def _tell_reaper(self, line: str) -> None:
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(line + "\n")
        self._reaper.stdin.flush()

    def _dismiss_reaper(self) -> None:
        """Close the pipe: the reaper removes the folder and ends."""
        if self._reaper is None:
            return
        self._reaper.communicate(timeout=STOP_DEADLINE)
        self._reaper = None

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        # A set-up program may end its log with advice; what went wrong stands before it.
        return "\n".join([line for line in lines[:-20] if "ERROR" in line] + lines[-20:])
