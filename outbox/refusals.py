"""What is wrong with a setting: in the settings' own words, and under the name by which it was written."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import ErrorDetails

#: By pydantic's names of what can be wrong; the braces are filled with the bounds. What is not here keeps its words.
_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("float_parsing", "float_type"), "must be a number of seconds, such as 30"),
        **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number, such as 1"),
        **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
        "finite_number": "must be finite",
        "greater_than": "must be more than {gt:g}",
        "greater_than_equal": "must be at least {ge}",
        "less_than_equal": "must be at most {le}",
        "literal_error": "must be {expected}",
        "string_type": "must be text, such as 'orders'",
        "string_pattern_mismatch": "must be of letters, digits, '-' and '_' alone",
        "string_too_long": "must have at most {max_length} characters",
    }
)
#: The same of a value with others inside: it is not shown, for there may be a password among them.
_UNSHOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dict_type": "must be a table, such as {example}",
        "model_type": "must be a table, such as {example}",
        "tuple_type": "must be a list, such as {example}",
        "missing": "is missing; set it",
        "extra_forbidden": "there is no such setting; correct the name",
    }
)
_ENTRY: Final = MappingProxyType({"name": "east", "url": "postgresql://app@db/east"})
_EXAMPLES: Final[Mapping[tuple[str, bool], Any]] = MappingProxyType(
    {
        ("lane_policy", False): {"payments": "bury", "*": "hold"},
        ("databases", False): [dict(_ENTRY)],
        ("databases", True): dict(_ENTRY),
    }
)
#: Settings whose values no message shows.
_SECRETS: Final = frozenset(("secret_key", "url", "database_url"))


def in_words(problems: Iterable[ErrorDetails], is_in_file: Callable[[str], bool]) -> str:
    """All of them; ``is_in_file`` tells of a setting whether its value stands in ``outbox.toml``."""
    return "; ".join(_said(problem, is_in_file) for problem in problems)


def unreadable(problem: Exception) -> str:
    """A value of the environment that is not the JSON which it must be; pydantic names the field in its text alone."""
    if (field := re.search(r'field "(\w+)"', str(problem))) is None:
        return f"{problem}: it must be JSON, or stand in outbox.toml"
    example = _example((field[1],), in_file=False)
    return f"OUTBOX_{field[1].upper()}: must be JSON, such as {example}; or stand in outbox.toml"


def _said(problem: ErrorDetails, is_in_file: Callable[[str], bool]) -> str:
    kind, where = problem["type"], problem["loc"]
    if not where:
        return problem["msg"].removeprefix("Value error, ")
    in_file = is_in_file(str(where[0]))
    bounds = {"example": _example(where, in_file), **problem.get("ctx", {})}
    if kind in _UNSHOWN:
        return f"{_name(where, in_file)}: {_UNSHOWN[kind].format(**bounds)}"
    text = _WORDS[kind].format(**bounds) if kind in _WORDS else problem["msg"]
    given = "" if _SECRETS & set(where) else f" (got {problem['input']!r})"
    return f"{_name(where, in_file)}: {text}{given}"


def _name(where: tuple[int | str, ...], in_file: bool) -> str:
    first, *inside = where
    outer = f"outbox.toml: {first}" if in_file else f"OUTBOX_{str(first).upper()}"
    return outer + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inside)


def _example(where: tuple[int | str, ...], in_file: bool) -> str:
    """The right form of a list or a table, as it is written there."""
    value = _EXAMPLES.get((str(where[0]), len(where) > 1))
    return _toml(value) if in_file else f"'{json.dumps(value)}'"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_toml(it)}" for name, it in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _key(name: str) -> str:
    return name if name.isalnum() else json.dumps(name)
