"""Transactions that the database sacrifices to another one: undone as a whole, and to be tried again.

PostgreSQL and InnoDB do so to end a deadlock, and under isolation levels that allow no surprise. Where several servers
take writes (Galera, group replication), each transaction that changes a row which another server changed at the same
time ends so: at a statement, or as the answer to COMMIT.
"""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy.exc import DBAPIError

Result = TypeVar("Result")

#: serialization_failure, deadlock_detected; ER_LOCK_DEADLOCK, ER_TRANSACTION_ROLLBACK_DURING_COMMIT.
_SACRIFICED: Final = frozenset(("40001", "40P01", 1213, 3101))
#: ER_ERROR_DURING_COMMIT tells in its text which error of the engine's it was: HA_ERR_LOCK_DEADLOCK.
_DURING_COMMIT: Final = 1180
_DEADLOCK: Final = " 149 "
#: How often one that is sacrificed again and again is begun.
TRIES: Final = 4


def is_conflict(error: BaseException) -> bool:
    """Whether nothing of the transaction is kept, and the next try may well succeed; no outage, and nobody's fault."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)
    return code in _SACRIFICED or (code == _DURING_COMMIT and _DEADLOCK in str(cause))


def repeated(transaction: Callable[[], Result], *, sacrificed: Callable[[Result], bool] = lambda _: False) -> Result:
    """What a whole transaction returns, at the last try; raises what that raises.

    ``sacrificed``: whether a result says what an error says otherwise.
    """
    for tried in range(TRIES - 1):
        try:
            if not sacrificed(result := transaction()):
                return result
        except DBAPIError as error:
            if not is_conflict(error):
                raise
        _step_aside(tried)
    return transaction()


def _step_aside(tried: int) -> None:
    """Lets the other transaction come to its end, and to this server if it was at another: 10 to 80 ms."""
    time.sleep(random.uniform(0.01, 0.02) * 2**tried)  # noqa: S311 -- spreads tries, hides nothing
