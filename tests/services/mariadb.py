"""A MariaDB server."""

from pathlib import Path
from typing import Final

import pymysql

from tests.services.programs import account, program
from tests.services.server import Server

_REMEDY: Final = "install MariaDB >= 10.6 (Debian: apt-get install mariadb-server; macOS: brew install mariadb)"
#: Log writes reach the operating system at each commit, so a killed process loses nothing; only a power cut would.
_FAST: Final = ("--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=0")
_OPTIONS: Final = (
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--character-set-server=utf8mb4",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--max-connections=100",
    "--performance-schema=0",
    "--skip-log-bin",
)


class MariaDB(Server):
    """A MariaDB server; user ``root``, no password."""

    name = "mariadb"

    def __init__(self, *, durable: bool = False, options: tuple[str, ...] = ()) -> None:
        """``options`` are command-line options of the server, such as ``("--lock-wait-timeout=5",)``."""
        super().__init__(account=account("mysql"))
        self._server = program("mariadbd", remedy=_REMEDY)
        self._install = program("mariadb-install-db", remedy=_REMEDY)
        self._options = (*_OPTIONS, *(() if durable else _FAST), *options)

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the system database."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/mysql?charset=utf8mb4"

    def initialise(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=32M"]
        self.run([self._install, "--no-defaults", *self._folders(), *options])

    def command(self) -> list[str]:
        files = (*self._folders(), f"--socket={self.folder}/sock", f"--pid-file={self.folder}/pid")
        return [self._server, "--no-defaults", *files, f"--port={self.port}", *self._options]

    def is_ready(self) -> bool:
        try:
            with (
                pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=2) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SELECT @@datadir")
                return bool(cursor.fetchone() == (f"{self._data}/",))
        except pymysql.err.OperationalError:
            return False

    def _folders(self) -> tuple[str, str]:
        """A server that starts deletes the temporary tables in its tmpdir: a shared one would take others' away."""
        return f"--datadir={self._data}", f"--tmpdir={self.folder}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"
