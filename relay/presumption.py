"""Ends the decisions of a transport that neither confirms a COMMIT nor finds a message: silence tells.

Such a COMMIT is sent once by the relay, and then only as the answer to a check, since a second one makes a second
message. A broker that got none goes on asking until its check horizon; one that has stopped asking has either made the
message visible or, if nobody was there to be asked, discarded the half.
"""

from collections.abc import Callable, Sequence

from outbox.commits import Finding
from outbox.settings import Settings
from outbox.store.commit_leases import CommitLeases, Holding
from outbox.store.heartbeats import Heartbeats
from outbox.verdict import Next, after_horizon

_UNSURE = "unsure: no listener was there all the time"


class Presumption:
    """Acts for the holder of commit leases that are over since the broker's whole check horizon."""

    def __init__(self, leases: CommitLeases, heartbeats: Heartbeats, settings: Settings) -> None:
        self._leases = leases
        self._heartbeats = heartbeats
        self._republish = settings.unsure == "republish"
        self._gap = settings.heartbeat_gap
        #: Seconds for which the check-back alone may act on a decision whose lease is over.
        self.overdue = settings.check_horizon

    def finish(self, holdings: Sequence[Holding], until: float) -> list[Finding]:  # noqa: ARG002 -- no COMMIT is sent
        """Settles what was watched all the time; publishes the rest anew, or holds it, as the settings say."""
        since = self._heartbeats.watched_since(self._gap)
        return [self._ended(it, watched=since is not None and since <= it.decided_at) for it in holdings]

    def _ended(self, holding: Holding, *, watched: bool) -> Finding:
        step = after_horizon(watched=watched, republish=self._republish)
        act: dict[Next, Callable[[], object]] = {
            Next.PRESUME: lambda: self._leases.presume(holding),
            Next.REOPEN: lambda: self._leases.reopen(holding, f"{_UNSURE}; republished"),
            Next.HOLD: lambda: self._leases.postpone(holding, f"{_UNSURE}; held", 0.0),
        }
        act[step]()
        return Finding(holding, step)
