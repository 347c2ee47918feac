"""No secret of a database's address is shown."""

import pytest
import sqlalchemy as sa

from outbox.shown import where, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://bob:s3cret@db:5432/shop", "postgresql+psycopg://bob:***@db:5432/shop"),
        ("postgresql+psycopg://db/shop?user=bob&password=s3cret", "postgresql+psycopg://db/shop"),
        ("mysql+pymysql://bob@db/shop?passwd=s3cret&charset=utf8mb4", "mysql+pymysql://bob@db/shop"),
        ("postgresql+psycopg://bob:an@s3cret@db/shop", "postgresql+psycopg://bob:***@db/shop"),
        ("sqlite:////var/lib/shop.db", "sqlite:////var/lib/shop.db"),
    ],
)
def test_an_address_is_shown_without_what_opens_it(url: str, shown: str) -> None:
    assert where(sa.make_url(url)) == shown


def test_a_driver_s_words_lose_the_part_of_a_password_that_was_taken_for_the_host() -> None:
    url = sa.make_url("postgresql+psycopg://bob:an@s3cret@db/shop")
    assert without_secrets("cannot resolve 's3cret@db'", url) == "cannot resolve 'db'"
    assert without_secrets("no such file", sa.make_url("sqlite:////shop.db")) == "no such file"
