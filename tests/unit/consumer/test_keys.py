"""Which key a message has, and how it is stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.brokers.source import Delivery
from outbox.consumer import header
from outbox.consumer.keys import STORED_KEY_BYTES, key_of, payload_hash, stored_key
from tests.unit.consumer.fakes import delivery


def test_the_first_source_of_a_key_that_is_there_wins() -> None:
    # Given messages that carry fewer and fewer keys / When the key is looked for / Then the order is the documented one
    everything = {"outbox-key": "ours", "order": "configured"}
    assert key_of(delivery(properties=everything, keys=("k",)), header("order"), message_id=True) == "ours"
    assert key_of(delivery(properties={"order": "o"}, keys=("k",)), header("order"), message_id=True) == "o"
    assert key_of(delivery(keys=("k",)), header("order"), message_id=True) == "k"
    assert key_of(delivery(keys=("k", "l"), unique_id="U"), header("order"), message_id=True) == "U"


def test_where_our_own_key_is_there_no_other_is_looked_for() -> None:
    # Given an extractor that knows only the messages of another producer
    def foreign(received: Delivery) -> str:
        return received.properties["order"]

    assert key_of(delivery(properties={"outbox-key": "ours"}), foreign, message_id=False) == "ours"
    with pytest.raises(KeyError):
        key_of(delivery(properties={"outbox-key": " "}), foreign, message_id=False)


def test_without_a_usable_key_there_is_none() -> None:
    # Given no KEYS, several KEYS, blank ones / When the key is looked for / Then nothing is made up
    assert key_of(delivery(keys=()), None, message_id=False) is None
    assert key_of(delivery(keys=("a", "b")), None, message_id=False) is None
    assert key_of(delivery(keys=("a", "a")), None, message_id=False) is None
    assert key_of(delivery(keys=(), properties={"outbox-key": " \t", "x": ""}), header("x"), message_id=False) is None


def test_our_own_key_may_hold_blanks_that_part_keys() -> None:
    # Given a key with an inner blank, which the broker splits / When it is looked for / Then it is whole
    received = delivery(properties={"outbox-key": "order 1"}, keys=("order", "1"))
    assert key_of(received, None, message_id=False) == "order 1"


@pytest.mark.parametrize(
    ("one", "other"), [("A1", "a1"), ("a1", "a1 "), ("\u00e9", "e\u0301"), ("x" * 300, "x" * 301), ("1", "1\n")]
)
def test_keys_that_look_alike_are_stored_apart(one: str, other: str) -> None:
    assert stored_key(one) != stored_key(other)


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_two_keys_share_no_stored_form_and_every_form_fits(one: str, other: str) -> None:
    assert (stored_key(one) == stored_key(other)) is (one == other)
    assert len(stored_key(one)) <= STORED_KEY_BYTES


def test_a_key_cannot_pose_as_the_hash_of_another() -> None:
    # Given a long key, and a key that spells its stored form / When both are stored / Then they differ
    long = "x" * 300
    assert stored_key(stored_key(long).decode()) != stored_key(long)


def test_tag_and_body_both_count_as_payload() -> None:
    hashes = {payload_hash(None, b"a"), payload_hash(None, b"b"), payload_hash("t", b"a"), payload_hash("ta", b"")}
    assert len(hashes) == 4
