"""The parking table: messages that no retry can help, kept until an operator deals with them."""

import math
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from outbox.brokers.source import Delivery
from outbox.consumer.drivers import begun
from outbox.consumer.keys import payload_hash
from outbox.consumer.schema import parked
from outbox.message import TAG_BYTES
from outbox.schema import REASON_LENGTH
from outbox.store.clock import utc_now

_UNIQUE_ID_LENGTH = 64


def park(engine: Engine, consumer: str, delivery: Delivery, key: str | None, reason: str) -> None:
    """Stores the delivery, unless it was stored before; durable when this returns."""
    fingerprint = _fingerprint(delivery)
    try:
        with begun(engine) as connection:
            if not _is_parked(connection, consumer, fingerprint):
                connection.execute(parked.insert().values(**_columns(consumer, fingerprint, delivery, key, reason)))
            connection.commit()
    except IntegrityError:
        with begun(engine) as connection:
            if not _is_parked(connection, consumer, fingerprint):
                raise


def listed(engine: Engine, consumer: str, limit: int, after_id: int = 0) -> list[dict[str, Any]]:
    """Up to ``limit`` parked messages in the order of their ids, from ``after_id`` on (exclusive), without bodies."""
    columns = [column for column in parked.c if column.name not in ("body", "fingerprint", "consumer")]
    query = sa.select(*columns).where(parked.c.consumer == consumer, parked.c.id > after_id).order_by(parked.c.id)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(query.limit(limit)).mappings()]


def delivery_of(engine: Engine, consumer: str, parked_id: int) -> Delivery | None:
    """A parked message as it came, for another try; None: there is none. Its age is forgiven: somebody has decided."""
    with engine.connect() as connection:
        query = sa.select(parked).where(parked.c.consumer == consumer, parked.c.id == parked_id)
        row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    own = () if row["key"] is None else (bytes(row["key"]).decode("utf-8", "surrogatepass"),)
    properties = dict(row["properties"])
    return Delivery(
        topic=row["topic"],
        body=bytes(row["body"]),
        unique_id=row["unique_id"],
        keys=tuple(properties["KEYS"].split()) if "KEYS" in properties else own,
        tag=properties.get("TAGS", row["tag"]),
        properties=properties,
        attempt=row["attempt"] + 1,
        receipt="",
        invisible_until=math.inf,
    )


def remove(engine: Engine, consumer: str, parked_id: int) -> bool:
    """Deletes a parked message; whether there was one."""
    with engine.begin() as connection:
        gone = connection.execute(parked.delete().where(parked.c.consumer == consumer, parked.c.id == parked_id))
        return gone.rowcount == 1


def _columns(consumer: str, fingerprint: bytes, delivery: Delivery, key: str | None, reason: str) -> dict[str, object]:
    return {
        "consumer": consumer,
        "fingerprint": fingerprint,
        "topic": delivery.topic,
        "key": None if key is None else key.encode("utf-8", "surrogatepass"),
        # The tag as it is stays among the properties.
        "tag": None if delivery.tag is None else _text(delivery.tag).encode()[:TAG_BYTES].decode(errors="ignore"),
        "body": delivery.body,
        "properties": {_encodable(name): _encodable(value) for name, value in delivery.properties.items()},
        "unique_id": _text(delivery.unique_id).encode("ascii", "backslashreplace").decode()[:_UNIQUE_ID_LENGTH],
        "attempt": delivery.attempt,
        "reason": _text(reason)[:REASON_LENGTH],
        "parked_at": utc_now(),
    }


def _text(text: str) -> str:
    """What every database takes: foreign messages, and errors about them, may hold anything."""
    return _encodable(text).replace("\x00", "\\x00")


def _encodable(text: str) -> str:
    """Bytes that are no UTF-8 are spelt out: MariaDB refuses JSON with a surrogate that stands alone."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_parked(connection: Connection, consumer: str, fingerprint: bytes) -> bool:
    same = sa.and_(parked.c.consumer == consumer, parked.c.fingerprint == fingerprint)
    return connection.execute(sa.select(parked.c.id).where(same)).first() is not None


def _fingerprint(delivery: Delivery) -> bytes:
    names = f"{delivery.topic}\x00{delivery.unique_id}\x00".encode("utf-8", "surrogatepass")
    return sha256(names + payload_hash(delivery.tag, delivery.body)).digest()
