"""A COMMIT that is written after its lease: nothing is lost, and the inbox makes one effect of a second message."""

from pathlib import Path

from tests.acceptance.conftest import rocketmq_stack
from tests.acceptance.deployment import patient
from tests.crash.audit import audited
from tests.crash.boundary import BATCH, inject, pause
from tests.crash.campaign import DRAINED, fleet_on
from tests.services.databases import fresh_database


@patient
def test_a_late_commit_repeats_at_most_its_own_rows(postgres: str, rocketmq: str, tmp_path: Path) -> None:
    with fresh_database(postgres) as url, fleet_on(tmp_path, url, *rocketmq_stack(rocketmq)) as fleet:
        # Given a consumer, and a relay that stops between its last look at the clock and the write of its COMMITs
        fleet.launch("consumer")
        # When it goes on after another relay has carried its decision out
        hit = inject(pause, fleet, None, 0)
        fleet.wait("every effect", lambda: len(fleet.effects()) >= len(fleet.committed()), DRAINED)
        audit = audited(fleet, 1, range(1, BATCH + 1), excused=hit)
    # Then no more than its rows are visible twice, nothing is lost, and each order has one effect
    assert hit > 0
    assert audit.clean, audit
    assert audit.effects == audit.committed == BATCH * 9 // 10
