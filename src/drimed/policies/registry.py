"""The named policies: one line each, with its source and the information it uses.

Names are all that is known here: a rule or guard is imported when a policy is made of it. `find` also knows policies
from outside the package (`plugins.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from drimed.errors import ConfigError, UnknownNameError
from drimed.policies.plugins import is_place, load, offered

if TYPE_CHECKING:
    from drimed.policies.policy import AnyPolicy

PAPER_NOISE_BOUND = 1.92  # sigma-bar of the paper; no formula reproduces it (docs/paper.md, I-9)

Build = Callable[..., "AnyPolicy"]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A policy by name."""

    name: str
    build: Build
    about: str
    reference: str
    uses: str  # what it must be told or shown
    source: Any = None  # the object it is made from, where that is not the package's own


class _Parts(Mapping[str, Any]):
    """Classes by name, each imported when it is asked for."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Any:
        return load(f"drimed.{self._places[name]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


RULES = _Parts(
    {
        "oful": "rules.oful:OFUL",
        "lin_ts": "rules.lin_ts:LinTS",
        "lin_med": "rules.lin_med:LinMED",
        "lin_imed": "rules.lin_imed:LinIMED",
        "greedy": "rules.baselines:Greedy",
        "uniform": "rules.baselines:Uniform",
        "control": "rules.baselines:Control",
        "med": "rules.med:MED",
        "imed": "rules.imed:IMED",
        "spanner_igw": "rules.spanner_igw:SpannerIGW",
        "ids": "rules.ids:IDS",
        "solid": "rules.solid:SOLID",
        "oplb": "rules.oplb:OPLB",
    }
)
GUARDS = _Parts(
    {
        "off": "guards.guard:Off",
        "penalty": "guards.penalty:Penalty",
        "expected": "guards.expected:Expected",
        "certain": "guards.certain:Certain",
        "budget": "guards.budget:Budget",
        "clucb": "guards.clucb:CLUCB",
        "safe_lucb": "guards.safe_lucb:SafeLUCB",
    }
)


class _Learns(NamedTuple):
    """How a learner is set up, and what it must be told for that."""

    settings: dict[str, Any]
    uses: str


_BOUND = _Learns(
    {"weighting": "none", "feedback": "reward", "noise_bound": PAPER_NOISE_BOUND}, "reward; a bound on the noise"
)
_KNOWN = _Learns({"weighting": "known", "feedback": "reward"}, "reward; its noise per arm and context")
_VECTOR = _Learns({"weighting": "known", "feedback": "vector"}, "all metrics; their covariance per arm and context")

# Who proposed each rule, as its class says too.
_MED, _IMED = "Balagopalan and Jun 2024; Das et al. Alg. 3", "Honda and Takemura 2015, linear form"
_LIN_MED, _LIN_IMED, _TS = "Balagopalan and Jun 2024", "Bian and Tan 2024", "Agrawal and Goyal 2013"
_OFUL, _IDS, _IGW = "Abbasi-Yadkori et al. 2011", "Kirschner and Krause 2018", "Zhu et al. 2022"
_SOLID, _OPLB, _FORGETS = "Tirinzoni et al. 2020", "Pacchiano et al. 2021", "Russac et al. 2019"
_CLUCB, _SAFE, _GREEDY = "Kazerouni et al. 2017", "Amani et al. 2019", "folklore"
_CONTROL, _ALL_ARMS = "; the control", "; the arms of all users"


def _of(
    name: str,
    rule: str,
    learns: _Learns,
    about: str,
    by: str,
    also: str = "",
    *,
    guard: str = "off",
    uses: str | None = None,
    **defaults: Any,
) -> Entry:
    def build(**settings: Any) -> AnyPolicy:
        from drimed.policies.composing import compose

        return compose(settings, rule=rule, guard=guard, defaults=learns.settings | defaults)

    return Entry(name, build, about, by, learns.uses + also if uses is None else uses)


def _published(step: str, about: str, by: str) -> Entry:
    def build(**settings: Any) -> AnyPolicy:
        PublishedDri = load("drimed.published.dri:PublishedDri")
        known = PublishedDri(step=step).traits.settings
        for unknown in sorted(settings.keys() - known):
            raise UnknownNameError("setting", unknown, known)
        made: AnyPolicy = PublishedDri(step=step, **settings)
        return made

    return Entry(f"published_dri_{step}", build, about, by, _KNOWN.uses + _CONTROL)


_RECOMMENDED = "recommended: MED on the reward scale, whole outcome vector, expected margin certified"
_SWAPPED = "LinMED with the masses that the Dri-MED paper gave it"
_ENTRIES = [
    _of("oful", "oful", _BOUND, "optimism", _OFUL),
    _of("w_oful", "oful", _KNOWN, "optimism, weighted regression", "Kirschner and Krause 2018"),
    _of("lin_ts", "lin_ts", _BOUND, "Thompson sampling", _TS, v="radius"),
    _of("w_ts", "lin_ts", _KNOWN, "Thompson sampling, weighted", _TS),
    _of("lin_med", "lin_med", _BOUND, "minimum empirical divergence", _LIN_MED),
    _of("lin_med_swapped", "lin_med", _BOUND, _SWAPPED, "Das et al., Table 2", empirical=0.005, optimal=0.99),
    _of("lin_imed", "lin_imed", _BOUND, "index policy, version 3", _LIN_IMED),
    _of("greedy", "greedy", _BOUND, "no exploration", _GREEDY),
    _of("w_greedy", "greedy", _KNOWN, "no exploration, weighted", _GREEDY),
    _of("uniform", "uniform", _BOUND, "a randomised trial", "Fisher 1926", uses="nothing"),
    _of("control", "control", _BOUND, "always the control", "the baseline policy", uses="the control"),
    _of("med", "med", _KNOWN, "MED on the reward scale, no guard", _MED),
    _of("dri_med", "med", _VECTOR, _RECOMMENDED, _MED, _CONTROL, guard="expected"),
    _of("dri_imed", "imed", _VECTOR, "its deterministic twin", _IMED, _CONTROL, guard="expected"),
    _of("dri_med_reward", "med", _KNOWN, "dri_med on the reward alone", _MED, _CONTROL, guard="expected"),
    _of("dri_imed_reward", "imed", _KNOWN, "dri_imed on the reward alone", _IMED, _CONTROL, guard="expected"),
    _published("med", "Dri-MED, letter by letter", "Das et al., Alg. 2 and 3"),
    _published("imed", "Dri-IMED, letter by letter", "Das et al., Alg. Dri-IMED"),
    _of("w_lin_med", "lin_med", _KNOWN, "LinMED, weighted", _LIN_MED),
    _of("w_lin_imed", "lin_imed", _KNOWN, "LinIMED, weighted", _LIN_IMED),
    _of("spanner_igw", "spanner_igw", _BOUND, "inverse gap weighting", _IGW),
    _of("w_spanner_igw", "spanner_igw", _KNOWN, "the same, weighted", _IGW),
    _of("ids", "ids", _BOUND, "information-directed sampling", _IDS),
    _of("w_ids", "ids", _KNOWN, "information-directed sampling, weighted", _IDS),
    _of("solid", "solid", _BOUND, "primal-dual on the lower bound", _SOLID, _ALL_ARMS),
    _of("w_solid", "solid", _KNOWN, "the same, weighted", _SOLID, _ALL_ARMS),
    _of("oplb", "oplb", _BOUND, "optimism, pessimistic on cost", _OPLB, _CONTROL),
    _of("w_oplb", "oplb", _KNOWN, "OPLB, weighted", _OPLB, _CONTROL),
    _of("oplb_sp", "oplb", _BOUND, "OPLB-SP", _OPLB, _CONTROL, safe_policy=True),
    _of("w_oplb_sp", "oplb", _KNOWN, "weighted", _OPLB, _CONTROL, safe_policy=True),
    _of("clucb", "oful", _BOUND, "conservative LinUCB", _CLUCB, _CONTROL, guard="clucb"),
    _of("w_clucb", "oful", _KNOWN, "the same, weighted", _CLUCB, _CONTROL, guard="clucb"),
    _of("safe_lucb", "oful", _BOUND, "optimism, safe arms", _SAFE, _CONTROL, guard="safe_lucb"),
    _of("w_safe_lucb", "oful", _KNOWN, "the same, weighted", _SAFE, _CONTROL, guard="safe_lucb"),
    _of("d_lin_ucb", "oful", _BOUND, "optimism that forgets", _FORGETS, discount=0.99),
    _of("w_d_lin_ucb", "oful", _KNOWN, "the same, weighted", _FORGETS, discount=0.99),
    _of("v_oful", "oful", _VECTOR, "optimism, whole outcome vector", _OFUL),
    _of("v_ts", "lin_ts", _VECTOR, "Thompson sampling, whole outcome vector", _TS),
    _of("v_ids", "ids", _VECTOR, "IDS, whole outcome vector", _IDS),
    _of("v_greedy", "greedy", _VECTOR, "no exploration, whole vector", _GREEDY),
    _of("v_med", "med", _VECTOR, "dri_med without its guard", _MED),
]

REGISTRY: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def make(name: str, **settings: Any) -> AnyPolicy:
    """The policy of that name, with any of its settings changed.

    A name of the registry, of an installed package, or `module:name`: a policy, or a rule, which gets the learner of
    dri_med and no guard. The settings `rule` and `guard` take a name, `module:name`, a class or an instance.

    >>> make("lin_med").rule.empirical
    0.99
    """
    entry = find(name)
    try:
        made = entry.build(**settings)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
    if entry.source is not None:
        from drimed.policies.composing import check_policy

        # Guardrails are on metrics of the user's own problem, which the small one does not have.
        check_policy(entry.build(**{k: v for k, v in settings.items() if k != "guardrails"}), name)
    return made


def find(name: str) -> Entry:
    """The entry of that name; refused with the nearest right one, or with what is wrong with `module:name`."""
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
    if REGISTRY.get(name) in _ENTRIES:
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
    return next((name for name, place in GUARDS._places.items() if f"drimed.{place}" == inside), inside)


def _outside(name: str, thing: Any, *, trusted: bool = False) -> Entry:
    """The entry of something that is not the package's own."""
    known = next((e for e in REGISTRY.values() if e.source is thing), None)
    if known is not None:
        return known
    doc = (getattr(thing, "__doc__", None) or "").strip().partition("\n")[0]
    return Entry(name, _build(name, thing, trusted), doc, getattr(thing, "reference", ""), "", source=thing)


def _build(name: str, thing: Any, trusted: bool) -> Build:
    def composed(**settings: Any) -> AnyPolicy:
        from drimed.policies.composing import compose

        if hasattr(thing, "propose"):
            return compose(settings, rule=thing, guard="off", defaults=_VECTOR.settings)
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
