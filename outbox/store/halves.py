"""The half that a row has chosen: the columns that tell of it, as they are read and written."""

from typing import Any, Final

from outbox.brokers.base import Half
from outbox.schema import outbox
from outbox.store.change import fresh_lease
from outbox.store.clock import utc_now

#: What is read of a half; ``half_of`` takes it by name, from wherever it stands in a row.
HALF: Final = (
    outbox.c.topic,
    outbox.c.half_id,
    outbox.c.half_broker,
    outbox.c.half_handle,
    outbox.c.half_group,
)


def half_of(row: Any) -> Half:
    """The half of a row that was read with ``HALF``, and has one."""
    return Half(row.topic, row.half_id, row.half_broker, row.half_handle, row.half_group)


def half_columns() -> dict[str, type]:
    """The given columns that describe a half."""
    return {"half_id": str, "broker": str, "handle": str, "half_group": str}


def half_values(half: Half) -> dict[str, object]:
    """A half as given columns."""
    return {"half_id": half.half_id, "broker": half.broker, "handle": half.handle, "half_group": half.group}


def chosen_half(rows: Any) -> dict[str, Any]:
    """Records the winning half and the moment of the decision, and takes the commit lease for ``:seconds``."""
    return {
        "half_id": rows.half_id,
        "half_broker": rows.broker,
        "half_handle": rows.handle,
        "half_group": rows.half_group,
        "decided_at": utc_now(),
        "reason": None,
        **fresh_lease(),
    }


def no_half() -> dict[str, Any]:
    """No half is chosen."""
    return dict.fromkeys(("half_id", "half_broker", "half_handle", "half_group", "decided_at"))
