"""A library with the functions of librocketmq that remembers what became of its objects."""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FakeLibrary:
    """Stores what it is given, unless ``on_send`` says otherwise."""

    #: Called with the number of the call; its answer is what the library returns (0: stored).
    on_send: Callable[[int], int] = lambda number: 0
    messages: dict[int, dict[str, str]] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    sent: list[dict[str, str]] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    destroyed: list[int] = field(default_factory=list)
    producers: list[str] = field(default_factory=list)
    started: int = 0
    shut_down: int = 0
    running: int = 0
    most_at_once: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def CreateMessage(self, topic: bytes) -> int:  # noqa: N802 -- the library's name
        """A pointer."""
        with self.lock:
            pointer = 1000 + len(self.messages)
            self.messages[pointer] = {}
        return pointer

    def SetByteMessageBody(self, message: int, body: bytes, length: int) -> int:  # noqa: N802
        """Keeps so many bytes."""
        self.bodies.append(ctypes.string_at(body, length))
        return 0

    def SetMessageProperty(self, message: int, name: bytes, value: bytes) -> int:  # noqa: N802
        """Keeps what a C string holds."""
        self.messages[message][name.split(b"\0")[0].decode()] = value.split(b"\0")[0].decode()
        return 0

    def DestroyMessage(self, message: int) -> int:  # noqa: N802
        """Must come once for each message."""
        self.destroyed.append(message)
        return 0

    def CreateProducer(self, group: bytes) -> int:  # noqa: N802
        """A pointer."""
        self.producers.append(group.decode())
        return len(self.producers)

    def StartProducer(self, producer: int) -> int:  # noqa: N802
        """Starts."""
        self.started += 1
        return 0

    def ShutdownProducer(self, producer: int) -> int:  # noqa: N802
        """The real one crashes while calls are under way."""
        assert self.running == 0
        self.shut_down += 1
        return 0

    def SendMessageOrderly(self, producer: int, message: int, *arguments: Any) -> int:  # noqa: N802
        """Asks for a queue among eight, then answers."""
        assert not self.shut_down
        selector, wanted, repeats, result = arguments
        assert repeats == 0
        with self.lock:
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
            self.queues.append(selector(8, message, wanted))
            self.sent.append(self.messages[message])
            number = len(self.sent)
        try:
            result._obj.queue_offset = number
            return self.on_send(number)
        finally:
            with self.lock:
                self.running -= 1

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("SetProducer"):
            raise AttributeError(name)
        return lambda *_: 0
