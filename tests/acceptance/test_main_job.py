"""One business fact = one message = one effect, whatever crashes in between."""

from collections import Counter

from outbox.lifecycle import State
from tests.acceptance.deployment import DEADLINE, Deployment, patient

pytestmark = patient

ORDERS = 2000
#: So that exactly one pass is in hand when a relay dies; small, since the broker asks about each half of it by itself.
IN_HAND = 64
ONE_PASS = {"OUTBOX_PASSES": "1", "OUTBOX_ROWS_PER_PASS": str(IN_HAND)}
#: And the whole of it, where a broker that stands still for a moment would cost a pass its last rows: they may be slow.
WHOLE_PASS = {**ONE_PASS, "OUTBOX_SEND_TIMEOUT": "10", "OUTBOX_LEASE": "13"}
#: For a relay whose leases nobody waits for. Sends that are given up on a busy machine make halves in vain, ever more.
PATIENT = {"OUTBOX_SEND_TIMEOUT": "20", "OUTBOX_COMMIT_WINDOW": "10", "OUTBOX_LEASE": "35"}


def assert_exactly_once(deployment: Deployment) -> None:
    committed = Counter(deployment.committed())
    assert committed
    assert Counter(deployment.arrived(committed.total())) == committed
    states = deployment.states()
    assert states[State.DELIVERED] == committed.total()
    assert sum(states.values()) == committed.total()


def test_every_committed_order_has_one_message_and_one_effect(deployment: Deployment) -> None:
    # Given a relay and a consumer at work
    deployment.outbox("relay", **PATIENT)
    deployment.consume()
    # When a service writes orders, a tenth of them rolled back
    producer = deployment.produce(ORDERS)
    deployment.wait("the producer to finish", lambda: producer.poll() is not None, 3 * DEADLINE)
    assert producer.returncode == 0
    # Then
    assert len(deployment.committed()) == ORDERS * 9 // 10
    deployment.wait("every row to be delivered", deployment.finished)
    deployment.wait("every effect", lambda: len(deployment.effects()) >= len(deployment.committed()))
    assert_exactly_once(deployment)
    assert Counter(deployment.effects()) == Counter(deployment.committed())


def test_a_relay_that_dies_before_it_decides_is_survived_by_the_check_back(deployment: Deployment) -> None:
    # Given orders, and a relay that dies once its halves are stored
    producer = deployment.produce(100)
    deployment.wait("the producer to finish", lambda: producer.poll() is not None)
    relay = deployment.outbox("relay", "--no-checkback", fault="relay.before_decide=kill", **WHOLE_PASS)
    deployment.wait("the relay to be killed", lambda: deployment.killed(relay))
    assert deployment.visible() == []
    assert deployment.states()[State.COMMITTED] == 0
    # When nothing but a check-back process runs
    deployment.outbox("checkback")
    # Then it brings out what the relay had in hand, and no more (a row without the broker's word waits for a relay)
    assert len(deployment.arrived(IN_HAND)) == IN_HAND
    assert deployment.states()[State.PENDING] == len(deployment.committed()) - IN_HAND
    # And a second relay the rest
    deployment.outbox("relay")
    deployment.wait("every row to be delivered", deployment.finished)
    assert_exactly_once(deployment)


def test_a_relay_that_dies_before_it_decides_is_survived_by_another(deployment: Deployment) -> None:
    # Given two relays, of which one dies once its halves are stored
    producer = deployment.produce(100)
    deployment.wait("the producer to finish", lambda: producer.poll() is not None)
    relay = deployment.outbox("relay", fault="relay.before_decide=kill", **WHOLE_PASS)
    deployment.wait("the relay to be killed", lambda: deployment.killed(relay))
    deployment.outbox("relay")
    # Then
    deployment.wait("every row to be delivered", deployment.finished)
    assert_exactly_once(deployment)


def test_a_relay_that_dies_before_it_commits_is_survived_by_the_reconciler(deployment: Deployment) -> None:
    # Given a relay that dies once its decision is written
    producer = deployment.produce(100)
    deployment.wait("the producer to finish", lambda: producer.poll() is not None)
    relay = deployment.outbox("relay", "--no-checkback", fault="relay.before_commit=kill", **WHOLE_PASS)
    deployment.wait("the relay to be killed", lambda: deployment.killed(relay))
    assert deployment.states()[State.COMMITTED] == IN_HAND
    assert deployment.visible() == []
    # When another relay runs, and nobody answers checks
    deployment.outbox("relay", "--no-checkback")
    # Then
    deployment.wait("every row to be delivered", deployment.finished)
    assert_exactly_once(deployment)


def test_a_relay_that_dies_before_it_settles_sends_nothing_twice(deployment: Deployment) -> None:
    # Given a relay that dies once the broker confirmed its commits
    producer = deployment.produce(100)
    deployment.wait("the producer to finish", lambda: producer.poll() is not None)
    relay = deployment.outbox("relay", "--no-checkback", fault="relay.before_settle=kill", **ONE_PASS, **PATIENT)
    deployment.wait("the relay to be killed", lambda: deployment.killed(relay))
    assert len(deployment.arrived(IN_HAND)) == IN_HAND
    assert deployment.states()[State.COMMITTED] == IN_HAND
    # When another one takes over
    deployment.outbox("relay")
    # Then
    deployment.wait("every row to be delivered", deployment.finished)
    assert_exactly_once(deployment)


def test_a_relay_stops_cleanly_on_sigterm(deployment: Deployment) -> None:
    # Given a relay in the middle of its work
    producer = deployment.produce(100)
    deployment.wait("the producer to finish", lambda: producer.poll() is not None)
    relay = deployment.outbox("relay", **PATIENT)
    deployment.wait("some work", lambda: deployment.states()[State.DELIVERED] > 0)
    # When it is asked to stop
    relay.terminate()
    # Then it does, leaving nothing half done
    assert relay.wait(timeout=DEADLINE) == 0
    assert deployment.states()[State.COMMITTED] == 0
    delivered = deployment.states()[State.DELIVERED]
    assert len(deployment.arrived(delivered)) == delivered
