"""Request and answer codes (``RequestCode``, ``ResponseCode``, ``SystemCode`` of RocketMQ) and request templates."""

import json.encoder
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from outbox.brokers.remoting import frames


class Request(IntEnum):
    """What the toolkit asks of brokers and name servers, and brokers of it."""

    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    CREATE_TOPIC = 17
    CREATE_TOPICS = 18
    BROKER_CONFIG = 26
    RUNTIME_INFO = 28
    VIEW_MESSAGE = 33
    HEARTBEAT = 34
    SEND_MESSAGE_BACK = 36
    END_TRANSACTION = 37
    CHECK_TRANSACTION_STATE = 39
    TOPIC_ROUTE = 105
    CLUSTER_INFO = 106
    CREATE_GROUP = 200
    SEND_MESSAGE_V2 = 310
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    CHANGE_INVISIBLE = 200053


class Code(IntEnum):
    """Answers that mean something to the toolkit."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    BUSY = 2
    UNSUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210


#: The message is stored although its copy on disk or at the slave is late.
STORED: Final = frozenset((Code.SUCCESS, Code.FLUSH_DISK_TIMEOUT, Code.SLAVE_NOT_AVAILABLE, Code.FLUSH_SLAVE_TIMEOUT))

_NO_PERMISSION: Final = (
    "permission refused: check OUTBOX_ACCESS_KEY, OUTBOX_SECRET_KEY, the user's rights, the topic's perm"
)


def refusal(code: int, remark: str) -> str:
    """An answer other than success in words; where permission lacks, with what to check."""
    said = f"code {code}: {remark}"
    return f"{said} ({_NO_PERMISSION})" if code == Code.NO_PERMISSION else said


#: Adds what proves who asks to the fields of a request, given its fields and body; the one place for ACL signatures.
Sign = Callable[[Mapping[str, str], bytes], Mapping[str, str]]

#: A string as a JSON string, quotes included; ASCII only.
quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
TEXT: Final = "%s"
NUMBER: Final = '"%d"'


class Template:
    """A request of which only some fields vary: its header is one string formatting.

    ``varying`` maps field names to ``TEXT`` (values passed through ``quote``) or ``NUMBER``. A signed request takes the
    long way, since the signature covers all fields and the body.
    """

    def __init__(
        self,
        code: int,
        fixed: Mapping[str, str],
        varying: Mapping[str, str],
        sign: Sign | None = None,
        *,
        flag: int = 0,
    ) -> None:
        fields = [f"{quote(name)}:{quote(value)}".replace("%", "%%") for name, value in fixed.items()]
        fields += [f"{quote(name)}:{form}" for name, form in varying.items()]
        self._header = (
            f'{{"code":{code:d},"flag":{flag},"language":"PYTHON","opaque":%d,"version":{frames.VERSION},'
            f'"extFields":{{{",".join(fields)}}}}}'
        )
        self._code = code
        self._flag = flag
        self._sign = sign

    def frame(self, opaque: int, values: tuple[str | int, ...], body: bytes = b"") -> bytes:
        """One request; ``values`` in the order of ``varying``."""
        header = self._header % (opaque, *values)
        if self._sign is not None:
            ext = json.loads(header)["extFields"]
            return frames.encode(self._code, opaque, self._sign(ext, body), body, flag=self._flag)
        return frames.assemble(header.encode("ascii"), body)
