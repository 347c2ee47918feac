"""The command line: ``outbox …``. It composes library and daemons; nothing else does."""

from outbox.cli.app import main

__all__ = ["main"]
