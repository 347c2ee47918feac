"""What the tables of the checks share."""

from collections.abc import Iterable

from outbox.doctor.findings import Finding, Level


def not_ok(findings: Iterable[Finding]) -> dict[str, Level]:
    """Ids and levels of what is not as it should be."""
    return {finding.id: finding.level for finding in findings if finding.level is not Level.OK}


def ids(findings: Iterable[Finding]) -> set[str]:
    """The ids of everything that was looked at."""
    return {finding.id for finding in findings}
