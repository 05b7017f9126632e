"""Long texts in little room."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """An event's text may be compressed, alone or against the text of an earlier event."""
    op.add_column("drimed_events", sa.Column("base", sa.Integer))
    op.add_column("drimed_events", sa.Column("packed", sa.LargeBinary))
