"""`drimed trial`: describe an experiment, ask each season, tell the outcomes, prove it afterwards."""

from __future__ import annotations

import typer

from drimed.cli.trial import asking, changing, looking, reading, rehearse, season

trial = typer.Typer(help="Live trials: ask, tell, and never lose a decision.", no_args_is_help=True)
for verb in (
    season.template, rehearse.rehearse, season.init, asking.ask, season.tell, season.amend, season.missing,
    reading.status, reading.decisions, reading.why, reading.log, reading.export, reading.verify, reading.anchor,
    reading.report,
    changing.add_user, changing.add_arm, changing.retire_arm, changing.prefer, changing.control, changing.pause,
    changing.resume, changing.stop, changing.reveal, looking.look, looking.rules,
):  # fmt: skip
    trial.command()(verb)
