"""The consumer that a command names: ``MODULE:OBJECT``."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.exc import DBAPIError

from outbox.errors import SettingsError

Target = Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="Where the Inbox is, for example shop:inbox.")]


def imported(target: str) -> Any:
    """The object that ``module:object`` names, found from the current folder as well."""
    module, separator, name = target.partition(":")
    if not (separator and module and name):
        raise SettingsError(f"MODULE:OBJECT: {target!r}: write it like shop.consumers:inbox")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        own = f"{module}.".startswith(f"{error.name}.")
        remedy = f"start it where {module} can be imported" if own else f"{module} imports it: install it"
        raise SettingsError(f"MODULE:OBJECT: {target!r}: {error}; {remedy}") from error
    try:
        return getattr(found, name)
    except AttributeError as error:
        raise SettingsError(f"MODULE:OBJECT: {target!r}: module {module} has no {name}; name its Inbox") from error


@contextmanager
def target_reachable(target: str) -> Iterator[None]:
    """The inbox is checked once, before anything is received; a running consumer outlives its database's outages."""
    try:
        yield
    except DBAPIError as error:
        raise SettingsError(
            f"MODULE:OBJECT: {target!r}: its database cannot be used: {error.orig}; correct its engine's URL"
        ) from error
