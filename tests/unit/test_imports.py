"""What the package brings along, and when."""

import subprocess
import sys

import pytest

import outbox


def loaded_by(program: str) -> set[str]:
    """The packages that a fresh interpreter has loaded once it has run the program."""
    telling = f"{program}\nimport sys\nprint(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", telling], check=True, capture_output=True, text=True)
    return {name.partition(".")[0] for name in told.stdout.split()}


def test_a_probe_that_runs_a_command_loads_no_database_packages() -> None:
    # Given the modules of `outbox health`, which an orchestrator runs every few seconds
    loaded = loaded_by("import outbox.cli.app, outbox.cli.health")
    # Then they are the toolkit's, but none of those that talk to databases
    assert "outbox" in loaded
    assert not loaded & {"sqlalchemy", "alembic", "psycopg", "relay", "checkback"}


def test_the_library_is_there_once_it_is_asked_for() -> None:
    assert "sqlalchemy" in loaded_by("from outbox import Outbox\nOutbox(origin='shop')")
    assert {name for name in outbox.__all__ if not hasattr(outbox, name)} == set()
    with pytest.raises(AttributeError, match="Inbox"):
        _ = outbox.Inbox  # type: ignore[attr-defined]
