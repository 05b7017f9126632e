"""Several snapshots of a trial."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Older ones stay, so that a proof can begin where a hash was kept."""
    op.execute("CREATE TABLE drimed_snapshots_old AS SELECT * FROM drimed_snapshots")
    op.drop_table("drimed_snapshots")
    made = op.create_table(
        "drimed_snapshots",
        sa.Column("trial", sa.Integer, sa.ForeignKey("drimed_trials.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    names = [column.name for column in made.columns]
    op.execute(f"INSERT INTO drimed_snapshots ({', '.join(names)}) SELECT {', '.join(names)} FROM drimed_snapshots_old")
    op.drop_table("drimed_snapshots_old")
