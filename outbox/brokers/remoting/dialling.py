"""Dialling names within a time limit, which the system's resolver does not have."""

import ipaddress
import threading
from concurrent.futures import Future

from outbox.brokers.remoting.streams import Dial, Stream


def is_name(address: str) -> bool:
    """Whether the host of ``host:port`` has to be resolved."""
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return True
    return False


class Dialling:
    """One try in a thread of its own. A resolver whose servers are silent takes as long as its file says, a minute and
    more; whoever sends messages over connections that are there cannot wait for it."""

    def __init__(self, dial: Dial, address: str, timeout: float) -> None:
        """``RuntimeError`` where the system has no thread left."""
        self._dial = dial
        self._address = address
        self._timeout = timeout
        self._stream: Future[Stream] = Future()
        self._thread = threading.Thread(target=self._run, name=f"dial-{address}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def stream(self, timeout: float) -> Stream:
        """The stream, or ``OSError``, within ``timeout`` seconds; one that comes later is ended."""
        self._thread.join(timeout)
        if self._stream.cancel():
            raise TimeoutError("its name was not resolved in time")
        return self._stream.result()

    def _run(self) -> None:
        try:
            stream = self._dial(self._address, self._timeout)
        except Exception as error:  # noqa: BLE001 -- whoever waits for it gets it
            if self._stream.set_running_or_notify_cancel():
                self._stream.set_exception(error)
            return
        if self._stream.set_running_or_notify_cancel():
            self._stream.set_result(stream)
        else:
            stream.release()
