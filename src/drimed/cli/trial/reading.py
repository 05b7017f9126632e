"""What is known: status, decisions, effects, log, export, report, proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from drimed.cli.trial import common
from drimed.cli.trial.common import Address, Force, Name, Out
from drimed.errors import InputError, UnknownNameError
from drimed.records import PENDING
from drimed.trial.stores import DEFAULT, open_store

if TYPE_CHECKING:
    from drimed.records import Event
    from drimed.trial.trial import Trial

NOT_PROVED = 2  # exit code where a proof needs something that is not here


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    store: Address = DEFAULT,
) -> None:
    """The state of a trial, or of all trials, at a glance."""
    from drimed.trial.trial import Trial

    opened = open_store(store, create=False)
    trials = [Trial.open(n, opened) for n in ([name] if name else opened.names())]
    found = [trial.status() for trial in trials]
    if as_json:
        plain = [s.plain() for s in found]
        common.say_json(plain[0] if name else plain, indent=1)
        return
    columns, states = ("users", "decisions"), ("pending", "partial", "complete", "missing")
    common.show(
        [
            {"trial": s.name, "status": s.status, "model": s.model, "season": s.season or s.episode}
            | {c: getattr(s, c) for c in columns}
            | {"outcomes": ", ".join(f"{getattr(s, c)} {c}" for c in states if getattr(s, c))}
            for s in found
        ]
    )
    if name and (wrong := _withdrawn(trials[0])):
        common.say(wrong, "bold")
    if name and found[0].rules_met:
        common.say(f"stopping rules that are met: {', '.join(found[0].rules_met)}")
    if name and found[0].floor_ended:
        common.say(f"the floor has ended for {', '.join(found[0].floor_ended)}")
    if name and found[0].halted:
        common.say(f"{found[0].status}: {found[0].halted}")
    if name and found[0].enrolment == "open":
        common.say("enrolment is open: asking for somebody new enrols them")
    for text in found[0].notes if name else ():
        common.note(text)


def _withdrawn(trial: Trial) -> str | None:
    """Which promise of a trial does not hold; it is a check of all outcomes, and made where a person reads."""
    from drimed.findings.checks import withdrawn

    return withdrawn(trial)


def decisions(
    name: Name,
    user: Annotated[str, typer.Option(help="Only for this user.")] = "",
    plot: Annotated[str, typer.Option(help="Only on this plot.")] = "",
    block: Annotated[str, typer.Option(help="Only in this block.")] = "",
    arm: Annotated[str, typer.Option(help="Only this arm.")] = "",
    state: Annotated[str, typer.Option(help="pending, partial, complete, missing or amended.")] = "",
    before: Annotated[int | None, typer.Option(help="Only decisions before this one.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many of the newest; default: 25 on the screen, all in a file."),
    ] = None,
    blinded: Annotated[
        bool, typer.Option("--blinded", help="For somebody who must not know the arms: without all that tells them.")
    ] = False,
    out: Out = None,
    force: Force = False,
    store: Address = DEFAULT,
) -> None:
    """Decisions with their outcomes, newest first; in a file, oldest first.

    `--state pending --out sheet.csv` is a sheet to fill in.
    """
    if blinded and arm:
        raise InputError("--blinded shows no arms: leave out --arm")
    trial = common.open_trial(name, store)
    from drimed.trial import blinding, queries, sheets

    if state and state not in queries.SEARCHES:
        raise UnknownNameError("state", state, queries.SEARCHES)
    with trial.reading() as (ledger, known):
        wanted = queries.Search(user, arm, state, plot, block)
        most = queries.PAGE if out is None else known.counts.decisions
        found = queries.search(ledger, known, wanted, before=before, limit=limit or max(1, most))
        given = [blinding.blinded(known, d) for d in found.decisions] if blinded else found.decisions
        given = given if out is None else given[::-1]  # people fill in one season after the other
        rows = sheets.to_fill_in(known, given)
    if out is None:
        places = sheets.places_of(given)
        names = ["user", *places, "arm", "code", "state", "reward"]
        unused = {name for name in ("code",) if all(d.code is None for d in given)}
        unused |= {"arm", "reward"} if blinded and not known.opened else set()
        rows = [
            {"decision": d.id, "season": d.season or d.episode} | {n: getattr(d, n) for n in names if n not in unused}
            for d in given
        ]
    empty = sheets.headings(known, blinded=blinded)
    common.put(rows, out, [d.plain() for d in given], empty, force=force)
    if not given:
        common.say("no such decisions" + _partial(name, known.counts.partial if state == PENDING else 0))
    if found.before is not None:
        common.say(f"older decisions: --before {found.before}")


def _partial(name: str, count: int) -> str:
    """Where to look for outcomes of which something is still to come, when none is pending."""
    are = "is" if count == 1 else "are"
    return f"; {count} {are} partial: drimed trial decisions {name} --state partial" if count else ""


def why(
    name: Name,
    decision: Annotated[int, typer.Argument(metavar="DECISION", help="The number of the decision.")],
    store: Address = DEFAULT,
) -> None:
    """Why this arm: what it was estimated to bring, how likely it was, and what the guard did."""
    trial = common.open_trial(name, store)
    from drimed.trial import queries
    from drimed.trial.seasons import when
    from drimed.trial.why import in_words

    with trial.reading() as (ledger, state):
        found = queries.decision(ledger, state, decision)
        sentences = in_words(ledger, state, found)
    where = "" if found.plot is None else f", plot {found.plot}"
    common.say(f"decision {found.id}, {when(found)}: {found.arm} for {found.user}{where}", "bold")
    for sentence in sentences:
        common.say(sentence)
    if wrong := _withdrawn(trial):
        from drimed.findings.checks import no_promise

        common.say(no_promise(wrong))


def log(
    name: Name,
    user: Annotated[str | None, typer.Option(help="Only about this user.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; repeatable.")] = None,
    decision: Annotated[int | None, typer.Option(help="All events about one decision.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest events.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one event on each line, all of them.")] = False,
    store: Address = DEFAULT,
) -> None:
    """The events of a trial, newest last."""
    trial = common.open_trial(name, store)
    from drimed.trial import queries
    from drimed.trial.events import KINDS

    for k in kind or ():
        if k not in KINDS:
            raise UnknownNameError("kind", k, KINDS)
    if decision is not None:
        with trial.reading() as (ledger, state):
            events = queries.history(ledger, state, decision)
    elif as_json:
        events = list(trial.log(kinds=kind or (), user=user))
    else:
        events = list(trial.log(kinds=kind or (), user=user, limit=limit, newest_first=True))[::-1]
    if as_json:
        for e in events:
            common.say_json(e.plain())
        return
    common.show(
        [
            {
                "event": e.seq,
                "time (UTC)": e.time[:16].replace("T", " "),
                "actor": e.actor,
                "kind": e.kind,
                "decision": e.decision,
                "user": e.user,
                "what": summary(e),
            }
            for e in events
        ]
    )


def export(
    name: Name,
    out: Annotated[Path, typer.Option(help="A .csv, .xlsx, .json or .parquet file.")],
    force: Force = False,
    whole: Annotated[bool, typer.Option("--whole", help="Only decisions whose reward is known.")] = False,
    store: Address = DEFAULT,
) -> None:
    """Every decision with its outcome, one row each, and a data dictionary beside it."""
    trial = common.open_trial(name, store)
    from drimed.trial.export import write

    count = write(trial, out, whole=whole, force=force)
    common.say(f"wrote {out}: {count} decisions; columns are explained in {out.with_suffix('.dictionary.csv')}")


def report(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="A folder; default: out/trial/NAME, written over.")] = None,
    force: Force = False,
    xlsx: Annotated[bool, typer.Option("--xlsx", help="Its tables as workbooks (.xlsx) and not as CSV.")] = False,
    store: Address = DEFAULT,
) -> None:
    """Write a report as one page: effects, reward against the control, drift, data quality."""
    trial = common.open_trial(name, store)
    from drimed.findings.page import write_report

    suffix, place = ".xlsx" if xlsx else ".csv", out or Path("out/trial") / name
    page = write_report(trial, place, suffix=suffix, force=force or out is None)
    common.say(f"Open {page}; tables are beside it")


def anchor(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")] = None,
    to: Annotated[Path | None, typer.Option(help="A file to add to; default: print the lines.")] = None,
    store: Address = DEFAULT,
) -> None:
    """Keep where the log stands, on another disk or machine: `verify --anchors` then finds every change before it.

    A line has a time, the trial, the number of an event and its hash. The file gets each episode that it does not have
    yet, and the last event.
    """
    from drimed.trial import anchors
    from drimed.trial.events import now

    opened = open_store(store, create=False)
    known = anchors.load(to) if to is not None and to.exists() else []
    new = []
    for one in [name] if name else opened.names():
        with opened.reading(one) as ledger:
            new += list(anchors.missing(ledger, known, now()) if to is not None else [anchors.of(ledger, now())])
    if to is None:
        for head in new:
            typer.echo(anchors.line(head))
        return
    anchors.append(to, new)
    common.say(f"added {len(new)} line{'' if len(new) == 1 else 's'} to {to}")


def verify(
    name: Name,
    expect: Annotated[str | None, typer.Option(help="A hash shown earlier: it must still be in the log.")] = None,
    anchored: Annotated[
        Path | None, typer.Option("--anchors", help="A file of `drimed trial anchor`: its hashes must be in the log.")
    ] = None,
    store: Address = DEFAULT,
) -> None:
    """Replay the whole trial from its log: the chain must hold, every event must be one that could have been recorded
    there, and every decision must be reproduced."""
    from drimed.trial import anchors
    from drimed.trial.verify import verify as check

    opened = open_store(store, create=False)
    kept = [] if anchored is None else [head for head in anchors.load(anchored) if head.trial == name]
    if anchored is not None and not kept:
        raise InputError(f"{anchored} has no anchor of trial {name!r}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=common.console, transient=True) as progress:
        bar = progress.add_task("events")
        proof = check(
            opened,
            name,
            expected_hash=expect,
            anchors=kept,
            progress=lambda n, of: progress.update(bar, completed=n, total=of),
        )
    for fault in proof.faults:
        common.say(f"fault: {fault}", "bold red")
    replayed = f"{proof.exact} of {proof.decisions} decisions reproduced to the last bit"
    if proof.rounded:
        replayed += f", {proof.rounded} to round-off (another machine or library)"
    if proof.looks:
        replayed += f"; {proof.looks} look{'' if proof.looks == 1 else 's'} taken again"
    common.say(f"{proof.events} events; {replayed}; last hash {proof.hash}")
    if proof.faults:
        raise typer.Exit(1)
    if proof.unchecked is not None:
        common.say(proof.unchecked, "yellow")
        common.say("every event is in its place and unchanged, as far as the hashes show; the rest is not proved")
        raise typer.Exit(NOT_PROVED)
    common.say("the log is intact", "green")
    if kept:
        last = max(kept, key=lambda head: head.event)
        common.say(
            f"{proof.anchors} anchors hold: nothing up to event {last.event} was changed since {last.time[:16]} UTC",
            "green",
        )


def summary(event: Event) -> str:
    """An event in a few words."""
    body = event.body
    parts = [str(body["arm"])] if "arm" in body else []
    if event.kind == "revealed":
        parts.append(f"decision {body['decision']}" if "decision" in body else "all decisions")
    if body.get("plot") is not None:
        parts.append(f"plot {body['plot']}" + (f" in block {body['block']}" if body.get("block") else ""))
    if event.kind == "user":
        known = body["definition"].get("attributes") or {}
        parts += [f"{name} = {value}" for name, value in known.items()]
    if body.get("propensity") is not None:
        parts.append(f"p = {body['propensity']:.3g}")
    if "outcome" in body:
        parts += [f"{name} = {value:g}" for name, value in body["outcome"]["metrics"].items()]
        old = (body["was"] or {}).get("metrics", {})
        if event.kind == "amendment":
            parts += [f"(was {name} = {value:g})" for name, value in old.items()]
    if "preference" in body:
        parts += [f"{name} = {value:g}" for name, value in body["preference"].items()]
    if event.kind == "episode":
        parts.append(f"season {body['name']}" if "name" in body else f"episode {body['episode']}")
        parts += [str(body["date"])] if "date" in body else []
    if event.kind == "look":
        met = [said["rule"] for said in body["rules"] if any(claim["met"] for claim in said["claims"])]
        parts.append(f"rules met: {', '.join(met)}" if met else "no rule is met")
        parts += [f"the trial is {body['demands']['kind']}"] if body["demands"] else []
    if event.kind == "rules":
        parts.append(f"stopping rules: {', '.join(body['stopping'].get('rules', {})) or 'none'}")
    if body.get("reason") and event.kind != "decision":
        parts.append(f"reason: {body['reason']}")
    return ", ".join(parts)
