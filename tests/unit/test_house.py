"""House rules: sizes, state names, exported names. Exceptions are listed here by name, each with its reason."""

import importlib
import inspect
from pathlib import Path, PurePath

import pytest

from outbox import errors
from tests.unit.house_rules import Breach, breaches, exported

ROOT = Path(__file__).parents[2]
PACKAGES = ("outbox", "relay", "checkback")
MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
INITS = [path for path in MODULES if path.name == "__init__.py" and exported((ROOT / path).read_text())[1]]

#: Name of a breach (``path`` or ``path::function``) -> why the rule does not fit there.
EXCEPTIONS: dict[str, str] = {}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_keeps_the_house_rules(path: Path) -> None:
    # Given a module of the product / When its breaches are listed
    found = [breach for breach in breaches(path, (ROOT / path).read_text()) if breach.name not in EXCEPTIONS]
    # Then there are none beyond the exceptions
    assert [str(breach) for breach in found] == []


def test_every_exception_is_still_needed() -> None:
    # Given all breaches of the product / When the exceptions are compared
    found = {breach.name for path in MODULES for breach in breaches(path, (ROOT / path).read_text())}
    # Then each one still excuses something, and says why
    assert set(EXCEPTIONS) - found == set()
    assert all(EXCEPTIONS.values())


def names(path: str, source: str) -> list[str]:
    """Names of the breaches in a source text."""
    return [breach.name for breach in breaches(PurePath(path), source)]


def test_the_rules_find_what_they_look_for() -> None:
    # Given sources that break one rule each, or just do not / When they are read / Then the right ones are found
    long = "def walk():\n    '''Doc.'''\n" + "    step()\n" * 26
    assert names("relay/walk.py", long) == ["relay/walk.py::walk"]
    assert names("relay/wiring.py", long) == []
    assert names("outbox/cli/rows.py", long) == []
    assert names("relay/walk.py", long.replace("    step()\n", "", 1)) == []
    assert names("relay/walk.py", "x = 1\n" * 301) == ["relay/walk.py"]
    assert names("relay/walk.py", "x = 'pending'") == ["relay/walk.py"]
    assert names("relay/walk.py", "x = \"UPDATE t SET state = 'dead'\"") == ["relay/walk.py"]
    assert names("relay/walk.py", "'''A 'dead' row is kept.'''\nx = 'a pending row'") == []
    assert names("outbox/lifecycle.py", "x = 'pending'") == []


def test_a_breach_reads_as_a_place_and_a_remedy() -> None:
    assert str(Breach("relay/walk.py", 7, "too long")) == "relay/walk.py, line 7: too long"


@pytest.mark.parametrize("path", INITS, ids=str)
def test_a_package_exports_exactly_what_it_declares(path: Path) -> None:
    # Given a package that imports names for its users
    declared, imported = exported((ROOT / path).read_text())
    # When __all__ is compared with them / Then it is complete, without doubles, and every name is there
    assert len(declared) == len(set(declared))
    assert imported <= set(declared), f"{path}: add to __all__, or import under a name with an underscore"
    package = importlib.import_module(".".join(path.parent.parts))
    assert [name for name in declared if not hasattr(package, name)] == []


def test_the_error_tree_is_drawn_in_full() -> None:
    # Given the public exceptions of the toolkit
    public = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__ and not name.startswith("_")
    }
    # When they are looked up / Then each is drawn in the module's docstring and has the one root
    drawn = inspect.getdoc(errors) or ""
    assert [name for name in public if name not in drawn] == []
    assert all(issubclass(kind, errors.OutboxError) for kind in public.values())
