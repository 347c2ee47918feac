"""A PostgreSQL server."""

import signal
from pathlib import Path
from typing import Final

import psycopg

from tests.services.programs import account, program
from tests.services.server import Server

#: Tests want speed and survive a killed process all the same: the operating system keeps what was written.
#: ``durable=True`` leaves these at the server's own, safe values.
_FAST: Final = {"fsync": "off", "full_page_writes": "off"}
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %d ",
}


class Postgres(Server):
    """A PostgreSQL server of the newest version installed; user ``postgres``, no password."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": ends sessions, writes a checkpoint
    abandon_signal = signal.SIGQUIT  # "immediate": gives its shared memory back, which SIGKILL would leave

    def __init__(self, *, durable: bool = False, **settings: str) -> None:
        """``settings`` are server settings, such as ``max_prepared_transactions="10"``."""
        super().__init__(account=account("postgres"))
        self._initdb = _program("initdb")
        self._settings = {**_SETTINGS, **({} if durable else _FAST), **settings}

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the maintenance database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def initialise(self) -> None:
        options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self.run([self._initdb, *options, "--pgdata", str(self._data)])

    def command(self) -> list[str]:
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        return [str(Path(self._initdb).with_name("postgres")), "-D", str(self._data), "-p", str(self.port), *settings]

    def is_ready(self) -> bool:
        try:
            with psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2) as connection:
                return connection.execute("SHOW data_directory").fetchone() == (str(self._data),)
        except psycopg.OperationalError:
            return False

    @property
    def _data(self) -> Path:
        return self.folder / "data"


def _program(name: str) -> str:
    return program(
        name,
        folders=("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin"),
        remedy="install PostgreSQL >= 13 (Debian: apt-get install postgresql; macOS: brew install postgresql)",
    )
