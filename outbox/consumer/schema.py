"""The consumer's tables: one row per effect, and the messages that wait for an operator."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from outbox.columns import MYSQL_FAMILY, ExactText, Instant, ascii_name, blob, row_id
from outbox.consumer.keys import STORED_KEY_BYTES
from outbox.message import TAG_BYTES, TOPIC_BYTES
from outbox.schema import REASON_LENGTH, metadata

CONSUMER_BYTES = 100
_HASH_BYTES = 32


def exact_bytes(length: int) -> TypeEngine[bytes]:
    """At most ``length`` bytes, compared as they are, short enough for MySQL to index."""
    return sa.LargeBinary(length).with_variant(mysql.VARBINARY(length), *MYSQL_FAMILY)


inbox = sa.Table(
    "outbox_inbox",
    metadata,
    # One effect per consumer and key. The consumer's name is logical: it survives a change of the broker's group.
    sa.Column("consumer", ExactText(CONSUMER_BYTES), primary_key=True),
    sa.Column("key", exact_bytes(STORED_KEY_BYTES), primary_key=True),
    sa.Column("topic", ExactText(TOPIC_BYTES), nullable=False),
    sa.Column("payload_hash", exact_bytes(_HASH_BYTES), nullable=False),
    sa.Column("received_at", Instant(), nullable=False),
    # NULL: claimed by a long handler whose effect is not durable. Who can lock the row may work, unless it has a lease.
    sa.Column("done_at", Instant()),
    # Names the owner of the lease: one more with each claim, so that an earlier owner's writes can be refused.
    sa.Column("token", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    sa.Column("lease_until", Instant()),
    sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
)

# Retention walks a consumer's rows from the oldest on.
sa.Index("ix_outbox_inbox_done", inbox.c.consumer, inbox.c.done_at)

parked = sa.Table(
    "outbox_parked",
    metadata,
    sa.Column("id", row_id(), sa.Identity(), primary_key=True, autoincrement=True),
    sa.Column("consumer", ExactText(CONSUMER_BYTES), nullable=False),
    # Of topic, unique id, tag and body: parking the same message again, after a crash, adds nothing.
    sa.Column("fingerprint", exact_bytes(_HASH_BYTES), nullable=False),
    sa.Column("topic", ExactText(TOPIC_BYTES), nullable=False),
    sa.Column("key", blob()),
    sa.Column("tag", ExactText(TAG_BYTES)),
    sa.Column("body", blob(), nullable=False),
    sa.Column("properties", sa.JSON(), nullable=False),
    sa.Column("unique_id", ascii_name(64), nullable=False),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("reason", sa.String(REASON_LENGTH), nullable=False),
    sa.Column("parked_at", Instant(), nullable=False),
    sa.UniqueConstraint("consumer", "fingerprint", name="uq_outbox_parked_fingerprint"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
)
