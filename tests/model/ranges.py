"""How far to explore: small bounds that cover every misfortune within seconds, and wide ones for a quiet hour."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tests.model.world import Bounds


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds, and a number of states below which the exploration has lost something."""

    bounds: Bounds
    states: int
    #: Whether a good end must be reachable. Without a spare token it is not: nobody could claim the row again.
    ends: bool = True


SMALL: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "a relay, another that is a zombie, a check-back": Range(Bounds(relays=2), 40_000),
        "two check-backs": Range(Bounds(check_backs=2), 14_000),
        "an operator cancels and requeues": Range(Bounds(operator=True), 15_000),
        "halves expire": Range(Bounds(halves_expire=True), 40_000),
        "decisions grow old": Range(Bounds(check_backs=0, decisions_age=True), 2_000),
        "decisions grow old, a check-back": Range(Bounds(reconcilers=0, decisions_age=True), 4_000, ends=False),
        "retention deletes rows": Range(Bounds(retention=True), 12_000),
        "the database crashes": Range(Bounds(database_crash=True), 20_000, ends=False),
        "a transport repeats halves": Range(Bounds(tokens=1, repeats_halves=True), 15_000, ends=False),
    }
)

WIDE: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "two relays, two check-backs": Range(Bounds(relays=2, check_backs=2), 55_000),
        "two checks of each half": Range(Bounds(checks=2), 50_000),
        "three relays, three tokens": Range(Bounds(relays=3, tokens=3, check_backs=0), 30_000),
        "two relays, an operator, retention": Range(Bounds(relays=2, operator=True, retention=True), 45_000),
        "the database crashes, three tokens": Range(Bounds(tokens=3, database_crash=True), 150_000),
        "everything expires": Range(Bounds(halves_expire=True, decisions_age=True, operator=True), 200_000),
        "a transport repeats halves, two tokens": Range(Bounds(tokens=2, repeats_halves=True), 500_000),
        "two relays, two check-backs, two checks": Range(Bounds(relays=2, check_backs=2, checks=2), 300_000),
    }
)
