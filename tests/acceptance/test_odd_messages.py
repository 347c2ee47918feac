"""What is hard to carry is carried whole, or refused by name when it is added."""

from typing import Any

import pytest

from outbox import InvalidMessage, Outbox
from outbox.lifecycle import State
from outbox.message import BODY_BYTES
from tests.acceptance.deployment import Deployment, patient

pytestmark = patient

producer = Outbox(origin="shop")

CARRIED: dict[str, bytes] = {
    "every byte": bytes(range(256)) * 4,
    "zero bytes only": b"\x00" * 1000,
    "separators \\x01 \\x02 in the body": b"a\x01b\x02c",
    "the largest body": b"x" * BODY_BYTES,
    "ключ 键 🔑": b"{}",
    "\"quoted\" 'twice'; --": b"{}",
    "k" * 255: b"{}",
    " outer and  inner  blanks ": b"{}",
}


def test_odd_messages_arrive_unchanged(deployment: Deployment) -> None:
    # Given bodies and keys that other tools stumble over
    with deployment.database.transaction() as connection:
        for key, body in CARRIED.items():
            producer.add(connection, topic=deployment.topic, key=key, payload=body)
    # When a relay ships them
    deployment.outbox("relay")
    deployment.wait("every row to be delivered", deployment.finished)
    # Then each arrives once, byte for byte
    assert sorted(deployment.arrived(len(CARRIED))) == sorted(CARRIED)
    seen = deployment.messages()
    assert {message.key: message.body for message in seen} == CARRIED


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("payload", {"key": "k", "payload": b"x" * (BODY_BYTES + 1)}),
        ("payload", {"key": "k", "payload": b""}),
        ("key", {"key": "a\x01b", "payload": b"{}"}),
        ("key", {"key": "a\x02b", "payload": b"{}"}),
        ("key", {"key": "k" * 300, "payload": b"{}"}),
        ("key", {"key": "  ", "payload": b"{}"}),
    ],
)
def test_what_no_broker_carries_is_refused_by_name(deployment: Deployment, field: str, message: dict[str, Any]) -> None:
    with (
        deployment.database.transaction() as connection,
        pytest.raises(InvalidMessage, match=rf"^{field}: ") as refused,
    ):
        producer.add(connection, topic=deployment.topic, **message)
    assert refused.value.field == field
    assert deployment.states()[State.PENDING] == 0


def test_a_topic_that_does_not_exist_stops_nobody_else(deployment: Deployment) -> None:
    # Given rows for a topic that no broker has, before one for a topic that is there
    with deployment.database.transaction() as connection:
        lost = producer.add(connection, topic="no-such-topic-anywhere", key="1", payload=b"{}")
        producer.add(connection, topic=deployment.topic, key="2", payload=b"{}")
    # When a relay with a small budget runs
    deployment.outbox("relay", OUTBOX_FAILURE_BUDGET="2", OUTBOX_BACKOFF_FIRST="0.2", OUTBOX_UNKNOWN_DELAY="0.2")
    if deployment.makes_topics:
        deployment.wait("both rows to be delivered", deployment.finished)
        return
    # Then the one is delivered; the other is tried more often than the budget, is not charged, and says why it waits
    deployment.wait("the other one's message", lambda: deployment.visible() == ["2"])
    deployment.wait("more tries than the budget", lambda: shown(deployment, lost)["attempts"] > 2)
    deployment.wait("the reason", lambda: "no-such-topic-anywhere" in (shown(deployment, lost)["reason"] or ""))
    row = shown(deployment, lost)
    assert (row["state"], row["failures"]) == (State.PENDING, 0)


def shown(deployment: Deployment, row_id: int) -> dict[str, Any]:
    """A row that must be there."""
    row = deployment.operations.shown(row_id)
    assert row is not None
    return row
