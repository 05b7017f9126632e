"""The named policies: one line each, with its source and the information it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from drimed.errors import ConfigError, UnknownNameError
from drimed.guards.budget import Budget
from drimed.guards.certain import Certain
from drimed.guards.clucb import CLUCB
from drimed.guards.expected import Expected
from drimed.guards.guard import Guard
from drimed.guards.margin import Tolerance
from drimed.guards.off import Off
from drimed.guards.penalty import Penalty
from drimed.guards.safe_lucb import SafeLUCB
from drimed.learning.learner import Learner
from drimed.policies.policy import AnyPolicy, Policy
from drimed.published.dri import PublishedDri
from drimed.rules.control import Control
from drimed.rules.greedy import Greedy
from drimed.rules.ids import IDS
from drimed.rules.imed import IMED
from drimed.rules.lin_imed import LinIMED
from drimed.rules.lin_med import LinMED
from drimed.rules.lin_ts import LinTS
from drimed.rules.med import MED
from drimed.rules.oful import OFUL
from drimed.rules.oplb import OPLB
from drimed.rules.rule import Rule
from drimed.rules.solid import SOLID
from drimed.rules.spanner_igw import SpannerIGW
from drimed.rules.uniform import Uniform

PAPER_NOISE_BOUND = 1.92  # sigma-bar of the paper; no formula reproduces it (docs/paper.md, I-9)

Build = Callable[..., AnyPolicy]


@dataclass(frozen=True)
class Entry:
    """A policy by name."""

    name: str
    build: Build
    about: str
    reference: str
    uses: str  # what it must be told or shown


GUARDS: dict[str, Callable[..., Guard]] = {
    "off": Off,
    "penalty": Penalty,
    "expected": Expected,
    "certain": Certain,
    "budget": Budget,
    "clucb": CLUCB,
    "safe_lucb": SafeLUCB,
}


def _compose(rule: Callable[..., Rule], learner: dict[str, Any], guard: str = "off", **rule_defaults: Any) -> Build:
    """A policy whose settings go to whichever part knows them; `guard` changes the guard."""

    def build(**settings: Any) -> Policy:
        name = settings.pop("guard", guard)
        if name not in GUARDS:
            raise UnknownNameError("guard", name, GUARDS)
        guard_class = GUARDS[name]
        mine, own, guarded = (_known(settings, part) for part in (Learner, rule, guard_class))
        tolerance = _known(settings, Tolerance) if "tolerance" in _fields(guard_class) else {}
        for setting in sorted(settings.keys() - mine.keys() - own.keys() - guarded.keys() - tolerance.keys()):
            known = _fields(Learner) | _fields(rule) | _fields(guard_class) | {"guard"}
            if "tolerance" in known:
                known = known - {"tolerance"} | _fields(Tolerance)
            raise UnknownNameError("setting", setting, known)
        if tolerance:
            default = guard_class().tolerance  # type: ignore[attr-defined]  # it has the field
            guarded["tolerance"] = replace(default, **tolerance)
        return Policy(
            learner=Learner(**(learner | mine)), rule=rule(**(rule_defaults | own)), guard=guard_class(**guarded)
        )

    return build


def _known(settings: dict[str, Any], part: Any) -> dict[str, Any]:
    # A setting that two parts know, such as delta, means the same to both.
    return {k: v for k, v in settings.items() if k in _fields(part)}


def _fields(part: Any) -> set[str]:
    return {f.name for f in fields(part)}


def _published(step: str) -> Build:
    def build(**settings: Any) -> PublishedDri:
        unknown = set(settings) - (_fields(PublishedDri) - {"step"})
        if unknown:
            raise UnknownNameError("setting", sorted(unknown)[0], _fields(PublishedDri) - {"step"})
        return PublishedDri(step=step, **settings)

    return build


_BOUND = {"weighting": "none", "feedback": "reward", "noise_bound": PAPER_NOISE_BOUND}
_KNOWN = {"weighting": "known", "feedback": "reward"}
_VECTOR = {"weighting": "known", "feedback": "vector"}
_SAW_BOUND = "reward; a bound on the noise"
_SAW_SIGMA = "reward; its noise per arm and context"
_SAW_VECTOR = "all metrics; their covariance per arm and context"
_CONTROL, _ALL_ARMS = "; the control", "; the arms of all users"
_FORGETS = {"discount": 0.99}
_CLUCB_BY, _SAFE_BY, _FORGETS_BY = "Kazerouni et al. 2017", "Amani et al. 2019", "Russac et al. 2019"

_ENTRIES = [
    Entry("oful", _compose(OFUL, _BOUND), "optimism", OFUL.reference, _SAW_BOUND),
    Entry("w_oful", _compose(OFUL, _KNOWN), "optimism, weighted regression", "Kirschner and Krause 2018", _SAW_SIGMA),
    Entry("lin_ts", _compose(LinTS, _BOUND, v="radius"), "Thompson sampling", LinTS.reference, _SAW_BOUND),
    Entry("w_ts", _compose(LinTS, _KNOWN), "Thompson sampling, weighted", LinTS.reference, _SAW_SIGMA),
    Entry("lin_med", _compose(LinMED, _BOUND), "minimum empirical divergence", LinMED.reference, _SAW_BOUND),
    Entry(
        "lin_med_swapped",
        _compose(LinMED, _BOUND, empirical=0.005, optimal=0.99),
        "LinMED with the masses that the Dri-MED paper gave it",
        "Das et al., Table 2",
        _SAW_BOUND,
    ),
    Entry("lin_imed", _compose(LinIMED, _BOUND), "index policy, version 3", LinIMED.reference, _SAW_BOUND),
    Entry("greedy", _compose(Greedy, _BOUND), "no exploration", Greedy.reference, _SAW_BOUND),
    Entry("w_greedy", _compose(Greedy, _KNOWN), "no exploration, weighted", Greedy.reference, _SAW_SIGMA),
    Entry("uniform", _compose(Uniform, _BOUND), "a randomised trial", Uniform.reference, "nothing"),
    Entry("control", _compose(Control, _BOUND), "always the control", Control.reference, "the control"),
    Entry("med", _compose(MED, _KNOWN), "MED on the reward scale, no guard", MED.reference, _SAW_SIGMA),
    Entry(
        "dri_med",
        _compose(MED, _VECTOR, "expected"),
        "recommended: MED on the reward scale, whole outcome vector, expected margin certified",
        MED.reference,
        _SAW_VECTOR + "; the control",
    ),
    Entry(
        "dri_imed",
        _compose(IMED, _VECTOR, "expected"),
        "its deterministic twin",
        IMED.reference,
        _SAW_VECTOR + "; the control",
    ),
    Entry(
        "dri_med_reward",
        _compose(MED, _KNOWN, "expected"),
        "dri_med where only the reward is recorded",
        MED.reference,
        _SAW_SIGMA + "; the control",
    ),
    Entry(
        "dri_imed_reward",
        _compose(IMED, _KNOWN, "expected"),
        "dri_imed where only the reward is recorded",
        IMED.reference,
        _SAW_SIGMA + "; the control",
    ),
    Entry(
        "published_dri_med",
        _published("med"),
        "Dri-MED, letter by letter",
        "Das et al., Alg. 2 and 3",
        _SAW_SIGMA + "; the control",
    ),
    Entry(
        "published_dri_imed",
        _published("imed"),
        "Dri-IMED, letter by letter",
        "Das et al., Alg. Dri-IMED",
        _SAW_SIGMA + "; the control",
    ),
    Entry("w_lin_med", _compose(LinMED, _KNOWN), "LinMED, weighted", LinMED.reference, _SAW_SIGMA),
    Entry("w_lin_imed", _compose(LinIMED, _KNOWN), "LinIMED, weighted", LinIMED.reference, _SAW_SIGMA),
    Entry("spanner_igw", _compose(SpannerIGW, _BOUND), "inverse gap weighting", SpannerIGW.reference, _SAW_BOUND),
    Entry("w_spanner_igw", _compose(SpannerIGW, _KNOWN), "the same, weighted", SpannerIGW.reference, _SAW_SIGMA),
    Entry("ids", _compose(IDS, _BOUND), "information-directed sampling", IDS.reference, _SAW_BOUND),
    Entry("w_ids", _compose(IDS, _KNOWN), "information-directed sampling, weighted", IDS.reference, _SAW_SIGMA),
    Entry("solid", _compose(SOLID, _BOUND), "primal-dual on the lower bound", SOLID.reference, _SAW_BOUND + _ALL_ARMS),
    Entry("w_solid", _compose(SOLID, _KNOWN), "the same, weighted", SOLID.reference, _SAW_SIGMA + _ALL_ARMS),
    Entry("oplb", _compose(OPLB, _BOUND), "optimism, pessimistic on cost", OPLB.reference, _SAW_BOUND + _CONTROL),
    Entry("w_oplb", _compose(OPLB, _KNOWN), "OPLB, weighted", OPLB.reference, _SAW_SIGMA + _CONTROL),
    Entry("oplb_sp", _compose(OPLB, _BOUND, safe_policy=True), "OPLB-SP", OPLB.reference, _SAW_BOUND + _CONTROL),
    Entry("w_oplb_sp", _compose(OPLB, _KNOWN, safe_policy=True), "weighted", OPLB.reference, _SAW_SIGMA + _CONTROL),
    Entry("clucb", _compose(OFUL, _BOUND, "clucb"), "conservative LinUCB", _CLUCB_BY, _SAW_BOUND + _CONTROL),
    Entry("w_clucb", _compose(OFUL, _KNOWN, "clucb"), "the same, weighted", _CLUCB_BY, _SAW_SIGMA + _CONTROL),
    Entry("safe_lucb", _compose(OFUL, _BOUND, "safe_lucb"), "optimism, safe arms", _SAFE_BY, _SAW_BOUND + _CONTROL),
    Entry("w_safe_lucb", _compose(OFUL, _KNOWN, "safe_lucb"), "the same, weighted", _SAFE_BY, _SAW_SIGMA + _CONTROL),
    Entry("d_lin_ucb", _compose(OFUL, _BOUND | _FORGETS), "optimism that forgets", _FORGETS_BY, _SAW_BOUND),
    Entry("w_d_lin_ucb", _compose(OFUL, _KNOWN | _FORGETS), "the same, weighted", _FORGETS_BY, _SAW_SIGMA),
    Entry("v_oful", _compose(OFUL, _VECTOR), "optimism, whole outcome vector", OFUL.reference, _SAW_VECTOR),
    Entry("v_ts", _compose(LinTS, _VECTOR), "Thompson sampling, whole outcome vector", LinTS.reference, _SAW_VECTOR),
    Entry("v_ids", _compose(IDS, _VECTOR), "IDS, whole outcome vector", IDS.reference, _SAW_VECTOR),
    Entry("v_greedy", _compose(Greedy, _VECTOR), "no exploration, whole vector", Greedy.reference, _SAW_VECTOR),
    Entry("v_med", _compose(MED, _VECTOR), "dri_med without its guard", MED.reference, _SAW_VECTOR),
]

REGISTRY: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def make(name: str, **settings: Any) -> AnyPolicy:
    """The policy of that name, with any of its settings changed.

    >>> make("lin_med").rule.empirical
    0.99
    """
    if name not in REGISTRY:
        raise UnknownNameError("policy", name, REGISTRY)
    try:
        return REGISTRY[name].build(**settings)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error
