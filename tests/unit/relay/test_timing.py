"""When to try again."""

from hypothesis import given
from hypothesis import strategies as st

from relay.timing import Pause, backoff


@given(st.integers(1, 10_000), st.floats(-1, 1))
def test_backoff_doubles_up_to_its_most(failures: int, jitter: float) -> None:
    delay = backoff(failures, first=1.0, most=300.0, jitter=jitter)
    plain = min(2.0 ** min(failures - 1, 30), 300.0)
    assert plain * 0.8 - 1e-6 <= delay <= plain * 1.2 + 1e-6


def test_a_pause_grows_until_there_is_work() -> None:
    pause = Pause(0.1, 0.5)
    assert [pause.grow() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    pause.reset()
    assert pause.grow() == 0.1
