"""The tables of triforge 0.2: an empty database gets them from `triforge.store.tables` and is stamped with this revision.

A database of triforge 0.1 at this revision has the same tables, with a few columns more that stay unused: it is used as it
is. An older one is opened once with the last 0.1, which brings it to this revision.
"""

revision = "0012"
down_revision = None


def upgrade() -> None: ...
