"""Nodes of a Galera cluster: MariaDB servers that all take writes."""

from types import TracebackType
from typing import Final, Self

import pymysql

from tests.services.errors import ServiceMissing
from tests.services.mariadb import MariaDB
from tests.services.ports import free_port
from tests.services.programs import newest

_PROVIDERS: Final = ("/usr/lib/galera", "/usr/lib64/galera*", "/usr/lib/*/galera*")
_REMEDY: Final = "install it beside MariaDB (Debian: apt-get install galera-4 rsync)"
#: A node that stands still for a while, as on a busy machine, stays in the group; by default for five seconds.
_PATIENT: Final = ";evs.suspect_timeout=PT60S;evs.inactive_timeout=PT90S"


class GaleraNode(MariaDB):
    """One of the servers; the first founds the cluster, the others copy its state (rsync) as they start."""

    name = "galera"

    def __init__(self, provider: str, beside: "GaleraNode | None" = None) -> None:
        super().__init__()
        self._provider = provider
        self._beside = beside
        #: Of the group, and of the two ways in which a state is received.
        self.ports = tuple(free_port() for _ in range(3))

    def initialise(self) -> None:
        if self._beside is None:
            super().initialise()
            return
        self._data.mkdir()  # what it will hold comes from the other node
        self._own(self._data)

    def command(self) -> list[str]:
        group, increments, state = self.ports
        others = f"127.0.0.1:{self._beside.ports[0]}" if self._beside else ""
        provider = f"gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{increments};gcache.size=32M"
        provider += _PATIENT
        return [
            *super().command(),
            "--wsrep-on=ON",
            f"--wsrep-provider={self._provider}",
            f"--wsrep-provider-options=base_port={group};{provider}",
            f"--wsrep-cluster-address=gcomm://{others}",
            f"--wsrep-node-address=127.0.0.1:{group}",
            f"--wsrep-sst-receive-address=127.0.0.1:{state}",
            "--wsrep-sst-method=rsync",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def is_ready(self) -> bool:
        """It answers while it waits for the others' state, and refuses all but a few questions then."""
        try:
            return super().is_ready() and self.execute("SHOW STATUS LIKE 'wsrep_ready'") == (("wsrep_ready", "ON"),)
        except pymysql.err.Error:
            return False

    def execute(self, statement: str) -> tuple[tuple[object, ...], ...]:
        """What a connection of its own is answered."""
        with (
            pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return cursor.fetchall()


class Galera:
    """Two nodes; raises ``ServiceMissing`` where Galera is not installed."""

    def __init__(self) -> None:
        library = newest("libgalera_smm.so", _PROVIDERS)
        if library is None:
            raise ServiceMissing(f"Galera is not installed: {_REMEDY}")
        self.first = GaleraNode(str(library))
        self.second = GaleraNode(str(library), self.first)

    def __enter__(self) -> Self:
        self.first.start()
        try:
            self.second.start()
        except BaseException:
            self.first.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.second.stop()
        finally:
            self.first.stop()
