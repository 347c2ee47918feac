"""The examples do what they say, in small: real processes, SIGKILL, duplicates, and a count that must be exact."""

from pathlib import Path

from outbox.identity import fresh_token
from tests.acceptance.deployment import patient
from tests.acceptance.examples import on_servers, run_example
from tests.services.databases import fresh_database
from tests.services.ports import free_port

pytestmark = patient


def assert_exact(said: str, figures: int) -> None:
    """Each figure of the report is exact, and there are as many as there should be."""
    lines = [line for line in said.splitlines() if " expected " in line]
    assert len(lines) == figures
    for line in lines:
        words = line.split()
        expected, seen = words[words.index("expected") + 1], words[words.index("seen") + 1]
        assert (expected, words[-1]) == (seen, "exact"), said


def assert_paid(outcome: tuple[int, str], orders: int, figures: str) -> None:
    code, said = outcome
    assert code == 0, said
    assert_exact(said, figures=11)
    assert f"points          payments             expected {orders:12,}  seen {orders:12,}  exact" in said
    assert said.splitlines()[-2:] == [figures, "every payment had each of its effects once"]


def test_each_payment_has_its_effects_once_embedded(tmp_path: Path) -> None:
    # Given nothing but files / When 200 orders are paid while relay and stock are killed
    outcome = run_example("order_payment", tmp_path, "--orders", "200", "--kills", "2", "--duplicates", "25")
    # Then
    assert_paid(outcome, 200, "200 orders paid, 10 declined; 2 processes killed, 25 duplicates sent")


def test_each_payment_has_its_effects_once_on_servers(
    postgres: str, rocketmq: str, redis_server: str, tmp_path: Path
) -> None:
    # Given real servers
    with fresh_database(postgres) as url:
        servers = on_servers(url, rocketmq, redis_server)
        # When 300 orders are paid while the relay and each consumer is killed
        outcome = run_example("order_payment", tmp_path, *servers, "--orders", "300", "--kills", "4")
    # Then
    assert_paid(outcome, 300, "300 orders paid, 15 declined; 4 processes killed, 100 duplicates sent")


def test_what_is_not_there_is_told_at_once(rocketmq: str, tmp_path: Path) -> None:
    # Given brokers without the topic, and a name server that nobody serves
    topic = f"missing-{fresh_token()}"

    def said(namesrv: str) -> tuple[int, str]:
        code, output = run_example(
            "tracking_events", tmp_path, "--broker-url", f"rocketmq://{namesrv}", "--topic", topic
        )
        return code, output.splitlines()[-1]

    # When the example is started / Then it ends, and says what to do
    assert said(rocketmq) == (
        1,
        f"topic {topic}: the broker does not know it: mqadmin updateTopic -n … -c … -t {topic}",
    )
    code, last = said(f"127.0.0.1:{free_port()}")
    assert (code, last.partition(":")[0]) == (1, "no name server answers")


def test_each_event_is_counted_once(tmp_path: Path) -> None:
    # Given nothing but files / When 2,000 events are written while relay and statistics are killed
    code, said = run_example("tracking_events", tmp_path, "--events", "2000", "--duplicates", "100")
    # Then
    assert code == 0, said
    assert_exact(said, figures=4)
    last = said.splitlines()[-3:]
    assert last[0].startswith("2,000 events in ")
    assert last[1:] == ["2 processes killed, 100 duplicates sent", "every event was counted once"]
