"""Keeps producer groups registered at the masters of some topics, or at all, so that they ask us about halves."""

import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from outbox.brokers.base import OnCheck
from outbox.brokers.remoting.checks import CheckWorkers, Question
from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connection import Connection
from outbox.brokers.remoting.connections import Connections, RemotingError, ignore_request
from outbox.brokers.remoting.frames import Frame
from outbox.brokers.remoting.routes import Routes
from outbox.brokers.remoting.transactions import Transactions
from outbox.clock import monotonic

log = logging.getLogger(__name__)

#: Seconds between heartbeats; the broker forgets a producer after 120.
HEARTBEAT: Final = 30.0
#: Seconds after which a registration is no longer taken for granted.
_STALE: Final = 90.0
#: Seconds between two looks at connections and routes.
_TICK: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Subscription:
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    on_check: OnCheck


@dataclass(frozen=True, slots=True)
class _Registration:
    connection: Connection
    subscription: _Subscription
    at: float

    def holds(self, subscription: _Subscription, age: float) -> bool:
        """Whether the broker knows these groups on a connection that is open, told at most ``age`` seconds ago."""
        current = self.subscription.groups == subscription.groups and self.connection.is_open
        return current and monotonic() - self.at < age


class Listener:
    """One thread that sends heartbeats; checks go from the connections' readers to ``CheckWorkers``."""

    def __init__(self, heartbeat: float = HEARTBEAT) -> None:
        """``heartbeat``: seconds between two."""
        self._heartbeat = heartbeat
        self._client = f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(4)}"
        self._subscription: _Subscription | None = None
        self._registered: dict[str, _Registration] = {}
        #: Name and address of the masters as of the last look, and what that look was for.
        self._masters: dict[str, str] = {}
        self._looked_for: _Subscription | None = None
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._workers: CheckWorkers | None = None

    def connect(self, connections: Connections, routes: Routes, transactions: Transactions) -> None:
        """Names what it works with; before the first ``listen``. Connections need ``on_request`` to be made."""
        self._connections = connections
        self._routes = routes
        self._transactions = transactions

    def listen(self, group: str, topics: Collection[str], on_check: OnCheck, groups: Collection[str]) -> None:
        """Replaces what is listened to; the first call starts the threads."""
        every = tuple(dict.fromkeys((group, *groups)))
        with self._starting:
            self._subscription = _Subscription(tuple(dict.fromkeys(topics)), every, on_check)
            if self._workers is None:
                self._workers = CheckWorkers(self._transactions, self._handler)
                threading.Thread(target=self._run, name="remoting-heartbeat", daemon=True).start()
        self._wake.set()

    def is_ready(self) -> bool:
        """Whether every master that has one of the topics knows all groups, on a connection that is open."""
        subscription = self._subscription
        masters = list(self._masters.values())
        if subscription is None or subscription is not self._looked_for or not masters:
            return False
        registered = [self._registered.get(address) for address in masters]
        return all(each is not None and each.holds(subscription, _STALE) for each in registered)

    def on_request(self, connection: Connection, frame: Frame) -> None:
        """Takes a broker's request in, on the reader thread of its connection."""
        workers = self._workers
        if frame.code != Request.CHECK_TRANSACTION_STATE or workers is None:
            ignore_request(connection, frame)
            return
        asking = [name for name, address in list(self._masters.items()) if address == connection.address]
        workers.put(Question(frame, str(frame.ext.get("bname") or "") or (asking[0] if asking else "")))

    def stop(self) -> None:
        """Ends the threads."""
        self._stopped = True
        self._subscription = None
        self._wake.set()
        if self._workers is not None:
            self._workers.stop()

    def _handler(self) -> OnCheck | None:
        subscription = self._subscription
        return None if subscription is None else subscription.on_check

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                self._register()
            except Exception:
                log.exception("heartbeat failed; it is tried again in %.0f s", _TICK)
            self._wake.wait(_TICK)

    def _register(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        try:
            self._masters = dict(self._routes.masters_of(subscription.topics))
        except RemotingError as problem:
            log.warning("no checks are heard: %s", problem)
            return
        self._looked_for = subscription
        for address in self._masters.values():
            known = self._registered.get(address)
            if known is None or not known.holds(subscription, self._heartbeat):
                self._beat(address, subscription)

    def _beat(self, address: str, subscription: _Subscription) -> None:
        """Registers the groups on the connection that also carries our requests; checks come back on it."""
        producers = [{"groupName": group} for group in subscription.groups]
        beat = {"clientID": self._client, "producerDataSet": producers, "consumerDataSet": []}
        try:
            connection = self._connections.get(address, monotonic() + _STALE)
            self._connections.ask(address, Request.HEARTBEAT, {}, json.dumps(beat).encode())
        except RemotingError as problem:
            log.warning("no checks are heard from %s: %s", address, problem)
            self._routes.doubt(address)
            return
        self._registered[address] = _Registration(connection, subscription, monotonic())
