"""Change a running trial: pause, resume, stop; users, arms, preferences and controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from drimed.errors import DrimedError, InputError
from drimed.service.pages.route import Pages, Visit
from drimed.service.tokens import MANAGE
from drimed.trial import sheets
from drimed.trial.memory import Memory
from drimed.trial.records import Status
from drimed.trial.trial import Trial

MOST_USERS = 300  # that the page lists

routes = Pages()


@dataclass(frozen=True)
class Member:
    """A user as it is now."""

    name: str
    preference: str
    own_preference: bool  # or that of the trial
    control: str
    own_control: bool
    group: str
    arms: list[str] | None  # None: all


@dataclass(frozen=True)
class Desk:
    """What the forms need to know."""

    status: Status
    metrics: dict[str, str]  # metric -> unit
    users: list[Member]  # empty: too many, or none
    arms: list[str]  # that are not retired
    attributes: list[str]  # that describe arms; empty: they have effects of their own
    mapped: bool  # arms are described by matrices, which no form takes
    known_noise: bool  # an arm may have noise of its own
    has_control: bool  # the trial has one for users that give none
    has_preference: bool


@routes.page("/trials/{trial}/manage", MANAGE)
async def form(visit: Visit) -> Response:
    """Everything that can be changed."""
    return await _form(visit)


@routes.page("/trials/{trial}/manage/{what}", MANAGE, method="POST")
async def change(visit: Visit) -> Response:
    """One change."""
    what = str(visit.request.path_params["what"])
    if what not in ACTS:
        return await _form(visit, error=f"there is no change called {what[:40]!r}")
    done, act = ACTS[what]

    def work(trial: Trial, actor: str, _: str | None) -> str:
        act(visit, trial, actor)
        return f"/trials/{trial.name}/manage?done={done}"

    try:
        return await visit.act(work)
    except DrimedError as error:
        return await _form(visit, error=str(error), wrong=what)


def _pause(visit: Visit, trial: Trial, actor: str) -> None:
    trial.pause(reason=visit.field("reason"), actor=actor)


def _resume(visit: Visit, trial: Trial, actor: str) -> None:
    trial.resume(reason=visit.field("reason"), actor=actor)


def _stop(visit: Visit, trial: Trial, actor: str) -> None:
    if visit.field("sure") != "yes":
        raise InputError("a stopped trial never decides again: tick the box to confirm that")
    trial.stop(reason=visit.field("reason"), actor=actor)


def _user(visit: Visit, trial: Trial, actor: str) -> None:
    user: dict[str, Any] = {}
    if preference := _weights(visit, trial):
        user["preference"] = preference
    for name in ("control", "group"):
        if visit.field(name):
            user[name] = visit.field(name)
    arms = [str(a) for a in visit.form.getlist("arms")]
    known = [a for a in trial.memory().problem.arms if a not in trial.memory().retired]
    if arms and set(arms) != set(known):
        user["arms"] = arms
    trial.add_user(_name(visit), user, actor=actor)


def _arm(visit: Visit, trial: Trial, actor: str) -> None:
    arm: dict[str, Any] = {"about": visit.field("about")} if visit.field("about") else {}
    if attributes := _values(visit, "a:"):
        arm["attributes"] = attributes
    scatter = _values(visit, "sd:")
    trial.add_arm(_name(visit), arm, noise={"sd": scatter} if scatter else None, actor=actor)


def _retire(visit: Visit, trial: Trial, actor: str) -> None:
    trial.retire_arm(visit.field("arm"), reason=visit.field("reason"), actor=actor)


def _prefer(visit: Visit, trial: Trial, actor: str) -> None:
    weights = _weights(visit, trial)
    if not weights:
        raise InputError("a preference needs a weight for every metric; write 0 for a metric that does not count")
    trial.change_preference(visit.field("user"), weights, reason=visit.field("reason"), actor=actor)


def _control(visit: Visit, trial: Trial, actor: str) -> None:
    trial.change_control(visit.field("user"), visit.field("control"), reason=visit.field("reason"), actor=actor)


# what: (message, act)
ACTS: dict[str, tuple[str, Callable[[Visit, Trial, str], None]]] = {
    "pause": ("paused", _pause),
    "resume": ("resumed", _resume),
    "stop": ("stopped", _stop),
    "user": ("user", _user),
    "arm": ("arm", _arm),
    "retire": ("retired", _retire),
    "preference": ("preference", _prefer),
    "control": ("control", _control),
}


async def _form(visit: Visit, *, error: str | None = None, wrong: str = "") -> Response:
    desk = await visit.service.read(visit.trial, _desk)
    return visit.page(
        "manage.html", 422 if error else 200, s=desk.status, tab="manage", desk=desk, error=error, wrong=wrong
    )


def _desk(trial: Trial) -> Desk:
    memory = trial.memory()
    spec = memory.spec
    described = [arm.attributes for arm in spec.arms.values() if arm.attributes is not None]
    return Desk(
        trial.status(),
        {name: metric.unit for name, metric in spec.metrics.items()},
        [_member(memory, name) for name in memory.users] if len(memory.users) <= MOST_USERS else [],
        [a for a in memory.problem.arms if a not in memory.retired],
        list(described[0]) if described else [],
        any(arm.map is not None for arm in spec.arms.values()),
        spec.noise.kind == "known",
        spec.control is not None,
        spec.preference is not None,
    )


def _member(memory: Memory, name: str) -> Member:
    user, spec = memory.definition(name), memory.spec
    weights = user.preference if user.preference is not None else spec.preference or {}
    control = user.control if user.control is not None else spec.control or ""
    shares = {control: 1.0} if isinstance(control, str) else control
    return Member(
        name,
        ", ".join(f"{metric} {_written(weight)}" for metric, weight in weights.items()),
        user.preference is not None,
        ", ".join(arm if isinstance(control, str) else f"{arm} {_written(share)}" for arm, share in shares.items()),
        user.control is not None,
        user.group or "",
        user.arms,
    )


def _written(value: float) -> str:
    return f"{value:.12g}".replace("-", "−")


def _weights(visit: Visit, trial: Trial) -> dict[str, float]:
    """Weights of all metrics, or of none."""
    weights = _values(visit, "w:")
    missing = [m for m in trial.memory().problem.metrics if m not in weights]
    if weights and missing:
        has = "have" if len(missing) > 1 else "has"
        raise InputError(f"{', '.join(missing)} {has} no weight; write 0 for a metric that does not count")
    return weights


def _values(visit: Visit, prefix: str) -> dict[str, float]:
    """Numbers of the fields whose names begin so."""
    return {
        name.removeprefix(prefix): sheets.number(name.removeprefix(prefix), value.strip())
        for name, value in visit.form.multi_items()
        if name.startswith(prefix) and isinstance(value, str) and value.strip()
    }


def _name(visit: Visit) -> str:
    if not visit.field("name"):
        raise InputError("a name is needed")
    return visit.field("name")
