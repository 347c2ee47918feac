"""The story that ``outbox demo`` tells."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from outbox.cli.demo.shop import place_orders
from outbox.cli.demo.stage import Stage
from outbox.settings import DEFAULT_FOLDER

_COMMITTED_AGAIN, _SENT_AGAIN = 20, 10


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    orders: Annotated[int, typer.Option(min=50, max=5000, help="Orders in each of three waves.")] = 200,
    folder: Annotated[
        Path, typer.Option(help="Holds databases and logs; new, empty, or an earlier demo's.")
    ] = DEFAULT_FOLDER / "demo",
) -> None:
    """Shows the main job: orders, crashes, check-back, duplicates, and what is left at the end: nothing lost."""
    console = Console(highlight=False, soft_wrap=True)
    stage = Stage(folder)
    try:
        exact = Story(stage, console, orders).tell()
    finally:
        stage.close()
    raise typer.Exit(0 if exact else 1)


class Story:
    """Three waves of orders, two killed relays, some duplicates, one count at the end."""

    def __init__(self, stage: Stage, console: Console, orders: int) -> None:
        self._stage = stage
        self._console = console
        self._orders = orders
        self._waves = 0

    def tell(self) -> bool:
        """Tells it; whether every order had one message and one effect."""
        self._say("[bold]One business fact = one RocketMQ message = one business effect[/bold]")
        self._say("SQLite and the embedded broker; every service is a process of its own.\n")
        self._stage.start("consume", "outbox.cli.demo.shop:inbox")
        self._first_crash()
        self._second_crash()
        self._third_wave()
        return self._count()

    def _first_crash(self) -> None:
        self._place()
        self._say("2. A relay sends them as half messages and is killed (SIGKILL) before it decides.")
        self._crash("relay.before_decide=kill", "--no-checkback")
        self._say(f"   half messages at the broker {self._stage.open_halves()}, visible {self._visible()}")
        self._say("3. No relay runs. The broker asks what became of its halves; the check-back answers from the rows.")
        self._stage.start("checkback")
        self._watch("adopted and committed")

    def _second_crash(self) -> None:
        self._place()
        self._say("5. A second relay decides in the database and is killed before it commits at the broker.")
        before = self._visible()
        self._crash("relay.before_commit=kill", "--no-checkback")
        self._say(
            f"   decided, not visible yet: {self._stage.unfinished()} (visible {self._visible() - before} of them)"
        )
        self._say("6. A third relay takes over once the commit lease is over, looks each half up, and commits.")
        self._stage.start("relay")
        self._watch("reconciled")

    def _third_wave(self) -> None:
        self._place()
        self._watch("shipped")
        self._say("8. Duplicates are injected: halves committed twice, events sent again under new message ids.")
        self._messages = self._stage.visible()
        self._stage.inject_duplicates(_COMMITTED_AGAIN, _SENT_AGAIN)
        self._stage.wait("the consumer to acknowledge everything", self._stage.consumed_all)

    def _place(self) -> None:
        """One wave of orders."""
        first = self._waves * self._orders
        step = (1, 4, 7)[self._waves]
        self._waves += 1
        with Progress(console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            task = progress.add_task("writing orders", total=self._orders)
            numbers = range(first + 1, first + self._orders + 1)
            committed = place_orders(self._stage.database.engine, numbers, lambda: progress.advance(task))
        rolled_back = self._orders - committed
        self._say(
            f"{step}. {committed} orders written, each with its message in one transaction; {rolled_back} rolled back."
        )

    def _crash(self, fault: str, *flags: str) -> None:
        relay = self._stage.start("relay", *flags, fault=fault)
        self._stage.wait("the relay to be killed", lambda: relay.poll() == -signal.SIGKILL)

    def _watch(self, what: str) -> None:
        """Shows how rows are finished, until none is left."""
        owed = self._stage.unfinished()
        with Progress(console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            task = progress.add_task(what, total=owed)

            def done() -> bool:
                left = self._stage.unfinished()
                progress.update(task, completed=owed - left)
                return left == 0

            self._stage.wait(f"messages to be {what}", done)
        self._say(f"   {what}: {owed} messages, visible now {self._visible()}")

    def _visible(self) -> int:
        return self._stage.visible().total()

    def _count(self) -> bool:
        written, effects = self._stage.written(), self._stage.effects()
        lost = len(written - set(self._messages)) + len(written - set(effects))
        repeated = self._messages.total() - len(self._messages) + effects.total() - len(effects)
        table = Table(title="The count", show_header=False)
        for name, value in (
            ("orders written", len(written)),
            ("messages visible", self._messages.total()),
            ("duplicates injected", self._visible() - self._messages.total()),
            ("effects", effects.total()),
            ("lost", lost),
            ("repeated", repeated),
        ):
            table.add_row(name, str(value))
        self._console.print(table)
        return lost == repeated == 0

    def _say(self, text: str) -> None:
        self._console.print(text)
