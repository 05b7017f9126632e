"""`drimed trial`: describe an experiment, ask each season, tell what came of it, prove it afterwards."""

from __future__ import annotations

import typer

from drimed.cli.trial import changing, looking, season

app = typer.Typer(help="Live trials: ask, tell, and never lose a decision.", no_args_is_help=True)
app.command()(season.template)
app.command()(season.init)
app.command()(season.ask)
app.command()(season.tell)
app.command()(season.amend)
app.command()(season.missing)
app.command()(looking.status)
app.command()(looking.log)
app.command()(looking.export)
app.command()(looking.verify)
app.command()(looking.report)
app.command()(changing.add_user)
app.command()(changing.add_arm)
app.command()(changing.retire_arm)
app.command()(changing.prefer)
app.command()(changing.control)
app.command()(changing.pause)
app.command()(changing.resume)
app.command()(changing.stop)
