"""Which module has which command: a command imports its own module only, and starts so much sooner."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

#: In the order of the help text.
_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("relay", "checkback"), "daemons"),
        "consume": "consume",
        "health": "health",
        **dict.fromkeys(("status", "list", "show", "requeue", "cancel", "purge"), "rows"),
        "audit": "audit",
        "doctor": "doctor",
        "demo": "demo",
        "db": "database",
        "parked": "parked",
    }
)


class Commands(TyperGroup):
    """The commands by name; the help text, and the proposals for a name that is none, need them all."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None where there is none of this name."""
        self._import({cmd_name} & _MODULES.keys() or _MODULES)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 -- as the base class is called
        """All names."""
        return list(_MODULES)

    def _import(self, names: Iterable[str]) -> None:
        for module in {_MODULES[name] for name in names if name not in self.commands}:
            commands = typer.Typer()
            import_module(f"outbox.cli.{module}").register(commands)
            self.commands.update(get_group(commands).commands)
