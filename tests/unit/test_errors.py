"""The exceptions: one tree, exported, each message naming what is at fault."""

import inspect
import re

import pytest

import outbox
from outbox import errors

PUBLIC = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, Exception) and not name.startswith("_")
}


def test_every_exception_is_exported_by_the_package() -> None:
    assert {name: getattr(outbox, name, None) for name in PUBLIC} == PUBLIC
    assert set(PUBLIC) <= set(outbox.__all__)


def test_the_docstring_draws_the_tree() -> None:
    # Given the tree as drawn: indentation is parentage
    drawn = re.findall(r"^ *[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE)
    # When it is compared with the classes / Then each is drawn once, under the root
    assert sorted([*drawn, "OutboxError"]) == sorted(PUBLIC)
    assert all(issubclass(kind, errors.OutboxError) for kind in PUBLIC.values())


def test_an_invalid_message_is_a_value_error_too() -> None:
    error = errors.InvalidMessage("key", "must not be empty")
    assert isinstance(error, ValueError)
    assert (error.field, str(error)) == ("key", "key: must not be empty")


@pytest.mark.parametrize("kind", [errors.DuplicateKey, errors.PayloadMismatch])
def test_a_taken_key_names_the_row(kind: type[errors.DuplicateKey] | type[errors.PayloadMismatch]) -> None:
    error = kind("payments", "order-42", 7)
    assert (error.topic, error.key, error.row_id) == ("payments", "order-42", 7)
    assert "'payments'" in str(error)
    assert "'order-42'" in str(error)
    assert "row 7" in str(error)
