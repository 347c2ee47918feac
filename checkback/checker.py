"""The answer to one check, by ``outbox.verdict``. The row decides; whatever goes wrong is UNKNOWN."""

import logging
from collections.abc import Callable

from outbox import faults
from outbox.brokers.base import Answer, Check
from outbox.commits import Commits
from outbox.envelope import Envelopes
from outbox.lifecycle import Verdict
from outbox.shown import cause
from outbox.store.commit_leases import CommitLeases, Holding
from outbox.verdict import HalfView, Next, Step, after_commit, verdict

_LOG = logging.getLogger("checkback")
#: Somebody else may move the row between our reading and our write; then it is read again, so often.
_TRIES = 3


class Checker:
    """Answers checks; safe to call from several threads."""

    def __init__(
        self,
        leases: CommitLeases,
        commits: Commits,
        envelopes: Envelopes,
        *,
        commit_window: float,
        commit_lease: float,
        now: Callable[[], float],
        log: logging.Logger = _LOG,
    ) -> None:
        self._leases = leases
        self._commits = commits
        self._envelopes = envelopes
        self._window = commit_window
        self._lease = commit_lease
        self._now = now
        self._log = log

    def on_check(self, check: Check, answer: Answer) -> None:
        """Answers one check; UNKNOWN for a foreign half and for every failure, never ROLLBACK."""
        until = self._now() + self._window
        try:
            self._answer(check, answer)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the half must live on
            self._log.warning("check unanswered half=%s error=%s", check.half.half_id, cause(error))
            self._say(check, answer, Verdict.UNKNOWN, until, "error")

    def _answer(self, check: Check, answer: Answer) -> None:
        address = self._envelopes.address(check)
        if address is None:
            self._say(check, answer, Verdict.UNKNOWN, self._now() + self._window, "foreign")
            return
        for _ in range(_TRIES):
            if self._act(check, answer, *address):
                return
        self._say(check, answer, Verdict.UNKNOWN, self._now() + self._window, "contended")

    def _act(self, check: Check, answer: Answer, row_id: int, half: HalfView) -> bool:
        """Takes one step; False: the row moved meanwhile, read it again."""
        until = self._now() + self._window
        step = verdict(self._leases.read(row_id), half)
        if step in (Step.ADOPT, Step.TAKE_OVER):
            holding = self._hold(step, check, row_id, half)
            if holding is not None:
                self._finish(check, answer, holding, until)
            return holding is not None
        self._say(check, answer, Verdict(step.value), until, step.value)
        return True

    def _hold(self, step: Step, check: Check, row_id: int, half: HalfView) -> Holding | None:
        if step is Step.ADOPT:
            holding = self._leases.adopt(row_id, half.token, check.half, self._lease)
        else:
            holding = self._leases.take_over(row_id, half.half_id, self._lease)
        faults.point("checkback.after_hold")
        return holding

    def _finish(self, check: Check, answer: Answer, holding: Holding, until: float) -> None:
        """As the holder of the commit lease: look up, then COMMIT by the check's own handle, once, in the window.

        A transport that finds nothing takes the question itself for the proof that the half is not committed. It fails
        where the broker forgot in a crash that it is: then the message is repeated.

        An answer other than "done" changes nothing here: the reconciler finds out once this lease is over.
        """
        (looked,) = self._commits.look_up([holding], until) if self._commits.finds else (Next.COMMIT,)
        if looked is Next.COMMIT:
            faults.point("checkback.before_answer")
            ended = answer(Verdict.COMMIT, until)
            self._tell(check, "commit")
            if after_commit(ended.confirmation) is Next.SETTLE:
                self._commits.settle([holding])
            return
        # Visible already: the half that the broker asks about is a leftover copy.
        said = Verdict.ROLLBACK if looked is Next.SETTLE else Verdict.UNKNOWN
        self._say(check, answer, said, until, looked.value)

    def _say(self, check: Check, answer: Answer, said: Verdict, until: float, why: str) -> None:
        answer(said, until)
        self._tell(check, why)

    def _tell(self, check: Check, why: str) -> None:
        # A relay that died leaves very many: handlers may count those of a kind.
        kind = {"kind": f"checked {why}"}
        self._log.info("checked half=%s times=%d %s", check.half.half_id, check.times, why, extra=kind)
