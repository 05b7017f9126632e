"""Alembic's entry: the store hands its open connection over."""

from alembic import context

from drimed.trial.stores.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="drimed_version",
    render_as_batch=True,
)
context.run_migrations()
