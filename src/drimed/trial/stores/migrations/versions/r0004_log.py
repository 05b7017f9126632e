"""A chained log of what is done to tokens."""

import sqlalchemy as sa
from alembic import op

from drimed.trial.events import START, Draft, chain, now

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = ("id", "label", "role", "trial", "created", "expires", "hash", "revoked")


def upgrade() -> None:
    """It begins with the tokens that are there."""
    log = op.create_table(
        "drimed_log",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time", sa.String(40), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    found = op.get_bind().execute(sa.text(f"SELECT {', '.join(COLUMNS)} FROM drimed_tokens ORDER BY created, id")).all()
    drafts = [Draft("found", dict(zip(COLUMNS, row, strict=True))) for row in found]
    names = ("seq", "time", "actor", "kind", "text", "hash")
    events = chain(drafts, seq=0, hash=START, time=now(), actor="drimed")
    if events:
        op.bulk_insert(log, [{name: getattr(event, name) for name in names} for event in events])
