"""``python -m examples.order_payment``: pays orders, kills whoever works on them, and counts."""

import argparse
import signal
import sys
import time
from contextlib import ExitStack

from examples.crew import QUIET, Crew
from examples.engine import open_engine
from examples.order_payment.load import Injected, Load, Plan
from examples.order_payment.models import create
from examples.order_payment.report import report
from examples.order_payment.service import TAG, TOPIC, PaymentService
from examples.resender import Resender
from examples.servers import add_options, fresh_folder, local_redis, settings_of
from outbox.settings import Settings
from outbox.wiring import open_broker

CONSUMERS = ("stock", "points", "reconciliation")


def main() -> int:
    """Runs the example; 0 if every effect happened once."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    with ExitStack() as stack:
        folder = fresh_folder(options.folder)
        settings = settings_of(options, folder, origin="payments")
        embedded = options.broker_url is None
        redis_url = options.redis_url or (stack.enter_context(local_redis(folder)) if embedded else None)
        environment = {"PAYMENTS_TOPIC": options.topic, "REDIS_URL": redis_url or ""}
        if not redis_url:
            print("no Redis: points uses LeasedInbox instead, and reconciliation the Inbox alone")
        crew = stack.enter_context(Crew(folder, settings, **environment))
        return Story(options, settings, crew).tell()


class Story:
    """One run, on servers that are known."""

    def __init__(self, options: argparse.Namespace, settings: Settings, crew: Crew) -> None:
        self._options = options
        self._settings = settings
        self._crew = crew
        self._engine = open_engine(settings.database_url)
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
        broker = open_broker(self._settings)
        try:
            topic, plan = self._options.topic, Plan.of(self._options)
            again = Resender(self._engine, broker, topic, TAG)
            return Load(plan, self._engine, PaymentService(self._engine, topic), self._crew, again).run()
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
