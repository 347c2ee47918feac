"""Names that nearly are those of settings: the environment cannot refuse what it does not know, only doubt it."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

#: What is set for the command line alone.
_OTHERS: Final = ("log_level",)
#: How like each other two names are that count as nearly the same: ``origon`` and ``origin`` have 0.83.
_NEARLY: Final = 0.75


def misspelt(names: Iterable[str], settings: Iterable[str], prefix: str) -> Iterator[tuple[str, str]]:
    """Each name with the prefix that is no setting but is spelt nearly as one, and the one that it may mean."""
    known = {*settings, *_OTHERS}
    for name in sorted(names):
        said = name.lower()
        if said.startswith(prefix.lower()) and (own := said.removeprefix(prefix.lower())) not in known:
            for meant in get_close_matches(own, known, 1, _NEARLY):
                yield name, f"{prefix}{meant.upper()}"
