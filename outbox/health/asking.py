"""What ``outbox health`` does: one question to a daemon of this host."""

from http.client import HTTPConnection, HTTPException
from typing import Final

from outbox.errors import SettingsError

#: Seconds for the answer; a probe that runs a command has a limit of its own.
_TIMEOUT: Final = 5.0
_ANY: Final = frozenset(("", "0.0.0.0", "::"))  # noqa: S104 -- to be told apart


def asked(host: str, port: int, path: str) -> tuple[int, str]:
    """Status and body; ``SettingsError`` where nobody answers there."""
    connection = HTTPConnection("127.0.0.1" if host in _ANY else host, port, timeout=_TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (OSError, HTTPException) as error:
        raise SettingsError(
            f"OUTBOX_HEALTH_PORT: no daemon answers at {connection.host}:{port}: {error}; is it running, on this port?"
        ) from error
    finally:
        connection.close()
