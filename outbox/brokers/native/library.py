"""Finds and loads ``librocketmq`` 2.x and declares the functions that are used.

Headers ``CProducer.h``, ``CPushConsumer.h``, ``CMessage.h``, ``CMessageExt.h``.

The package ``rocketmq`` is never imported: two distributions own that name (``rocketmq-client-python`` and the gRPC
client ``rocketmq-python-client``), and whichever was installed last has overwritten ``rocketmq/__init__.py``.
"""

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_int, c_longlong, c_void_p
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from outbox.errors import SettingsError

DISTRIBUTION: Final = "rocketmq-client-python"
#: Where the client writes its log (``UtilAll::getHomeDirectory``); without it: ``/logs`` in a container.
LOG_FOLDER: Final = "ROCKETMQ_CLIENT_LOG_DIR"
_FILE: Final = "librocketmq.dylib" if sys.platform == "darwin" else "librocketmq.so"

#: Chooses the queue: number of queues, message, our argument.
QueueSelector = CFUNCTYPE(c_int, c_int, c_void_p, c_void_p)
#: Takes a message: consumer, message. The answer is ``CConsumeStatus``.
MessageCallback = CFUNCTYPE(c_int, c_void_p, c_void_p)


class SendResult(ctypes.Structure):
    """``CSendResult``: what the broker said to a message that it stored."""

    _fields_ = (("status", c_int), ("message_id", c_char * 256), ("queue_offset", c_longlong))


#: Result and arguments of each function. Pointers are ``c_void_p``: an undeclared result is cut to 32 bits.
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "GetLatestErrorMessage": (c_char_p,),
    "CreateMessage": (c_void_p, c_char_p),
    "DestroyMessage": (c_int, c_void_p),
    "SetByteMessageBody": (c_int, c_void_p, c_char_p, c_int),
    "SetMessageProperty": (c_int, c_void_p, c_char_p, c_char_p),
    "CreateProducer": (c_void_p, c_char_p),
    "StartProducer": (c_int, c_void_p),
    "ShutdownProducer": (c_int, c_void_p),
    "SetProducerNameServerAddress": (c_int, c_void_p, c_char_p),
    "SetProducerInstanceName": (c_int, c_void_p, c_char_p),
    "SetProducerSessionCredentials": (c_int, c_void_p, c_char_p, c_char_p, c_char_p),
    "SetProducerSendMsgTimeout": (c_int, c_void_p, c_int),
    "SetProducerMaxMessageSize": (c_int, c_void_p, c_int),
    "SetProducerCompressMsgBodyOverHowmuch": (c_int, c_void_p, c_int),
    "SetProducerLogLevel": (c_int, c_void_p, c_int),
    "SendMessageOrderly": (c_int, c_void_p, c_void_p, QueueSelector, c_void_p, c_int, POINTER(SendResult)),
    "CreatePushConsumer": (c_void_p, c_char_p),
    "StartPushConsumer": (c_int, c_void_p),
    "ShutdownPushConsumer": (c_int, c_void_p),
    "SetPushConsumerNameServerAddress": (c_int, c_void_p, c_char_p),
    "SetPushConsumerInstanceName": (c_int, c_void_p, c_char_p),
    "SetPushConsumerSessionCredentials": (c_int, c_void_p, c_char_p, c_char_p, c_char_p),
    "SetPushConsumerThreadCount": (c_int, c_void_p, c_int),
    "SetPushConsumerLogLevel": (c_int, c_void_p, c_int),
    "SetPushConsumerMessageTrace": (c_int, c_void_p, c_int),
    "Subscribe": (c_int, c_void_p, c_char_p, c_char_p),
    "RegisterMessageCallback": (c_int, c_void_p, MessageCallback),
    "GetMessageTopic": (c_char_p, c_void_p),
    "GetMessageQueueId": (c_int, c_void_p),
    "GetMessageReconsumeTimes": (c_int, c_void_p),
    "GetMessageQueueOffset": (c_longlong, c_void_p),
    "GetMessageCommitLogOffset": (c_longlong, c_void_p),
}


def load(named: str = "") -> Any:
    """The library at ``named``, or else beside the package, or else where the system's loader finds it.

    ``SettingsError`` where there is none that works. Makes the folder of the client's log, and sets
    ``ROCKETMQ_CLIENT_LOG_DIR`` for this process if nobody did.
    """
    _prepare_log_folder()
    problems = []
    for path in [named] if named else _places():
        try:
            return _declared(ctypes.CDLL(path))
        except (OSError, AttributeError) as problem:
            problems.append(f"{path}: {problem}")
    raise SettingsError(
        "OUTBOX_BROKER_URL: rocketmq+native needs the C++ client librocketmq 2.x: pip install "
        f"'rocketmq-outbox[native]', then put {_FILE} into its package folder rocketmq or on the loader's path "
        f"(LD_LIBRARY_PATH), or name it by OUTBOX_NATIVE_LIBRARY ({'; '.join(problems)})"
    )


def log_folder() -> Path:
    """Where the client writes its log: what the environment says, else a folder of this user among temporary files."""
    named = os.environ.get(LOG_FOLDER)
    return Path(named).absolute() if named else Path(tempfile.gettempdir()) / f"rocketmq-outbox-{os.getuid()}"


def _places() -> Iterator[str]:
    """Beside the package, wherever its distribution was installed; then the name alone, for the loader to find."""
    yield from _beside_the_package()
    yield _FILE


def _beside_the_package() -> Iterator[str]:
    try:
        beside = Path(str(metadata.distribution(DISTRIBUTION).locate_file(f"rocketmq/{_FILE}")))
    except metadata.PackageNotFoundError:
        return
    if beside.exists():
        yield str(beside)


def _declared(library: Any) -> Any:
    """``AttributeError`` where a function is missing: a library of 1.x."""
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _prepare_log_folder() -> None:
    """Sees to it that the client can write its log: it does not start otherwise."""
    folder = log_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise SettingsError(f"{LOG_FOLDER}: {folder} cannot be made: {problem}; name another folder") from problem
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"{LOG_FOLDER}: {folder} cannot be written; name another folder")
    os.environ[LOG_FOLDER] = str(folder)
