"""The relay's pass: claim, prepare, decide, resolve, settle (``docs/architecture.md`` tells what a death leaves)."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from outbox import faults
from outbox.brokers.base import (
    Broker,
    Ending,
    Half,
    Outage,
    Outgoing,
    Prepared,
    Publication,
    Refused,
    Sent,
    Stored,
    Unknown,
)
from outbox.envelope import Envelopes
from outbox.lifecycle import Verdict
from outbox.message import Mode
from outbox.settings import Settings
from outbox.store.attempt import Attempt
from outbox.store.claims import Claims
from outbox.store.commit_leases import CommitLeases
from outbox.store.decisions import Decisions, Outcomes, Published, Refusal, Return, Winner
from outbox.verdict import Confirmation, HalfView, Step, verdict
from relay.breaker import Breaker
from relay.events import Events
from relay.keeper import Hold, LeaseKeeper
from relay.timing import backoff

Result = Prepared | Publication

#: Claims of a row that met an outage after which it goes back to its place; later ones make it wait.
_AT_ONCE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a pass works with."""

    broker: Broker
    claims: Claims
    decisions: Decisions
    leases: CommitLeases
    envelopes: Envelopes
    keeper: LeaseKeeper
    breaker: Breaker
    events: Events
    settings: Settings
    now: Callable[[], float]


class Pass:
    """One claim and what becomes of its rows; safe to run in several threads at once."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def claim(self) -> tuple[list[Attempt], float]:
        """Rows for one pass (a single one, as a probe, while the breaker is open), and our clock before their lease."""
        stage = self._stage
        limit = stage.settings.rows_per_pass if stage.breaker.closed() else 1
        since = stage.now()
        try:
            attempts = stage.claims.claim(limit, stage.settings.bytes_per_pass, stage.settings.lease)
        except SQLAlchemyError as error:
            stage.events.claim_failed(error)
            raise
        stage.events.claimed(attempts)
        return attempts, since

    def ship(self, attempts: Sequence[Attempt], since: float) -> None:
        """Ships claimed rows to their end, or as far as broker and database let it."""
        faults.point("relay.after_claim")
        with self._stage.keeper.holding(attempts, since) as hold:
            if not hold.live():  # stopped meanwhile: a plain message would be sent although its row may be cancelled
                self._stage.events.lease_lost(len(attempts))
                return
            results = self._prepare(attempts)
            faults.point("relay.before_decide")
            outcomes = self._outcomes(results)
            with hold.deciding():
                decided = self._decide(hold, outcomes, len(results))
        if decided is not None:
            faults.point("relay.after_decide")
            self._resolve(outcomes.winners, *decided)

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Gives rows that were claimed and not sent back at once: whoever claims next finds them in their places."""
        stage = self._stage
        try:
            stage.decisions.decide(Outcomes(returns=[Return(it, None) for it in attempts]), stage.settings.commit_lease)
        except SQLAlchemyError as error:
            stage.events.undecided(len(attempts), error)
            return
        stage.events.released(len(attempts))

    def _prepare(self, attempts: Sequence[Attempt]) -> list[tuple[Attempt, Result]]:
        """Sends halves, and plain messages; an outcome for each row."""
        stage = self._stage
        halves = [it for it in attempts if it.mode is Mode.TRANSACTIONAL]
        plain = [it for it in attempts if it.mode is Mode.PLAIN]
        timeout = stage.settings.send_timeout
        results: list[tuple[Attempt, Result]] = []
        if halves:
            results += zip(halves, stage.broker.prepare(self._sealed(halves), timeout), strict=True)
        if plain:
            results += zip(plain, stage.broker.send(self._sealed(plain), timeout), strict=True)
        return results

    def _sealed(self, attempts: Sequence[Attempt]) -> list[Outgoing]:
        return [self._stage.envelopes.seal(it) for it in attempts]

    def _decide(self, hold: Hold, outcomes: Outcomes, rows: int) -> tuple[set[int], float] | None:
        """The rows that chose their half, and until when COMMIT may be written; None: nothing may be sent."""
        stage = self._stage
        if not hold.live():
            stage.events.lease_lost(rows)
            return None
        until = stage.now() + stage.settings.commit_window
        try:
            committed = stage.decisions.decide(outcomes, stage.settings.commit_lease)
        except SQLAlchemyError as error:
            stage.events.undecided(rows, error)
            return None
        self._report(outcomes, committed)
        return committed, until

    def _report(self, outcomes: Outcomes, committed: set[int]) -> None:
        """After the decision is written: a fact that the database does not hold is none."""
        events = self._stage.events
        events.decided(len(committed), len(outcomes.winners) - len(committed))
        for refusal in outcomes.refusals:
            events.refused(refusal.attempt, refusal.reason, buried=refusal.delay is None)
        for it in outcomes.returns:
            if it.adoptable:
                events.unknown(it.attempt, it.reason)

    def _outcomes(self, results: Sequence[tuple[Attempt, Result]]) -> Outcomes:
        delay = self._reachability(results)
        winners, published, refusals, returns = [], [], [], []
        for attempt, result in results:
            match result:
                case Stored(half):
                    winners.append(Winner(attempt, half))
                case Sent(unique_id):
                    published.append(Published(attempt, unique_id))
                case Refused(reason):
                    refusals.append(self._refusal(attempt, reason))
                case Unknown(reason):
                    returns.append(Return(attempt, self._stage.settings.unknown_delay, adoptable=True, reason=reason))
                case Outage(reason, partial=True):
                    returns.append(Return(attempt, self._patience(attempt), reason=reason))
                case Outage(reason):
                    returns.append(Return(attempt, self._aside(attempt, delay), reason=reason))
        return Outcomes(winners, published, refusals, returns)

    def _reachability(self, results: Sequence[tuple[Attempt, Result]]) -> float | None:
        """Tells the breaker whether the broker took part; the seconds that rows of an outage wait, None: they go back
        to their places, since the breaker waits for them, or the broker was busy with others. A row that failed where
        the broker answered a ping steps aside, so that the next one is tried.

        The trouble of one topic, or of one broker among several, says nothing about the others: it stops no pass.
        """
        breaker = self._stage.breaker
        failed = [it for _, it in results if isinstance(it, Unknown | Outage)]
        partial = [it.reason for it in failed if isinstance(it, Outage) and it.partial]
        away = [it.reason for it in failed if isinstance(it, Unknown) or not it.partial]
        if partial:
            self._stage.events.partial_outage(len(partial), partial[0])
        if len(away) + len(partial) < len(results):
            if breaker.success():
                self._stage.events.recovered()
        elif away:
            probing = breaker.half_open()
            pause = breaker.outage()
            self._stage.events.outage(away[0], pause)
            return pause if probing else None
        return None

    def _aside(self, attempt: Attempt, delay: float | None) -> float | None:
        """A row that was claimed often is not taken up at once again: it may be the reason of its outages itself."""
        settings = self._stage.settings
        if delay is None and attempt.attempts > _AT_ONCE:
            return backoff(
                attempt.attempts - _AT_ONCE, first=settings.outage_delay, most=settings.outage_delay_most, jitter=0
            )
        return delay

    def _patience(self, attempt: Attempt) -> float:
        """Seconds that a row waits for its topic; many rows that are tried in vain must not crowd out the others."""
        settings = self._stage.settings
        return backoff(
            attempt.attempts, first=settings.unknown_delay, most=settings.partial_delay_most, jitter=_jitter()
        )

    def _refusal(self, attempt: Attempt, reason: str) -> Refusal:
        settings = self._stage.settings
        failures = attempt.failures + 1
        buried = failures >= settings.failure_budget
        delay = backoff(failures, first=settings.backoff_first, most=settings.backoff_most, jitter=_jitter())
        return Refusal(attempt, reason, None if buried else delay)

    def _resolve(self, stored: Sequence[Winner], committed: set[int], until: float) -> None:
        """Commits the winners within the window, rolls back what can no longer win, settles what is confirmed."""
        winners = [it for it in stored if it.attempt.row_id in committed]
        others = [it for it in stored if it.attempt.row_id not in committed] if len(winners) < len(stored) else []
        endings = [Ending(it.half, Verdict.COMMIT) for it in winners]
        endings += [Ending(it.half, Verdict.ROLLBACK) for it in others if self._lost(it.attempt, it.half)]
        if not endings:
            return
        faults.point("relay.before_commit")
        ended = self._stage.broker.resolve(endings, until)
        faults.point("relay.before_settle")
        confirmed = [
            (it.attempt.row_id, it.half.half_id)
            for it, end in zip(winners, ended, strict=False)
            if end.confirmation is Confirmation.CONFIRMED
        ]
        try:
            delivered = self._stage.leases.settle(confirmed, tell=False)
        except SQLAlchemyError as error:
            self._stage.events.unsettled(len(confirmed), error)
            return
        self._stage.events.settled(len(delivered), len(winners) - len(confirmed))

    def _lost(self, attempt: Attempt, half: Half) -> bool:
        """Whether the row says that this half can never win. A row that chose it (adopted by the check-back, or
        committed by a decision whose answer was lost), or still may, is left alone; so is one that cannot be read."""
        try:
            row = self._stage.leases.read(attempt.row_id)
        except SQLAlchemyError as error:
            self._stage.events.undecided(1, error)
            return False
        return verdict(row, HalfView(attempt.token, half.half_id)) is Step.ROLLBACK


def _jitter() -> float:
    return random.uniform(-1, 1)  # noqa: S311 -- spreads retries, hides nothing
