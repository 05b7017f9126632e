"""The named policies, one line each in registry.toml, and those from outside the package.

A policy, rule or guard from outside is `module:name`, or an entry point `drimed.policies` of an installed package. A
module is found as Python finds any other. A program that takes policies from others, such as a service, names the
modules that may be loaded in DRIMED_MODULES: importing a module runs it. Where the variable is not set any module may
be. A rule or guard is imported when a policy is made of it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drimed.errors import ConfigError, MissingModuleError, UnknownNameError

if TYPE_CHECKING:
    from drimed.policies.protocol import AnyPolicy

GROUP = "drimed.policies"
MODULES = "DRIMED_MODULES"
# Settings about a user's own metrics, units and arms, which the small problem that policies are tried on lacks.
OF_THE_PROBLEM = ("guardrails", "covariates", "categories", "attributes")
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES: dict[str, str] = {name: f"drimed.{rule['place']}" for name, rule in _TABLE["rules"].items()}
LEARNERS: dict[str, str] = {name: f"drimed.{place}" for name, place in _TABLE["models"].items()}
GUARDS: dict[str, str] = {name: f"drimed.{place}" for name, place in _TABLE["guards"].items()}

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A policy by name."""

    name: str
    build: Callable[..., AnyPolicy]
    about: str
    reference: str
    uses: str  # what it must be told or shown
    source: Any = None  # the object it is made from, where that is not the package's own


def is_place(name: str) -> bool:
    """Whether this is `module:name`."""
    module, separator, inside = name.partition(":")
    return bool(separator) and all(part.isidentifier() for part in [*module.split("."), *inside.split(".")])


def load(place: str, *, trusted: bool = False) -> Any:
    """What `module:name` stands for; `trusted` where an installed package says so.

    >>> load("math:pi")
    3.141592653589793
    """
    if not is_place(place):
        raise ConfigError(f"expected module:name, such as my_rules:Epsilon, got {place!r}")
    name, _, inside = place.partition(":")
    allowed = os.environ.get(MODULES)
    ours = trusted or name.startswith("drimed.")
    if allowed is not None and not ours and name not in allowed.replace(",", " ").split():
        raise MissingModuleError(f"{place}: module {name!r} may not be loaded here; {MODULES} names those that may")
    try:
        found: Any = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise MissingModuleError(f"{place}: {name} cannot be imported: {error}") from error
        raise MissingModuleError(
            f"{place}: there is no module {name!r}; it must be installed, in the current folder, or on PYTHONPATH"
        ) from error
    except Exception as error:  # whatever the code of others raises
        raise MissingModuleError(f"{place}: {name} cannot be imported: {type(error).__name__}: {error}") from error
    for step in inside.split("."):
        if not hasattr(found, step):
            raise UnknownNameError(f"name in {name}", inside, [n for n in vars(found) if not n.startswith("_")])
        found = getattr(found, step)
    return found


@cache
def offered() -> dict[str, str]:
    """The policies of installed packages: name -> module:name."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def look_here() -> None:
    """Let modules of the current folder be found, after all others."""
    if "" not in sys.path:
        sys.path.append("")


def _named(name: str, row: dict[str, Any]) -> Entry:
    """The entry of a line of the table."""
    learner = _TABLE["learners"][row["learner"]]

    def composed(**settings: Any) -> AnyPolicy:
        from drimed.policies.composing import compose

        wanted = settings.get("learner")
        own = _TABLE["learners"].get(wanted, learner) if isinstance(wanted, str) else learner
        named = {"learner": own["model"]} if "model" in own else {}
        rule = settings.get("rule", row["rule"])
        tuned = own.get("rules", {}).get(rule, {}) if isinstance(rule, str) else {}
        defaults = own["settings"] | tuned | row.get("settings", {})
        return compose(named | settings, rule=row["rule"], guard=row.get("guard", "off"), defaults=defaults)

    def published(**settings: Any) -> AnyPolicy:
        PublishedDri = load("drimed.policies.published:PublishedDri")
        known = PublishedDri(step=row["step"]).traits.settings
        for unknown in sorted(settings.keys() - known):
            raise UnknownNameError("setting", unknown, known)
        made: AnyPolicy = PublishedDri(step=row["step"], **settings)
        return made

    by = row["by"] if "by" in row else _TABLE["rules"][row["rule"]]["by"]
    uses = row.get("uses") or "; ".join([learner["uses"], *filter(None, [row.get("also")])])
    return Entry(name, published if "step" in row else composed, row["about"], by, uses)


REGISTRY: dict[str, Entry] = {name: _named(name, row) for name, row in _TABLE["policies"].items()}


def make(name: str, **settings: Any) -> AnyPolicy:
    """The policy of that name, with any of its settings changed.

    A name of the registry, of an installed package, or `module:name`: a policy, or a rule, which gets the learner of
    dri_med and no guard. The settings `learner`, `rule` and `guard` take a name, `module:name`, a class or an instance.

    >>> make("lin_med").rule.empirical
    0.99
    """
    entry = find(name)
    try:
        made = entry.build(**settings)
    except TypeError as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
        raise ConfigError(f"{name} cannot be made with {given or 'no settings'}: {error}") from error
    if entry.source is not None:
        from drimed.policies.protocol import check_policy

        check_policy(entry.build(**{k: v for k, v in settings.items() if k not in OF_THE_PROBLEM}), name)
    return made


def find(name: str) -> Entry:
    """The entry of that name; refused with the nearest right one, or with what is wrong with `module:name`."""
    if not isinstance(name, str):
        raise ConfigError(f"a policy is found by its name, such as 'dri_med', got {name!r}")
    if name in REGISTRY:
        return REGISTRY[name]
    if name in offered():
        return _outside(name, load(offered()[name], trusted=True), trusted=True)
    if is_place(name):
        return _outside(name, load(name))
    raise UnknownNameError("policy", name, [*REGISTRY, *offered()])


def register(name: str, *, about: str = "", reference: str = "", uses: str = "") -> Callable[[T], T]:
    """Decorate a rule, a policy or a function that returns a policy: it has this name in the present process.

    A function must be registered before it is found as `module:name`: nothing else is called by name.

    >>> @register("careful", about="dri_med that certifies every arm")
    ... def careful(absolute: float = 0.1):
    ...     return make("dri_med", guard="certain", absolute=absolute)
    >>> make("careful", absolute=0.2).guard.tolerance.absolute
    0.2
    """
    if name in _TABLE["policies"]:
        raise ConfigError(f"{name!r} is a policy of drimed; register yours under another name")

    def enter(thing: T) -> T:
        found = _outside(name, thing, trusted=True)
        told = about or found.about, reference or found.reference, uses
        REGISTRY[name] = Entry(name, found.build, *told, source=thing)
        return thing

    return enter


def guard_name(guard: Any) -> str:
    """The name of a guard in the registry, or where its class is."""
    kind = type(guard)
    inside = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, place in GUARDS.items() if place == inside), inside)


def _outside(name: str, thing: Any, *, trusted: bool = False) -> Entry:
    """The entry of something that is not the package's own."""
    known = next((e for e in REGISTRY.values() if e.source is thing), None)
    if known is not None:
        return known
    doc = (getattr(thing, "__doc__", None) or "").strip().partition("\n")[0]
    return Entry(name, _build(name, thing, trusted), doc, getattr(thing, "reference", ""), "", source=thing)


def _build(name: str, thing: Any, trusted: bool) -> Callable[..., AnyPolicy]:
    def composed(**settings: Any) -> AnyPolicy:
        from drimed.policies.composing import compose

        if hasattr(thing, "propose"):
            return compose(settings, rule=thing, guard="off", defaults=_TABLE["learners"]["vector"]["settings"])
        return compose(settings, learner=thing.learner, rule=thing.rule, guard=thing.guard)

    def called(**settings: Any) -> AnyPolicy:
        from drimed.policies.composing import call

        return call(thing, settings)

    if hasattr(thing, "propose") or all(hasattr(thing, part) for part in ("learner", "rule", "guard")):
        return composed
    if hasattr(thing, "apply") and hasattr(thing, "promise"):
        raise ConfigError(f"{name} is a guard: give it to a policy, as in dri_med:guard={name}")
    if hasattr(thing, "decide") and not isinstance(thing, type):
        raise ConfigError(f"{name} is an instance of {type(thing).__name__}: name its class, or a function")
    if hasattr(thing, "decide") or (callable(thing) and trusted):
        return called
    if callable(thing) and not isinstance(thing, type):
        raise ConfigError(f"{name} is a function: register it with @drimed.register, so that it may be called by name")
    raise ConfigError(f"{name} is neither a rule (it has no `propose`) nor a policy (it has no `decide`)")
