"""A cluster of several name servers and brokers, masters and slaves, each of which may crash and come back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from outbox.brokers.remoting.commands import Request
from outbox.brokers.remoting.connections import Connections, RemotingError
from outbox.brokers.remoting.routes import split_addresses
from outbox.brokers.remoting.stored import loads_lenient
from tests.services.rocketmq.admin import Admin
from tests.services.rocketmq.cluster import DEFAULT_VERSION, BrokerServer, NameServer, create_topics
from tests.services.rocketmq.configuration import CHECKS

#: ``brokerId`` of a master; others are slaves.
MASTER: Final = 0
#: ``PermName``: read, not write.
_READ_ONLY: Final = 4


@dataclass(frozen=True, slots=True)
class Member:
    """One broker of a deployment."""

    name: str
    number: int = MASTER
    #: Lines of its file beside those of every broker.
    settings: Mapping[str, object] = field(default_factory=dict)


class MemberServer(BrokerServer):
    """A broker among others; a slave is ready once a name server knows it."""

    def __init__(self, version: str, name_servers: str, member: Member) -> None:
        own = {"brokerName": member.name, "brokerId": member.number}
        role = {} if member.number == MASTER else {"brokerRole": "SLAVE"}
        super().__init__(version, name_servers, {**CHECKS["fast"], **own, **role, **member.settings}, optimised=False)
        self.member = member

    def is_ready(self) -> bool:
        if self.member.number == MASTER:
            return super().is_ready()
        return addresses(self._name_server, self.member.name).get(str(self.member.number)) == self.url

    def move(self) -> None:
        """Comes back on the same store and another port, after ``kill``."""
        self._start_on_free_port()


def addresses(name_servers: str, broker: str) -> Mapping[str, str]:
    """Address by number of the brokers of this name that a name server knows; {} where none answers."""
    connections = Connections()
    try:
        for address in split_addresses(name_servers):
            answer = connections.ask(address, Request.CLUSTER_INFO, {})
            found: dict[str, str] = loads_lenient(answer.body)["brokerAddrTable"].get(broker, {}).get("brokerAddrs", {})
            return found
    except RemotingError:
        return {}
    finally:
        connections.close()
    return {}


class Deployment:
    """Name servers and brokers that are ours; all start at once, in threads."""

    def __init__(self, members: Sequence[Member], *, name_servers: int = 1, version: str = DEFAULT_VERSION) -> None:
        self._version = version
        self._members = members
        self.name_servers = [NameServer(version, optimised=False) for _ in range(name_servers)]
        self._brokers: dict[tuple[str, int], MemberServer] = {}

    @property
    def url(self) -> str:
        """All name servers, as clients are told of them."""
        return ";".join(server.url for server in self.name_servers)

    def broker(self, name: str, number: int = MASTER) -> MemberServer:
        """One of the brokers."""
        return self._brokers[name, number]

    def create_topics(self, topics: Collection[str], *, queues: int = 4, at: str | None = None) -> None:
        """Creates topics at every master, or at one, and waits until they have a route there."""
        if at is None:
            create_topics(self.url, topics, queues=queues)
            return
        with Admin(self.url) as admin:
            admin.create_topics(self.broker(at).url, topics, queues=queues)

    def close_topic(self, topic: str) -> None:
        """Takes the right to write from a topic, at every master."""
        with Admin(self.url) as admin:
            for address in admin.brokers().values():
                admin.create_topic(address, topic, perm=_READ_ONLY)

    def start(self) -> Self:
        """Returns once every server is ready."""
        try:
            self._all([server.start for server in self.name_servers])
            self._brokers = {
                (member.name, member.number): MemberServer(self._version, self.url, member) for member in self._members
            }
            self._all([broker.start for broker in self._brokers.values()])
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends all and removes their folders."""
        self._all([server.stop for server in (*self._brokers.values(), *self.name_servers)])

    @staticmethod
    def _all(calls: Sequence[Callable[[], object]]) -> None:
        """Calls all at once and waits for each; the first failure is raised afterwards."""
        with ThreadPoolExecutor(max(1, len(calls))) as pool:
            started = [pool.submit(call) for call in calls]
        for each in started:
            each.result()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
