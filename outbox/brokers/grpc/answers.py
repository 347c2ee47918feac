"""What a proxy's answer, or its silence, says about a message: refused, perhaps stored, or certainly not stored."""

from typing import Final

from grpc import StatusCode
from grpc.aio import AioRpcError

from outbox.brokers.base import Outage, Refused, Unknown
from outbox.brokers.grpc.library import Code

#: Status codes of the proxy's protocol (``apache.rocketmq.v2.Code``): the thousands say whose fault it is.
_OK: Final = 20000
_REQUEST_FAULTS: Final = range(40000, 50000)
#: The proxy does not know the request: it did not carry it out.
_UNSUPPORTED: Final = range(50500, 50600)

_TYPE_REMEDY: Final = (
    " (create the topic with message.type=TRANSACTION for transactional rows, NORMAL or FIFO for plain ones; "
    "lanes of plain rows need FIFO)"
)
_RIGHTS_REMEDY: Final = " (check OUTBOX_ACCESS_KEY, OUTBOX_SECRET_KEY and the user's rights)"


def is_stored(code: int) -> bool:
    """Whether the master has the message: also where the disk or a slave is late."""
    late = (Code.HA_NOT_AVAILABLE, Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT)
    return code == _OK or code in late


def judged(code: int, message: str) -> Refused | Unknown | Outage:
    """An answer that is no yes."""
    said = f"code {code}: {_short(message)}"
    if code == Code.TOO_MANY_REQUESTS:
        return Outage(f"{said} (the proxy is overloaded)")
    if code == Code.TOPIC_NOT_FOUND:
        return Outage(f"{said} (create the topic)", partial=True)
    if code == Code.UNAUTHORIZED:  # whoever the proxy does not know gets nothing through
        return Outage(said + _RIGHTS_REMEDY)
    if code in _REQUEST_FAULTS or code in _UNSUPPORTED:
        return Refused(said + _remedy(code, message))
    return Unknown(said)


def failed(error: AioRpcError, *, ready: bool) -> Refused | Unknown | Outage:
    """A call that ended without the proxy's answer; ``ready``: there was a connection when it began."""
    code: StatusCode = error.code()
    said = f"{code.name}: {_short(error.details() or '')}"
    if code is StatusCode.UNIMPLEMENTED:
        return Refused(f"{said} (is this the gRPC port of a RocketMQ 5 proxy?)")
    if code is StatusCode.PERMISSION_DENIED:
        return Refused(said + _RIGHTS_REMEDY)
    if code is StatusCode.UNAUTHENTICATED:
        return Outage(said + _RIGHTS_REMEDY)
    if not ready or (code is StatusCode.UNAVAILABLE and "failed to connect" in said.lower()):
        return Outage(said)
    return Unknown(said)


def _remedy(code: int, message: str) -> str:
    if "MessageType" in message:
        return _TYPE_REMEDY
    return _RIGHTS_REMEDY if code == Code.FORBIDDEN else ""


def _short(text: str) -> str:
    """Without the name of Java's exception and the hint at a web page."""
    return text.split("\nFor more information", 1)[0].removeprefix("org.apache.rocketmq.proxy.common.ProxyException: ")
