"""Redis scripts that many threads call: the calls that come while a round trip is under way share the next one.

Threads that all go through the sockets of a client each hand Python's interpreter lock on at every system call, and
spend more on that than on their work. A thread that finds nobody under way goes at once, with its own call alone. Trips
that follow each other use one connection, since taking one from the pool and giving it back costs as much as a call; it
is given back as soon as nobody waits, so that the pool has what it had without us, and finds connections that are gone.
"""

import threading
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import NoScriptError, ResponseError

from outbox.consumer.forks import anew_in_children


class RoundTrips:
    """The calls of one client; safe in any thread. Each gets its own answer, or its own error.

    Where a trip is lost all that shared it raise what it raised: whether they were carried out is open, as for a call
    alone. A cluster's client has each call go alone. So does the main thread: a signal may interrupt it anywhere, and
    nobody must wait for it then.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._shares = isinstance(client, Redis)
        self._begin()
        anew_in_children(self._begin)

    def call(self, script: Any, key: bytes, arguments: Sequence[Any]) -> Any:
        """The script's answer for one key."""
        call = _Call(script, key, arguments)
        if not self._shares or threading.current_thread() is threading.main_thread():
            return call.alone()
        if self._leads(call) or self._is_to_lead(call):
            self._lead(call)
        return call.result()

    def _begin(self) -> None:
        """Nobody is under way: who was in the parent of a forked child will not come back here."""
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._under_way = False
        self._connection: Any = None  # of those who are under way

    def _leads(self, call: "_Call") -> bool:
        """Whether nobody is under way; else the call waits for the next trip."""
        with self._lock:
            if self._under_way:
                self._waiting.append(call)
                return False
            self._under_way = True
            return True

    def _is_to_lead(self, call: "_Call") -> bool:
        """Waits until the call is answered (False), or is to take those that wait along (True)."""
        call.settled.acquire()
        return call.leads

    def _lead(self, call: "_Call") -> None:
        with self._lock:
            together, self._waiting = [call, *self._waiting], []
        try:
            self._send(together)
        finally:
            try:
                self._hand_over()
            finally:
                for other in together[1:]:
                    other.settled.release()

    def _hand_over(self) -> None:
        """The first that waits leads the next trip: nobody serves the others for longer than its own."""
        with self._lock:
            if self._waiting:
                following = self._waiting.pop(0)
                following.leads = True
                following.settled.release()
                return
            self._under_way = False
            connection, self._connection = self._connection, None
        if connection is not None:
            self._client.connection_pool.release(connection)

    def _send(self, together: "Sequence[_Call]") -> None:
        try:
            answers = self._answers(together)
        except Exception as error:  # noqa: BLE001 -- raised again in each caller's thread
            answers = [error] * len(together)
        for call, answer in zip(together, answers, strict=True):
            call.answer = answer

    def _answers(self, together: "Sequence[_Call]") -> list[Any]:
        """Those of one trip; repeated as the client's settings say, as each call alone would be."""
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        connection = self._connection
        try:
            answers: list[Any] = connection.retry.call_with_retry(
                lambda: _exchanged(connection, together), lambda _: connection.disconnect()
            )
        except BaseException:
            connection.disconnect()  # answers that nobody reads may be on their way
            raise
        return answers


def _exchanged(connection: Any, together: "Sequence[_Call]") -> list[Any]:
    commands = [("EVALSHA", call.script.sha, 1, call.key, *call.arguments) for call in together]
    connection.send_packed_command(connection.pack_commands(commands))
    return [_read(connection) for _ in commands]


def _read(connection: Any) -> Any:
    """An answer, or Redis' refusal of this one call."""
    try:
        return connection.read_response()
    except ResponseError as refused:
        return refused


class _Call:
    __slots__ = ("answer", "arguments", "key", "leads", "script", "settled")

    def __init__(self, script: Any, key: bytes, arguments: Sequence[Any]) -> None:
        self.script = script
        self.key = key
        self.arguments = arguments
        self.leads = False
        self.answer: Any = Disconnected("the thread that led the round trip was interrupted")
        #: Released once; an Event costs several times as much.
        self.settled = threading.Lock()
        self.settled.acquire()

    def alone(self) -> Any:
        """In a round trip of its own, which loads the script where Redis does not have it."""
        return self.script(keys=[self.key], args=self.arguments)

    def result(self) -> Any:
        """The answer, or raises what Redis or its client raised."""
        if isinstance(self.answer, NoScriptError):
            return self.alone()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
