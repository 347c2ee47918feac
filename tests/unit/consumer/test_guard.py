"""Who is watched."""

import sqlalchemy as sa

from outbox.consumer.guard import watch


def test_every_engine_is_watched_once() -> None:
    # Given engines that come and go, so that one has the address of another, while their dialects stay
    dialects = []
    for _ in range(500):
        engine = sa.create_engine("sqlite://")
        # When each is watched for two consumers, one of them under options of its own
        watch(engine)
        watch(engine.execution_options(isolation_level="SERIALIZABLE"))
        dialects.append(engine.dialect)
    # Then each statement and each error of each is seen, once
    names = "do_execute", "do_executemany", "do_execute_no_params", "handle_error"
    assert {len(list(getattr(dialect.dispatch, name))) for dialect in dialects for name in names} == {1}
