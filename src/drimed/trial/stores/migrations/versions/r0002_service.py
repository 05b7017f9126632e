"""What the service needs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Tokens, and the answers to requests that may be repeated."""
    op.create_table(
        "drimed_tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("label", sa.String(100), nullable=False, unique=True),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("trial", sa.String(100)),
        sa.Column("created", sa.String(40), nullable=False),
        sa.Column("expires", sa.String(40)),
        sa.Column("revoked", sa.String(40)),
    )
    op.create_table(
        "drimed_requests",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("time", sa.String(40), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
    )
    op.create_index("drimed_requests_by_key", "drimed_requests", ["actor", "key"], unique=True)
    op.create_index("drimed_requests_by_time", "drimed_requests", ["time"])
