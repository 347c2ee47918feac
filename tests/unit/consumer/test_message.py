"""What a handler sees, and which handler sees it."""

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa

from outbox.consumer import Inbox, Message, Permanent
from outbox.consumer.subscriptions import Subscription, Subscriptions
from outbox.errors import SettingsError
from tests.unit.consumer.fakes import delivery


def test_a_message_carries_what_was_delivered() -> None:
    # Given a delivery of our own producer
    properties = {"outbox-key": "k", "outbox-content-type": "application/json", "UNIQ_KEY": "U", "trace": "t"}
    received = delivery(properties=properties, tag="paid", attempt=3, body=b'{"order": 1}')
    # When it becomes a message
    message = Message.of(received, "k")
    # Then everything is there, and nothing can be written
    assert (message.topic, message.key, message.tag, message.attempt) == ("payments", "k", "paid", 3)
    assert message.content_type == "application/json"
    assert message.headers == {"trace": "t"}
    assert message.json() == {"order": 1}
    with pytest.raises(TypeError):
        message.properties["trace"] = "other"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.key = "other"  # type: ignore[misc]


@pytest.mark.parametrize("body", [b"\xff", b"{", b""])
def test_a_body_that_is_no_json_is_permanent(body: bytes) -> None:
    with pytest.raises(Permanent, match="is not JSON"):
        Message.of(delivery(body=body), "k").json()


def ignore(*_: object) -> None:
    pass


def test_a_tagged_handler_goes_before_the_untagged_one() -> None:
    # Given handlers for one tag and for the rest of a topic, and for one tag of another
    subscriptions = Subscriptions()
    paid, rest, only = Subscription(ignore), Subscription(ignore), Subscription(ignore)
    subscriptions.add("payments", "paid", paid)
    subscriptions.add("payments", None, rest)
    subscriptions.add("orders", "new", only)
    # When deliveries come / Then each goes to its own
    assert subscriptions.of(delivery(tag="paid")) is paid
    assert subscriptions.of(delivery(tag="refunded")) is rest
    assert subscriptions.of(delivery(tag=None)) is rest
    assert subscriptions.of(delivery(topic="orders", tag="new")) is only
    assert subscriptions.of(delivery(topic="orders", tag="old")) is None
    assert subscriptions.topics == ("payments", "orders")


def test_a_second_handler_for_one_place_is_refused() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("payments", None, Subscription(ignore))
    with pytest.raises(SettingsError, match="there is one already"):
        subscriptions.add("payments", None, Subscription(ignore))


@pytest.mark.parametrize("function", [lambda message: message, lambda: None, lambda message, session, more: more])
def test_a_handler_that_cannot_be_called_is_refused_at_once(function: Callable[..., object]) -> None:
    # Given a function that takes no message and session; When it is registered; Then it is refused, by its topic
    inbox = Inbox(sa.create_engine("sqlite://"), consumer="stock")
    with pytest.raises(SettingsError, match=r"topic 'payments': takes .*; give it two arguments"):
        inbox.handler(topic="payments")(function)
    assert inbox.topics == ()


async def awaited(message: Message, session: object) -> None: ...


@pytest.mark.parametrize("function", [awaited, partial(awaited)])
def test_a_coroutine_over_a_plain_engine_is_refused_at_once(function: Callable[..., object]) -> None:
    # Given an engine over which nothing can be awaited; When a coroutine is registered; Then the remedies are named
    inbox = Inbox(sa.create_engine("sqlite://"), consumer="stock")
    with pytest.raises(SettingsError, match=r"handler awaited .*: give Inbox an AsyncEngine, or write a plain def"):
        inbox.handler(topic="payments")(function)
    assert inbox.topics == ()


def test_a_handler_may_take_its_two_arguments_in_any_way() -> None:
    inbox = Inbox(sa.create_engine("sqlite://"), consumer="stock")
    inbox.handler(topic="a")(lambda *both: both)
    inbox.handler(topic="b")(lambda message, session, more=0: more)
    inbox.handler(topic="c")(min)
    assert inbox.topics == ("a", "b", "c")
