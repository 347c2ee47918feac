"""Whose a message is: the name of its service, which the producer group is called by, and the identity of its database.

``OUTBOX_ORIGIN`` is the service's name; a message carries both, as ``service/database``.
"""

from outbox.errors import InvalidMessage


def origin_of(service: str, database_id: str) -> str:
    """Whose half this is: the service's name and the random identity of its database. Both must match."""
    return f"{service}/{database_id}"


def parts_of(origin: str) -> tuple[str, str]:
    """The service's name and the database's identity; the latter is empty where there is none."""
    service, _, database_id = origin.partition("/")
    return service, database_id


def checked_origin(origin: str) -> str:
    """The service's name, or ``InvalidMessage`` if it cannot travel as part of a property and a group name."""
    if not origin or len(origin) > 100 or not all(c.isascii() and (c.isalnum() or c in "-_") for c in origin):
        raise InvalidMessage(
            "origin", f"{origin!r}: 1 to 100 letters, digits, '-' and '_' (it is part of a group name)"
        )
    return origin
