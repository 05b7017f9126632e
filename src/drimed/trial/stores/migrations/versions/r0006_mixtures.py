"""Lists that are mixtures of others."""

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are the same. An older drimed could not read what is written from now on, and is told so."""
