"""Numbers in words."""

import pytest

from outbox.words import counted


@pytest.mark.parametrize(
    ("number", "one", "words"),
    [(0, "row", "0 rows"), (1, "row", "1 row"), (2, "row", "2 rows"), (1, "open row", "1 open row")],
)
def test_one_is_told_apart_from_none_and_several(number: int, one: str, words: str) -> None:
    assert counted(number, one) == words
