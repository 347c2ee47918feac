"""``python -m examples.order_payment``: pays orders, kills whoever works on them, and counts."""

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from typing import Any

from examples.crew import QUICK, QUIET, Crew
from examples.order_payment.load import Injected, Load, Plan, Resender
from examples.order_payment.models import create, open_engine
from examples.order_payment.report import report
from examples.order_payment.service import TOPIC, PaymentService
from examples.servers import add_options, fresh_folder, local_redis
from outbox import migrate
from outbox.settings import load as load_settings
from outbox.wiring import open_broker, open_database

CONSUMERS = ("stock", "points", "reconciliation")


def main() -> int:
    """Runs the example; 0 if every effect happened once."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with ExitStack() as stack:
        folder = fresh_folder(options.folder)
        redis_url = options.redis_url or (None if options.broker_url else stack.enter_context(local_redis(folder)))
        urls = {
            "database_url": options.database_url or f"sqlite:///{folder}/payments.db",
            "broker_url": options.broker_url or f"embedded://{folder}/broker.db",
        }
        environment = {"PAYMENTS_TOPIC": options.topic} | ({"REDIS_URL": redis_url} if redis_url else {})
        if not redis_url:
            print("no Redis: points uses LeasedInbox, reconciliation its Inbox alone")
        crew = stack.enter_context(Crew(folder, {**QUICK, **urls, "origin": "payments"}, **environment))
        return Story(options, urls, crew).tell()


class Story:
    """One run, on servers that are known."""

    def __init__(self, options: argparse.Namespace, urls: dict[str, str], crew: Crew) -> None:
        self._options = options
        self._settings = load_settings(**QUICK, **urls, origin="payments")
        self._crew = crew
        with_tables = open_database(self._settings)
        migrate.upgrade(with_tables)
        with_tables.close()
        self._engine = open_engine(urls["database_url"])
        create(self._engine)

    def tell(self) -> int:
        """Starts everybody, pays, waits for the effects, counts."""
        self._crew.start("relay", "relay")
        self._crew.start("checkback", "checkback")
        for name in CONSUMERS:
            self._crew.start(name, "consume", f"examples.order_payment.{name}:inbox")
        self._crew.wait_at_work()
        injected = self._pay()
        self._crew.wait("every effect", lambda: (now := report(self._engine)).exact or now.surplus)
        time.sleep(QUIET)
        return self._count(injected)

    def _pay(self) -> Injected:
        options: Any = self._options
        broker = open_broker(self._settings)
        try:
            again = Resender(self._engine, broker, options.topic)
            service = PaymentService(self._engine, options.topic)
            plan = Plan(options.orders, options.kills, options.duplicates)
            return Load(plan, self._engine, service, self._crew, again).run()
        finally:
            broker.close()

    def _count(self, injected: Injected) -> int:
        counted = report(self._engine)
        for line in counted.lines:
            print(line)
        print(
            f"{injected.paid:,} orders paid, {injected.declined:,} declined; "
            f"{self._crew.kills:,} processes killed, {injected.duplicates:,} duplicates sent"
        )
        print("every payment had each of its effects once" if counted.exact else "NOT EXACT: see the lines above")
        return 0 if counted.exact else 1


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.order_payment", description=__doc__)
    add_options(parser)
    parser.add_argument("--redis-url", help="default: a redis-server of our own, if there is one and all is embedded")
    parser.add_argument("--topic", default=TOPIC, help="must exist on a real broker, for transactional messages")
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--duplicates", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
