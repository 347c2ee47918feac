"""The name of a producing service, which its messages carry and its producer group is called by."""

from outbox.errors import InvalidMessage


def checked_origin(origin: str) -> str:
    """The origin, or ``InvalidMessage`` if it cannot travel as part of a property and a group name."""
    if not origin or len(origin) > 100 or not all(c.isascii() and (c.isalnum() or c in "-_") for c in origin):
        raise InvalidMessage(
            "origin", f"{origin!r}: 1 to 100 letters, digits, '-' and '_' (it is part of a group name)"
        )
    return origin
