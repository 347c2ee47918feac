"""The table of the statistics service."""

import sqlalchemy as sa

metadata = sa.MetaData()

#: Running totals: an event that is counted twice shows for ever.
page_views = sa.Table(
    "page_views",
    metadata,
    sa.Column("campaign", sa.String(32), primary_key=True),
    sa.Column("page", sa.String(20), primary_key=True),
    sa.Column("views", sa.Integer, nullable=False),
)

PAGES = ("cart", "checkout", "home", "search")


def create(engine: sa.Engine, campaign: str) -> None:
    """Creates the table, and the totals of a new campaign."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(page_views.insert(), [{"campaign": campaign, "page": page, "views": 0} for page in PAGES])
