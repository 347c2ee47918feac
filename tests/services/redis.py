"""A Redis server."""

import redis

from tests.services.programs import program
from tests.services.server import Server


class Redis(Server):
    """A Redis server without persistence, which forgets all when it ends; ``durable=True`` syncs each write."""

    name = "redis"

    def __init__(self, *, durable: bool = False, options: tuple[str, ...] = ()) -> None:
        """``options`` are command-line options of the server, such as ``("--maxmemory", "1mb")``."""
        super().__init__()
        self._server = program(
            "redis-server",
            "valkey-server",
            remedy="install Redis >= 6.2 (Debian: apt-get install redis-server; macOS: brew install redis)",
        )
        self._options = (*(("--appendonly", "yes", "--appendfsync", "always") if durable else ()), *options)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        return [self._server, *where, "--save", "", "--daemonize", "no", *self._options]

    def is_ready(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_connect_timeout=2, socket_timeout=2)
        try:
            return bool(client.info("server")["process_id"] == self.pid)
        except (redis.ConnectionError, redis.TimeoutError):  # BusyLoadingError is a ConnectionError
            return False
        finally:
            client.close()
