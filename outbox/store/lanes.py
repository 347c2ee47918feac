"""Lanes: rows of one topic and one lane become visible one after another, in the order of their ids.

A row stands in its lane from the insert until it ends (``outbox.open_lane``); the one with the lowest id is the lane's
head, and only the head is ever shipped.
"""

import zlib
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from outbox.columns import MYSQL_FAMILY

#: PostgreSQL: the first half of the key of our advisory locks; "lane" in ASCII.
_PRODUCERS: Final = 0x6C616E65
#: Producers of lanes that share a slot wait for each other; on MariaDB and MySQL each slot in use is a row for ever.
_PRODUCER_SLOTS: Final = 65_536

_ADVISORY: Final = sa.text("SELECT pg_advisory_xact_lock(:purpose, :slot)")
#: An exclusive lock on the slot's row, whether it is there already or not, and nothing written if it is.
_SLOT: Final = sa.text("INSERT INTO outbox_lane (slot) VALUES (:slot) ON DUPLICATE KEY UPDATE slot = slot")


def lane_key(topic: str, lane: str) -> str:
    """The lane's name within the whole outbox: a lane belongs to a topic. No topic holds a slash."""
    return f"{topic}/{lane}"


def line_up(connection: Connection, key: str) -> None:
    """Waits until no other transaction adds to the lane, and keeps them waiting until this one ends.

    To be called before the insert draws its id: then the order of ids in the lane is the order of commits. SQLite has
    one writer at a time, and draws ids under the lock of that writer: nothing to do.
    """
    hashed = zlib.crc32(key.encode())
    if connection.dialect.name == "postgresql":
        connection.execute(_ADVISORY, {"purpose": _PRODUCERS, "slot": hashed & 0x7FFFFFFF})
    elif connection.dialect.name in MYSQL_FAMILY:
        connection.execute(_SLOT, {"slot": hashed % _PRODUCER_SLOTS})
