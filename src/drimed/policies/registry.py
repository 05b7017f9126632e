"""Policies by name and from text: one line each in registry.toml, and those from outside the package.

A policy, rule or guard from outside is `module:name`, or an entry point `drimed.policies` of an installed package.
Importing a module runs it: a program that takes policies from others names those that may be loaded in DRIMED_MODULES.
On a command line settings are joined by plus signs, and begin after the first colon that a `name=` follows:

oful    dri_med:guard=certain+confidence=anytime+feedback=reward    my_rules:Epsilon:epsilon=0.1+guard=my_guards:Mine
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from drimed.errors import ConfigError, MissingModuleError, UnknownNameError

if TYPE_CHECKING:
    from drimed.policies.policy import Policy
    from drimed.policies.protocol import AnyPolicy

MODULES, GROUP = "DRIMED_MODULES", "drimed.policies"
# Settings about a user's own metrics, units and arms, which the small problem that policies are tried on lacks.
OF_THE_PROBLEM = ("guardrails", "covariates", "categories", "attributes", "doses", "ranges", "spreads")
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES: dict[str, str] = {name: f"drimed.{rule['place']}" for name, rule in _TABLE["rules"].items()}
LEARNERS: dict[str, str] = {name: f"drimed.{place}" for name, place in _TABLE["models"].items()}
GUARDS: dict[str, str] = {name: f"drimed.{place}" for name, place in _TABLE["guards"].items()}
_FORM = re.compile(r"(?P<name>[^=+]*?)(?::(?P<settings>\s*\w+\s*=.*))?")

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


@dataclass(frozen=True)
class PolicySpec:
    """A policy as it was written."""

    text: str
    name: str
    settings: dict[str, Any]

    @staticmethod
    def parse(text: str) -> PolicySpec:
        """Read and check; a wrong name or setting is refused with the nearest right one."""
        form = _FORM.fullmatch(text.strip())
        name = form["name"].strip() if form else ""
        first, _, after = name.partition(":")
        if form is None or (after and first in REGISTRY):
            raise ConfigError(f"settings must look like name=value, joined by +, got {text!r}")
        settings: dict[str, Any] = {}
        for pair in filter(None, (form["settings"] or "").split("+")):
            key, separator, value = pair.partition("=")
            if not separator or not key or not value:
                raise ConfigError(f"a setting must look like name=value, got {pair!r} in {text!r}")
            settings[key.strip()] = _value(value.strip())
        spec = PolicySpec(text.strip(), name, settings)
        spec.build()
        return spec

    def build(self) -> AnyPolicy:
        return make(self.name, **self.settings)

    def note(self) -> str | None:
        """A warning about its tolerance, if it leaves no room to learn."""
        traits = self.build().traits
        if traits.tolerance is None or traits.confidence is None or "endowment" in traits.settings:
            return None
        return traits.tolerance.note()

    def parts(self) -> dict[str, str]:
        """Learner, rule and guard in a few words."""
        traits = self.build().traits
        return {"learner": traits.learner, "rule": traits.rule, "guard": traits.guard}


def parse_list(text: str) -> list[PolicySpec]:
    """Several policies, separated by commas."""
    specs = [PolicySpec.parse(part) for part in text.split(",") if part.strip()]
    if not specs:
        raise ConfigError("give at least one policy; `drimed policies` lists them")
    return specs


def make(name: str, **settings: Any) -> AnyPolicy:
    """The policy of that name, with any of its settings changed.

    A name of the registry, of an installed package, or `module:name`: a policy, or a rule, which gets the learner of
    dri_med and no guard. The settings `learner`, `rule` and `guard` take a name, `module:name`, a class or an instance.
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
    """
    if name in _TABLE["policies"]:
        raise ConfigError(f"{name!r} is a policy of drimed; register yours under another name")

    def enter(thing: T) -> T:
        entry = _outside(name, thing, trusted=True)
        REGISTRY[name] = Entry(name, entry.build, about or entry.about, reference or entry.reference, uses, thing)
        return thing

    return enter


def compose(
    settings: Mapping[str, Any], *, rule: Any, guard: Any, learner: Any = "linear",
    defaults: Mapping[str, Any] | None = None,
) -> Policy:  # fmt: skip
    """A policy of these parts, classes or instances; the settings `learner`, `rule` and `guard` replace one.

    A setting that two parts know, such as norm_bound, means the same to both. A default that no part knows is left out:
    it belonged to a part that was replaced.
    """
    from drimed.models.linear_regression import AnyLearner
    from drimed.policies.guards.base import Guard
    from drimed.policies.guards.margin import Tolerance
    from drimed.policies.policy import Policy
    from drimed.policies.rules.base import Rule

    rest = dict(settings)
    named = rest.pop("learner", None)
    learner = _part("learner", learner if named is None else named, LEARNERS, AnyLearner)
    rule = _part("rule", rest.pop("rule", rule), RULES, Rule)
    guard = _part("guard", rest.pop("guard", guard), GUARDS, Guard)
    known = settings_of(learner, rule, guard)
    _check_known(rest, known)
    values = {k: v for k, v in (defaults or {}).items() if k in known} | rest

    def made(part: Any) -> Any:
        own = {k: v for k, v in values.items() if k in _fields(part)}
        return part(**own) if isinstance(part, type) else replace(part, **own) if own else part

    guarded = made(guard)
    tolerance = {k: v for k, v in rest.items() if k in _fields(Tolerance)}
    if tolerance and "tolerance" in _fields(guard):
        guarded = replace(guarded, tolerance=replace(guarded.tolerance, **tolerance))
    return Policy(learner=made(learner), rule=made(rule), guard=guarded)


def settings_of(learner: Any, rule: Any, guard: Any) -> frozenset[str]:
    """The settings of a policy that is made of these: a tolerance is given by its own fields."""
    from drimed.policies.guards.margin import Tolerance

    known = {"learner", "rule", "guard"} | _fields(learner) | _fields(rule) | _fields(guard)
    return frozenset(known - {"tolerance"} | _fields(Tolerance) if "tolerance" in known else known)


def guard_name(guard: Any) -> str:
    """The name of a guard in the registry, or where its class is."""
    place = f"{type(guard).__module__}:{type(guard).__qualname__}"
    return next((name for name, known in GUARDS.items() if known == place), place)


def is_place(name: str) -> bool:
    """Whether this is `module:name`."""
    module, separator, inside = name.partition(":")
    return bool(separator) and all(part.isidentifier() for part in [*module.split("."), *inside.split(".")])


def load(place: str, *, trusted: bool = False) -> Any:
    """The object at `module:name`; `trusted` where an installed package names it."""
    if not is_place(place):
        raise ConfigError(f"expected module:name, such as my_rules:Epsilon, got {place!r}")
    name, _, inside = place.partition(":")
    allowed = None if trusted else os.environ.get(MODULES)
    if not (allowed is None or name.startswith("drimed.") or name in allowed.replace(",", " ").split()):
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
            raise UnknownNameError(f"name in {name}", inside, [n for n in dir(found) if not n.startswith("_")])
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
        wanted = settings.get("learner")
        own = _TABLE["learners"].get(wanted, learner) if isinstance(wanted, str) else learner
        named = {"learner": own["model"]} if "model" in own else {}
        rule = settings.get("rule", own.get("instead", {}).get(row["rule"], row["rule"]))
        tuned = _TABLE["rules"][rule].get("settings", {}) if isinstance(rule, str) and rule in RULES else {}
        defaults = own["settings"] | tuned | row.get("settings", {})
        return compose(named | settings, rule=rule, guard=row.get("guard", "off"), defaults=defaults)

    def published(**settings: Any) -> AnyPolicy:
        from drimed.policies.published import PublishedDri

        _check_known(settings, PublishedDri().traits.settings)
        return PublishedDri(step=row["step"], **settings)

    by = row["by"] if "by" in row else _TABLE["rules"][row["rule"]]["by"]
    uses = row.get("uses") or "; ".join([learner["uses"], *filter(None, [row.get("also")])])
    return Entry(name, published if "step" in row else composed, row["about"], by, uses)


REGISTRY: dict[str, Entry] = {name: _named(name, row) for name, row in _TABLE["policies"].items()}


def _outside(name: str, thing: Any, *, trusted: bool = False) -> Entry:
    """The entry of an object that is not the package's own: a rule, a policy, or a function that returns one."""
    known = next((e for e in REGISTRY.values() if e.source is thing), None)
    if known is not None:
        return known

    def composed(**settings: Any) -> AnyPolicy:
        if hasattr(thing, "propose"):
            return compose(settings, rule=thing, guard="off", defaults=_TABLE["learners"]["vector"]["settings"])
        return compose(settings, learner=thing.learner, rule=thing.rule, guard=thing.guard)

    if hasattr(thing, "propose") or all(hasattr(thing, part) for part in ("learner", "rule", "guard")):
        build: Callable[..., AnyPolicy] = composed
    elif hasattr(thing, "apply") and hasattr(thing, "promise"):
        raise ConfigError(f"{name} is a guard: give it to a policy, as in dri_med:guard={name}")
    elif callable(thing) and (hasattr(thing, "decide") or trusted):
        build = _calling(thing)
    elif callable(thing) and not isinstance(thing, type):
        raise ConfigError(f"{name} is a function: register it with @drimed.register, so that it may be called by name")
    else:
        raise ConfigError(f"{name} is neither a rule (it has no `propose`) nor the class of a policy (no `decide`)")
    doc = (getattr(thing, "__doc__", None) or "").strip().partition("\n")[0]
    return Entry(name, build, doc, getattr(thing, "reference", ""), "", source=thing)


def _calling(make_policy: Callable[..., AnyPolicy]) -> Callable[..., AnyPolicy]:
    """Call a function or class with the settings that it takes; the others go to the parts of the policy."""

    def called(**settings: Any) -> AnyPolicy:
        from drimed.policies.policy import Policy

        takes = signature(make_policy).parameters
        if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            return make_policy(**settings)
        made = make_policy(**{k: v for k, v in settings.items() if k in takes})
        rest = {k: v for k, v in settings.items() if k not in takes}
        if rest and isinstance(made, Policy):
            return compose(rest, learner=made.learner, rule=made.rule, guard=made.guard)
        _check_known(rest, takes)
        return made

    return called


def _part(kind: str, given: Any, known: Mapping[str, str], protocol: type) -> Any:
    """The class or instance that is meant; a name, `module:name` or the thing itself."""
    from drimed.policies.protocol import check_has

    if isinstance(given, str) and given in known:
        return load(known[given])
    if given is None or isinstance(given, int | float):
        raise TypeError(f"{kind} must be a name, module:name, a class or an instance, got {given!r}")
    label = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    if isinstance(given, str) and not is_place(given):
        raise UnknownNameError(kind, given, known)
    given = load(given) if isinstance(given, str) else given
    check_has(given, protocol, f"{label} is no {kind}")
    if not is_dataclass(given):
        raise ConfigError(f"{label} must be a dataclass, @dataclass(frozen=True): its fields are its settings")
    return given


def _check_known(settings: Mapping[str, Any], known: Collection[str]) -> None:
    for unknown in sorted(set(settings) - set(known)):
        raise UnknownNameError("setting", unknown, known)


def _fields(part: Any) -> set[str]:
    return {f.name for f in fields(part)}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
