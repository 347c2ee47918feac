"""What a forked child begins anew: it has none of its parent's threads, and a lock that one held stays locked."""

import os
from collections.abc import Callable
from weakref import WeakMethod


def anew_in_children(begin: Callable[[], None]) -> None:
    """Calls the method in each forked child, before anything else of ours runs there, while its object lives."""
    if hasattr(os, "register_at_fork"):
        method = WeakMethod(begin)  # hooks stay for ever, and must not keep the object

        def begin_anew() -> None:
            if living := method():
                living()

        os.register_at_fork(after_in_child=begin_anew)
