"""The deployments that the acceptance tests run on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outbox import migrate
from outbox.brokers.embedded.inspect import EmbeddedInspector
from outbox.identity import fresh_token
from outbox.store.database import Database
from tests.acceptance.deployment import Deployment, Seen
from tests.services.databases import fresh_database
from tests.services.rocketmq import create_topics
from tests.services.rocketmq.admin import Admin

STACKS = ("sqlite-embedded", "postgresql-rocketmq", "mariadb-rocketmq")


@pytest.fixture(params=STACKS)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """A migrated database and a broker with a topic of the test's own, on each stack."""
    backend = request.param.split("-")[0]
    if backend == "sqlite":
        yield from deployed(tmp_path, f"sqlite:///{tmp_path}/shop.db", *_embedded(tmp_path))
        return
    server = request.getfixturevalue({"postgresql": "postgres", "mariadb": "mariadb"}[backend])
    namesrv = request.getfixturevalue("rocketmq")
    with fresh_database(server) as url:
        yield from deployed(tmp_path, url, *rocketmq_stack(namesrv))


def deployed(
    folder: Path, database_url: str, broker_url: str, topic: str, visible: Callable[[], list[Seen]]
) -> Iterator[Deployment]:
    """A deployment on these; everything that it started ends with it."""
    database = Database(database_url)
    migrate.upgrade(database)
    database.close()
    deployment = Deployment(folder, database_url, broker_url, topic, visible)
    yield deployment
    deployment.stop()


def _embedded(folder: Path) -> tuple[str, str, Callable[[], list[Seen]]]:
    def visible() -> list[Seen]:
        inspector = EmbeddedInspector(folder / "broker.db")
        try:
            return [Seen(message.key, message.body) for message in inspector.visible("payments")]
        finally:
            inspector.close()

    return f"embedded://{folder}/broker.db", "payments", visible


def rocketmq_stack(namesrv: str, message_type: str = "") -> tuple[str, str, Callable[[], list[Seen]]]:
    """Broker URL, a fresh topic, and how to see its messages."""
    topic = f"payments-{fresh_token()}"
    create_topics(namesrv, [topic, f"{topic}-other"], queues=4, message_type=message_type)

    def visible() -> list[Seen]:
        with Admin(namesrv) as admin:
            return [Seen(message.properties["KEYS"], message.body) for message in admin.read(topic)]

    return f"rocketmq://{namesrv}", topic, visible
