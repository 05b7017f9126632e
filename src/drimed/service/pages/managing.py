"""Change a running trial: one form for each change of `drimed.trial.changes`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.responses import Response

from drimed.errors import BatchError, DrimedError, InputError, SpecError, UnknownNameError
from drimed.records import Fault, Opening
from drimed.service.pages import asking, forms, plan
from drimed.service.pages.forms import NO_ERRORS, FormErrors
from drimed.service.pages.route import Pages, Visit, whole
from drimed.service.tokens import MANAGE
from drimed.trial import lines, queries, roster
from drimed.trial.changes import CHANGES, Change, checked
from drimed.trial.state import TrialState
from drimed.trial.tables.cells import number
from drimed.trial.transaction import Transaction

MOST_USERS = 300  # that the page lists
SECTIONS = {
    "Running": ("pause", "resume", "stop"),
    "Users": ("add_user", "change_preference", "change_control"),
    "Arms": ("add_arm", "retire_arm"),
    "Stopping": ("look", "change_rules"),
    "Blinding": ("reveal",),
}

T = TypeVar("T")
CONFIRM = "confirm"  # a field of changes whose values may be unlikely

routes = Pages()


@routes.page("/trials/{trial}/manage", MANAGE)
async def form(visit: Visit) -> Response:
    """Everything that can be changed."""
    return await _form(visit)


@routes.page("/trials/{trial}/manage/{change}", MANAGE, method="POST")
async def change(visit: Visit) -> Response:
    """One change."""
    path = str(visit.request.path_params["change"])
    known = {change.path: change for change in CHANGES.values()}
    if path not in known:
        raise UnknownNameError("change", path[:40], known)
    wanted = known[path]

    def act(tx: Transaction) -> str:
        body = _body(visit, tx.state, wanted)
        done = forms.confirmed(
            visit, lambda sure: wanted.apply(tx, body.model_copy(update={CONFIRM: True} if sure else {}))
        )
        one = done.decision if isinstance(done, Opening) else None
        where = "manage" if one is None else f"decisions/{one}"
        return f"/trials/{visit.trial}/{where}?done={wanted.path}"

    try:
        return await visit.act(act)
    except DrimedError as error:
        return await _form(visit, forms.refused(path, error, lambda fault: _input(visit, fault)))


def _body(visit: Visit, state: TrialState, wanted: Change) -> Any:
    """The fields of the form as the body of a change; what is left empty is left out."""
    if wanted.name == "stop" and visit.field("sure") != "yes":
        raise InputError("a stopped trial never decides again: tick the box to confirm this", ("sure",))
    if wanted.name == "reveal" and bool(visit.field("decision")) == (visit.field("sure") == "yes"):
        raise InputError("name a decision, or tick the box to open the code for all", ("sure",))
    values: dict[str, Any] = {}
    for name, field in wanted.body.model_fields.items():
        if name == CONFIRM:  # by what the form sends for exactly these values
            continue
        readers = READERS | (OF_USERS if wanted.name == "add_user" else {})
        value: Any = readers[name](visit, state) if name in readers else visit.field(name)
        if name == "preference" and (value or field.is_required()):
            _need_all(value, state)
        if value or (field.is_required() and value == ""):
            values[name] = value
    return checked(wanted.body, values)


def _numbers(visit: Visit, field: str) -> dict[str, float]:
    return _values(visit, field, number)


def _values(visit: Visit, field: str, read: Callable[[str, str], T]) -> dict[str, T]:
    """Inputs `<field>:<name>` that are filled in."""
    found, wrong = {}, []
    for name, value in visit.form.multi_items():
        of, _, rest = name.partition(":")
        if of == field and rest and isinstance(value, str) and value.strip():
            try:
                found[rest] = read(rest, value.strip())
            except InputError as error:
                wrong.append(Fault((field, rest), str(error)))
    if wrong:
        raise BatchError(wrong)
    return found


def _attributes(visit: Visit, state: TrialState) -> dict[str, float | str]:
    """What is known about a user."""
    known = state.problem.covariates.attributes
    return _values(visit, "attributes", lambda name, text: roster.value(state, name, text) if name in known else text)


def _plots(visit: Visit) -> dict[str, Any]:
    return roster.plots_of([text.strip() for text in visit.field("plots").split(",") if text.strip()])


def _need_all(weights: dict[str, float], state: TrialState) -> None:
    left = [m for m in state.problem.metrics if m not in weights]
    if left:
        has = "have" if len(left) > 1 else "has"
        message = f"{', '.join(left)} {has} no weight; enter 0 for a metric that does not count"
        raise InputError(message, ("preference", left[0]))


def _decision(visit: Visit) -> int | None:
    """The number of a decision, if one is named."""
    text = visit.field("decision")
    if text and whole(text) is None:
        raise InputError(f"expected the number of a decision, such as 12, got {text[:50]!r}", ("decision",))
    return whole(text)


def _rules(text: str) -> Any:
    """Stopping rules as they stand in a trial file, with or without the name of the section; or as JSON."""
    try:
        data = json.loads(text) if text.startswith("{") else lines.parse(text)
    except SpecError as error:
        raise InputError(str(error), ("stopping",)) from None
    except (json.JSONDecodeError, RecursionError):
        raise InputError("these are no rules: expected TOML as in a trial file, or JSON", ("stopping",)) from None
    return data["stopping"] if isinstance(data.get("stopping"), dict) else data


def _arms(visit: Visit, state: TrialState) -> list[str] | None:
    """The ticked arms; None: all of them."""
    ticked = [str(arm) for arm in visit.form.getlist("arms")]
    return None if set(ticked) >= {a for a in state.problem.arms if a not in state.retired} else ticked


# Fields of a body that are more than one text input.
READERS: dict[str, Callable[[Visit, TrialState], Any]] = {
    "preference": lambda visit, _: _numbers(visit, "preference"),
    "attributes": lambda visit, _: _numbers(visit, "attributes"),
    "noise": lambda visit, _: {"sd": sd} if (sd := _numbers(visit, "noise")) else None,
    "arms": _arms,
    "decision": lambda visit, _: _decision(visit),
    "map": lambda *_: None,  # a matrix: no form has an input for it
    "stopping": lambda visit, _: _rules(visit.field("stopping")),
    "dry_run": lambda *_: None,
}
OF_USERS: dict[str, Callable[[Visit, TrialState], Any]] = {
    "attributes": _attributes,
    "plots": lambda visit, _: _plots(visit).get("plots"),
    "blocks": lambda visit, _: _plots(visit).get("blocks"),
}


def _input(visit: Visit, fault: Fault) -> str:
    """The input that a fault belongs to."""
    path = fault.path
    if len(path) > 1 and path[0] in ("users", "arms") and path[1] in (visit.field("name"), visit.field("user")):
        path = path[2:] or ("name",)
    field, last = "plots" if path[0] == "blocks" else str(path[0]), str(path[-1])
    parts = [name for name in visit.form if name.startswith(f"{field}:")]
    return f"{field}:{last}" if f"{field}:{last}" in parts else parts[0] if parts else field


async def _form(visit: Visit, errors: FormErrors = NO_ERRORS) -> Response:
    state = await visit.service.read(visit.trial, lambda trial: trial.state())
    spec, few = state.spec, len(state.users) <= MOST_USERS
    return visit.page(
        "manage.html",
        errors.status,
        s=queries.status(state),
        tab="manage",
        sections={title: [CHANGES[name] for name in names] for title, names in SECTIONS.items()},
        spec=spec,
        reward="" if spec.preference is None else plan.reward(spec.preference),
        control="" if spec.control is None else plan.control(spec.control),
        arms=[a for a in state.problem.arms if a not in state.retired],
        users=plan.user_rows(state, list(state.users)) if few else [],
        attributes=asking.attributes(state),
        opened=state.opened,
        codes=state.codes,
        errors=errors,
        rules=json.dumps(spec.stopping.plain() if spec.stopping is not None else {}, indent=1, ensure_ascii=False),
    )
