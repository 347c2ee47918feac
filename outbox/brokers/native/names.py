"""Names that the client's log cannot take: 2.1 prints its allocation of queues with the text itself as the format."""

import re
from collections.abc import Collection
from typing import Final

from outbox.errors import SettingsError

#: What ``printf`` reads as text at some address, or writes to it; other conversions only print nonsense.
_DEADLY: Final = re.compile("%[-0-9I]*[hlqLjzZt]*[snS]")


def check_names(group: str, topics: Collection[str]) -> None:
    """``SettingsError`` for a group, or a topic, whose name ends the process sooner or later (``Rebalance.cpp``)."""
    if _DEADLY.search(f"%RETRY%{group}"):
        raise SettingsError(
            f"group {group!r}: librocketmq takes its retry topic %RETRY%{group} for a printf format and crashes: let "
            f"the name begin otherwise (outbox-{group}), or set OUTBOX_BROKER_URL to rocketmq://"
        )
    for topic in topics:
        if _DEADLY.search(topic):
            raise SettingsError(
                f"topic {topic!r}: librocketmq takes it for a printf format and crashes: choose another name or "
                "OUTBOX_NAMESPACE, or set OUTBOX_BROKER_URL to rocketmq://"
            )
