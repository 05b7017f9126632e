"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Trials, their events, and the newest snapshot of each."""
    op.create_table(
        "drimed_trials",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "drimed_events",
        sa.Column("trial", sa.Integer, sa.ForeignKey("drimed_trials.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("time", sa.String(40), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("decision", sa.Integer),
        sa.Column("user", sa.Text),
        sa.Column("request", sa.Text),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("drimed_events_by_decision", "drimed_events", ["trial", "decision"])
    op.create_index("drimed_events_by_request", "drimed_events", ["trial", "request"])
    op.create_table(
        "drimed_snapshots",
        sa.Column("trial", sa.Integer, sa.ForeignKey("drimed_trials.id"), primary_key=True),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
