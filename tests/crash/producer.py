"""The producing service: ``python -m tests.crash.producer FIRST LAST`` writes these orders, a tenth rolled back.

It may be killed and run again: what is committed stays, the rest is written. Its database may go away and come back.
"""

import os
import sys
import time

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Outbox, faults
from tests.acceptance.shop import ROLLED_BACK, open_engine, orders

#: Orders a second, so that a fault finds some in each stage.
PACE = 250.0


def write(engine: sa.Engine, outbox: Outbox, number: int) -> None:
    """One business transaction."""
    with Session(engine) as session, session.begin() as transaction:
        key = f"order-{number}"
        session.execute(orders.insert().values(key=key))
        outbox.add(session, topic=os.environ["SHOP_TOPIC"], key=key, payload={"order": number}, tag="paid")
        if number % ROLLED_BACK == 0:
            transaction.rollback()
        faults.point("producer.before_commit")
    faults.point("producer.after_commit")


def write_surely(engine: sa.Engine, outbox: Outbox, number: int) -> None:
    """Tries until it is committed or rolled back; a COMMIT without an answer may have been one."""
    while True:
        try:
            return write(engine, outbox, number)
        except sa.exc.IntegrityError:  # the order exists: an earlier COMMIT took effect
            return None
        except sa.exc.OperationalError as away:
            print(f"order {number}: again, since {away.orig}", flush=True)
            time.sleep(0.2)


def main(first: int, last: int) -> None:
    """Writes the orders ``first`` to ``last``, both included, no faster than ``PACE``."""
    engine, outbox = open_engine(), Outbox(origin="shop")
    started = time.monotonic()
    for number in range(first, last + 1):
        write_surely(engine, outbox, number)
        time.sleep(max(0.0, started + (number - first) / PACE - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
