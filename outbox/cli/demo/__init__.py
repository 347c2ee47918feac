"""``outbox demo``: the whole story in real processes, on SQLite and the embedded broker."""

from outbox.cli.demo.command import register

__all__ = ["register"]
