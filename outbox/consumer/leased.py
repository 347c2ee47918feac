"""Executes a handler under a lease of its key, over whatever store keeps the claims."""

import logging
from collections.abc import Callable

from outbox.clock import monotonic
from outbox.consumer.claims import Claim
from outbox.consumer.failures import outcome_of, said
from outbox.consumer.leases import Busy, Claimed, ClaimStore, Contradicted, Keeper, Lease
from outbox.consumer.outcome import Duplicate, InProgress, Outcome, Park, Processed

log = logging.getLogger(__name__)

#: Does the work and makes it durable, the memory of it included; raises ``LeaseLost`` if it may not.
Work = Callable[[Lease], object]


class LeasedExecution:
    """Claim, work, complete: what happens in between is the strategy's.

    If the process dies before the claim, nothing was done. After it, the key is free again once the lease is over, and
    whatever the handler did until then is done again: once where the strategy's ``work`` makes effect and completion
    one, else at least once.
    """

    def __init__(self, store: ClaimStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._keeper = Keeper(seconds)

    def execute(self, claim: Claim, work: Work) -> Outcome:
        """Says what became of the claim's message; never raises for what store and handler do."""
        try:
            return self._execute(claim, work)
        except Exception as error:  # noqa: BLE001 -- named in the outcome, which the runner logs
            return outcome_of(error)

    def _execute(self, claim: Claim, work: Work) -> Outcome:
        since = monotonic()
        taken = self._store.claim(claim, self._seconds)
        if isinstance(taken, Busy):
            return InProgress(taken.remaining)
        if isinstance(taken, Contradicted):
            return Park(taken.reason)
        if isinstance(taken, Claimed):
            self._work(claim, Lease(self._store, claim, taken.token, self._seconds, since), work)
            return Processed()
        return Duplicate()

    def _work(self, claim: Claim, lease: Lease, work: Work) -> None:
        try:
            self._keeper.keep(lease)
            work(lease)
        except BaseException:
            self._release(claim, lease)
            raise
        finally:
            self._keeper.let_go(lease)

    def _release(self, claim: Claim, lease: Lease) -> None:
        """Best effort: a lease that is not given back runs out."""
        try:
            self._store.release(claim, lease.token)
        except Exception as error:  # noqa: BLE001 -- the handler's own error is the one to tell
            log.info("lease not released, it runs out: %s", said(error))
