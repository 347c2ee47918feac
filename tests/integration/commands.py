"""The command line, run inside the test's own process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from outbox.cli import main


@dataclass(frozen=True, slots=True)
class Run:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[..., Run]


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``run("list", "--json")``: as ``outbox list --json`` in a pipe."""

    def run(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["outbox", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Run(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run
