"""Dedup in Redis on a real server: what people write by hand, where it fails, and what ours makes of it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry as Again

from outbox.consumer import Duplicate, InProgress, LeaseLost, Message, Outcome, Park, Processed, Retry
from outbox.consumer.claims import Claim
from outbox.consumer.leases import Busy, Claimed, Finished, Lease
from outbox.consumer.redis_claims import RedisClaims, redis_key
from outbox.consumer.redis_inbox import RedisInbox
from outbox.errors import SettingsError
from outbox.identity import fresh_token
from tests.crash.proxy import Proxy
from tests.forked import in_a_child, knows_of_threads, needs_fork
from tests.integration.consumer.leases import LEASE, LEFT, MORE, Clock, await_renewal, renewed, renewing_all_the_time
from tests.services.ports import free_port
from tests.services.redis import Redis as Server
from tests.services.require import require
from tests.unit.consumer.fakes import delivery
from tests.waiting import expect_soon

RECEIVED = delivery(keys=("k",), body=b"same")
Handler = Callable[[Message, Lease], object]


@pytest.fixture
def redis(redis_server: str) -> Iterator[Redis]:
    """For looking past the inbox, and for the naive code."""
    with Redis.from_url(redis_server) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"stock-{fresh_token()}"


@pytest.fixture
def claim(name: str) -> Claim:
    return Claim.of(name, Message.of(RECEIVED, "k"))


def consumer(redis: Redis | str, name: str, handler: Handler, lease: float = 60.0) -> RedisInbox:
    inbox = RedisInbox(redis, consumer=name, lease=lease)
    inbox.handler(topic="payments")(handler)
    return inbox


class Work:
    """A handler whose effects can be counted, and that does something after each."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.effects = 0
        self._then = then

    def __call__(self, *_: object) -> None:
        self.effects += 1
        self._then()


def naive(redis: Redis, key: str, work: Callable[[], object], seconds: float) -> bool:
    """Set if absent with a time to live, work, and the key stays: what is found in most blog posts."""
    if not redis.set(key, "1", nx=True, px=int(seconds * 1000)):
        return False
    work()
    return True


def test_a_key_that_expires_while_the_naive_handler_works_lets_a_second_one_in(redis: Redis, name: str) -> None:
    inner = Work()

    def outlasts_its_key() -> None:
        while redis.exists(name):
            time.sleep(0.02)
        naive(redis, name, inner, 0.2)

    outer = Work(outlasts_its_key)
    naive(redis, name, outer, 0.2)
    assert (outer.effects, inner.effects) == (1, 1)


def test_a_lease_is_renewed_while_the_handler_works(
    redis: Redis, name: str, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a handler that works for several times its lease, while another process tries
    clock, seen = Clock(monkeypatch), list[Outcome]()
    other, key = consumer(redis, name, Work()), redis_key(claim.consumer, claim.key)

    def long(_message: Message, lease: Lease) -> None:
        def is_renewed() -> bool:
            lease.check()
            seen.append(other.process(RECEIVED))
            return bool(redis.pttl(key) > 1000 * MORE) and renewed(lease, clock)

        for _ in range(5):
            clock.passes()
            redis.pexpire(key, int(1000 * LEFT))
            expect_soon(is_renewed, "renewed")

    inbox = consumer(redis, name, long, lease=LEASE)
    renewing_all_the_time(inbox)
    # When it is done / Then nobody else came in
    assert inbox.process(RECEIVED) == Processed()
    assert {type(outcome) for outcome in seen} == {InProgress}


def test_check_then_mark_in_two_commands_lets_both_in(redis: Redis, name: str) -> None:
    barrier, work = threading.Barrier(2), Work()

    def both() -> None:
        if not redis.get(name):
            barrier.wait()
            redis.set(name, "1")
            work()

    threads = [threading.Thread(target=both) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.effects == 2


def test_a_mark_before_the_work_loses_the_message_of_one_that_died(redis: Redis, name: str) -> None:
    # Given the naive code, whose process dies between mark and work
    work = Work()
    with pytest.raises(SystemExit):
        naive(redis, name, lambda: (_ for _ in ()).throw(SystemExit(9)), 60)
    # When the message comes again / Then it passes for done
    assert not naive(redis, name, work, 60)
    assert work.effects == 0


def test_the_message_of_an_owner_that_died_comes_to_the_next(redis: Redis, name: str, claim: Claim) -> None:
    # Given an owner that died within its lease
    assert isinstance(RedisClaims(redis, 60).claim(claim, 0.4), Claimed)
    work = Work()
    inbox = consumer(redis, name, work)
    # When others try until the lease is over / Then one of them does it
    expect_soon(lambda: inbox.process(RECEIVED) == Processed(), "the key of a dead owner is free")
    assert work.effects == 1


def test_deleting_a_lock_by_name_deletes_the_next_owner_s(redis: Redis, name: str) -> None:
    # Given the naive lock, taken over after it expired
    redis.set(name, "first", nx=True, px=1)
    while redis.exists(name):
        time.sleep(0.01)
    redis.set(name, "second", nx=True, px=60_000)
    # When the first owner deletes "its" lock / Then a third one comes in beside the second
    redis.delete(name)
    assert redis.set(name, "third", nx=True, px=60_000)


def test_nobody_ends_what_another_one_owns(redis: Redis, claim: Claim) -> None:
    # Given an owner whose lease ran out, and its successor
    claims = RedisClaims(redis, 60)
    first = claims.claim(claim, 0.05)
    assert isinstance(first, Claimed)
    while redis.exists(redis_key(claim.consumer, claim.key)):
        time.sleep(0.01)
    second = claims.claim(claim, 60)
    assert isinstance(second, Claimed)
    # When the first one renews, releases, completes / Then nothing changes
    assert not claims.renew(claim, first.token, 60)
    claims.release(claim, first.token)
    assert not claims.complete(claim, first.token)
    assert isinstance(claims.claim(claim, 60), Busy)
    # And the second one's memory stands
    assert claims.complete(claim, second.token)
    assert claims.claim(claim, 60) == Finished()


def test_a_step_whose_answer_was_lost_can_be_repeated(redis: Redis, claim: Claim) -> None:
    # Given a claim whose answer never came: the client sends the same script once more
    claims = RedisClaims(redis, 60)
    token = claims.claim(claim, 60)
    assert isinstance(token, Claimed)
    assert claims._run(claims._claim, claim, token.token, 60)[0] == b"claimed"
    assert claims._run(claims._claim, claim, token.token + 1, 60)[0] == b"busy"
    # When a completion is repeated / Then it stays what it was
    assert claims.complete(claim, token.token)
    assert claims.complete(claim, token.token)
    assert claims.claim(claim, 60) == Finished()


@pytest.fixture
def network(redis_server: str) -> Iterator[Proxy]:
    """Between a consumer and Redis."""
    upstream = urlsplit(redis_server)
    proxy = Proxy(("127.0.0.1", free_port()), (str(upstream.hostname), int(upstream.port or 6379)))
    yield proxy
    proxy.close()


def behind(network: Proxy, name: str, handler: Handler) -> RedisInbox:
    """A consumer that asks Redis each question once."""
    return consumer(Redis(port=network.address[1], socket_timeout=60, retry=Again(NoBackoff(), 0)), name, handler)


@contextmanager
def losing_the_answer(redis: Redis, network: Proxy, key: bytes, value: bytes) -> Iterator[None]:
    """The connections end, of which answers are lost, once Redis has carried the question out."""

    def cut() -> None:
        expect_soon(lambda: (cast("bytes | None", redis.get(key)) or b"").startswith(value), "carried out")
        network.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    yield
    cutting.join()


def test_a_claim_whose_answer_was_lost_is_nobody_s_until_its_lease_is_over(
    redis: Redis, network: Proxy, name: str, claim: Claim
) -> None:
    # Given a claim that Redis, which has the scripts, has carried out, while the consumer hears nothing
    work, key = Work(), redis_key(claim.consumer, claim.key)
    assert consumer(redis, f"{name}-before", Work()).process(RECEIVED) == Processed()
    inbox = behind(network, name, work)
    inbox.forget("another")
    network.swallow_answers()
    with losing_the_answer(redis, network, key, b"P|"):
        outcome = inbox.process(RECEIVED)
    assert isinstance(outcome, Retry)
    assert outcome.outage
    assert work.effects == 0
    # When the message is tried again / Then the key is busy for as long as the lease, and then it is done, once
    assert isinstance(inbox.process(RECEIVED), InProgress)
    redis.pexpire(key, 1)
    expect_soon(lambda: inbox.process(RECEIVED) == Processed(), "processed once the lease is over")
    assert work.effects == 1


def test_a_completion_whose_answer_was_lost_is_remembered(
    redis: Redis, network: Proxy, name: str, claim: Claim
) -> None:
    # Given an effect whose completion Redis, which has the scripts, has carried out, while the consumer hears nothing
    assert consumer(redis, f"{name}-before", Work()).process(RECEIVED) == Processed()
    work = Work(network.swallow_answers)
    inbox = behind(network, name, work)
    with losing_the_answer(redis, network, redis_key(claim.consumer, claim.key), b"D|"):
        assert isinstance(inbox.process(RECEIVED), Retry)
    # When the message comes again / Then it is known
    assert inbox.process(RECEIVED) == Duplicate()
    assert work.effects == 1


def test_scripts_that_redis_forgot_are_loaded_again(redis: Redis, name: str) -> None:
    work = Work()
    inbox = consumer(redis, name, work)
    inbox.process(RECEIVED)
    redis.script_flush()
    assert inbox.process(RECEIVED) == Duplicate()
    assert work.effects == 1


def test_a_flush_in_the_middle_loses_nothing_and_may_repeat(redis: Redis, name: str) -> None:
    # Given a handler during which Redis forgets everything
    work = Work(redis.flushall)
    inbox = consumer(redis, name, work)
    # When it is done / Then its effect is remembered, since nobody else has claimed the key
    assert inbox.process(RECEIVED) == Processed()
    assert inbox.process(RECEIVED) == Duplicate()
    # When Redis forgets it afterwards / Then the effect happens again
    redis.flushall()
    assert inbox.process(RECEIVED) == Processed()
    assert work.effects == 2


def test_an_owner_that_lost_its_key_is_told(redis: Redis, name: str, claim: Claim) -> None:
    lost: list[bool] = []

    def robbed(_message: Message, lease: Lease) -> None:
        redis.delete(redis_key(claim.consumer, claim.key))
        assert isinstance(RedisClaims(redis, 60).claim(claim, 60), Claimed)
        expect_soon(lambda: not lease.held, "told")
        with pytest.raises(LeaseLost):
            lease.check()
        lost.append(True)

    inbox = consumer(redis, name, robbed)
    renewing_all_the_time(inbox)
    outcome = inbox.process(RECEIVED)
    assert isinstance(outcome, Retry)
    assert not outcome.outage
    assert lost == [True]


@needs_fork
@knows_of_threads
def test_a_forked_child_renews_its_own_leases_and_has_a_loop_of_its_own(redis: Redis, name: str) -> None:
    # Given a process that works on a message in a coroutine, and renews its lease
    entered, go, held = threading.Event(), threading.Event(), list[bool]()

    async def on_paid(message: Message, lease: Lease) -> None:
        entered.set()
        await asyncio.to_thread(await_renewal, lease)
        while message.key == "k" and not go.is_set():
            await asyncio.sleep(0.02)
        held.append(lease.held)

    inbox = consumer(redis, name, on_paid)
    renewing_all_the_time(inbox)
    thread = threading.Thread(target=inbox.process, args=(RECEIVED,))
    thread.start()
    assert entered.wait(60)
    # When a child of it works / Then its lease is renewed, and its parent's is its parent's
    other = delivery(keys=("other",))
    assert in_a_child(lambda: (inbox.process(other), held)) == "(Processed(), [True])"
    assert in_a_child(lambda: len(inbox._execution._keeper._leases)) == "0"
    go.set()
    thread.join()
    assert held == [True]
    inbox.close()


def test_a_lease_that_no_thread_could_be_started_for_is_given_back(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a process that may have no more threads
    def refused(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    held = list[bool]()

    def on_paid(_message: Message, lease: Lease) -> None:
        await_renewal(lease)
        held.append(lease.held)

    inbox = consumer(redis, name, on_paid)
    renewing_all_the_time(inbox)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert inbox.process(RECEIVED) == Retry("RuntimeError: can't start new thread")
    # When it may again / Then the key is free, and its lease is renewed
    assert inbox.process(RECEIVED) == Processed()
    assert held == [True]


def test_a_failure_frees_the_key_at_once(redis: Redis, name: str) -> None:
    failures = iter([ValueError("first"), None])

    def on_paid(*_: object) -> None:
        if error := next(failures):
            raise error

    inbox = consumer(redis, name, on_paid)
    assert inbox.process(RECEIVED) == Retry("ValueError: first")
    assert inbox.process(RECEIVED) == Processed()


def test_what_is_parked_has_no_table_here(redis: Redis, name: str) -> None:
    inbox = consumer(redis, name, Work())
    inbox.process(RECEIVED)
    other = delivery(keys=("k",), body=b"another")
    assert isinstance(inbox.process(other), Park)
    assert not inbox.park(other, "another payload")


def test_a_redis_that_goes_away_in_the_middle_pauses_the_consumer() -> None:
    with require(Server) as server:
        work = Work()
        inbox = consumer(server.url, "stock", work)
        inbox.check()
        server.kill()
        # When it is away / Then nothing is processed, and no retry is charged
        outcome = inbox.process(RECEIVED)
        assert isinstance(outcome, Retry)
        assert outcome.outage
        assert work.effects == 0
        inbox.close()


def test_a_redis_that_evicts_is_refused_at_start(caplog: pytest.LogCaptureFixture) -> None:
    options = ("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    with require(lambda: Server(options=options)) as server:
        inbox = consumer(server.url, "stock", Work())
        with pytest.raises(SettingsError, match="noeviction"):
            inbox.check()
        # And one that only forgets at its restart is told
        with Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "noeviction")
        inbox.check()
        assert "appendonly" in caplog.text
        # And one whose memory is full is an outage, not a loss
        with Redis.from_url(server.url) as client:
            client.config_set("maxmemory", "1")
        outcome = inbox.process(RECEIVED)
        assert isinstance(outcome, Retry)
        assert outcome.outage
        inbox.close()


@pytest.mark.parametrize(
    "said",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
        "The user executing the script can't run this command or subcommand",
    ],
)
def test_what_redis_6_cannot_write_inside_a_script_is_an_outage(redis: Redis, name: str, said: str) -> None:
    # Given a Redis before 7, which tells first in which script and where, and a minus before what has a code
    work = Work()
    inbox = consumer(redis, name, work)
    minus = "-" if said.split()[0].isupper() else ""
    words = f"ERR Error running script (call to f_3d55): @user_script:5: @user_script: 5: {minus}{said}"
    inbox._claims._claim = redis.register_script(f'return redis.error_reply("{words}")')
    # When it is full, a replica, cannot save, or permits its user nothing / Then no retry is charged
    outcome = inbox.process(RECEIVED)
    assert isinstance(outcome, Retry)
    assert outcome.outage
    assert said in outcome.reason
    assert work.effects == 0


@pytest.mark.parametrize(
    "taken_away",
    [
        pytest.param("-evalsha", id="scripts"),
        pytest.param("-pexpire -set -get", id="what scripts call"),
        pytest.param("resetkeys ~other:*", id="our keys"),
        pytest.param("off", id="the login"),
    ],
)
def test_a_user_that_redis_permits_nothing_is_an_outage(redis: Redis, name: str, taken_away: str) -> None:
    # Given a consumer with a user of its own, which works
    redis.acl_setuser(name, enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all"])
    host = redis.get_connection_kwargs()
    work = Work()
    inbox = consumer(f"redis://{name}:secret@{host['host']}:{host['port']}/0", name, work)
    assert inbox.process(RECEIVED) == Processed()
    # When somebody takes away what it needs / Then no message is charged for it
    redis.execute_command("ACL", "SETUSER", name, *taken_away.split())  # type: ignore[no-untyped-call]
    redis.execute_command("CLIENT", "KILL", "USER", name)  # type: ignore[no-untyped-call]
    for another in (delivery(keys=("one",), unique_id="B1"), delivery(keys=("two",), unique_id="B2")):
        outcome = inbox.process(another)
        assert isinstance(outcome, Retry)
        assert outcome.outage, outcome.reason
    assert work.effects == 1
    # And it goes on once it may again
    redis.execute_command("ACL", "SETUSER", name, "on", "allkeys", "+@all")  # type: ignore[no-untyped-call]
    assert inbox.process(delivery(keys=("one",), unique_id="B3")) == Processed()
    inbox.close()
    redis.acl_deluser(name)


def test_a_redis_that_is_not_there_at_start_is_named() -> None:
    inbox = consumer("redis://127.0.0.1:1/0", "stock", Work())
    with pytest.raises(SettingsError, match="redis: cannot be used"):
        inbox.check()
    with pytest.raises(SettingsError, match="redis://host:6379/0"):
        RedisInbox("http://nowhere", consumer="stock")
