"""Policies by name, from text, and from outside the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from drimed.competitors.roful import ROFUL
from drimed.errors import ConfigError, DrimedError, UnknownNameError
from drimed.models.linear_regression import Learner
from drimed.policies import registry
from drimed.policies.guards.base import Off
from drimed.policies.guards.certified import Expected
from drimed.policies.policy import Policy
from drimed.policies.registry import REGISTRY, PolicySpec, find, guard_name, make, parse_list, register
from drimed.policies.rules.simple import OFUL
from drimed.simulation.runner import policy_digest
from drimed.simulation.sweep import code_digest


def made(name: str, **settings: object) -> Policy:
    policy = make(name, **settings)
    assert isinstance(policy, Policy)
    return policy


def test_a_setting_that_two_parts_know_goes_to_both() -> None:
    policy = made("w_roful", norm_bound=2.0)
    assert isinstance(policy.rule, ROFUL)
    assert isinstance(policy.learner, Learner)
    assert policy.learner.norm_bound == policy.rule.norm_bound == 2.0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ofull", {}, "unknown policy 'ofull'; did you mean 'oful'.* Known: .*oful"),
        ("lin-ts", {}, "unknown policy 'lin-ts'; did you mean 'lin_ts'"),
        ("published_drimed", {}, "unknown policy 'published_drimed'; did you mean 'published_dri_med'"),
        ("oful", {"discont": 0.9}, "unknown setting 'discont'; did you mean 'discount'"),
        ("med", {"temprature": 1.0}, "unknown setting 'temprature'; did you mean 'temperature'"),
        ("med", {"guard": "expcted"}, "unknown guard 'expcted'; did you mean 'expected'"),
        ("published_dri_med", {"readin": "code"}, "unknown setting 'readin'; did you mean 'reading'"),
        ("oful", {"relative": 0.1}, "unknown setting 'relative'(?!.*did you mean 'relative')"),  # it has no guard
        ("oful", {"discount": "a lot"}, r"discount must be in \(0, 1\], got 'a lot'"),
        ("oful", {"discount": None}, r"discount must be in \(0, 1\], got None"),
    ],
)
def test_a_wrong_name_or_setting_is_refused_with_the_nearest_right_one(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DrimedError, match=message):
        make(name, **settings)


def test_settings_in_a_text_go_to_the_part_that_knows_them() -> None:
    spec = PolicySpec.parse("dri_med:guard=certain+confidence=anytime+feedback=reward+temperature=1+absolute=0.2")
    policy = spec.build()
    assert policy.guard.confidence == "anytime"  # type: ignore[attr-defined]
    assert policy.guard.tolerance.absolute == 0.2  # type: ignore[attr-defined]
    assert policy.learner.feedback == "reward"  # type: ignore[attr-defined]
    assert policy.rule.temperature == 1  # type: ignore[attr-defined]
    assert spec.parts() == {"learner": "reward, known noise", "rule": "MED", "guard": "certain at anytime"}


@pytest.mark.parametrize("text", ["dri_med:guard", "dri_med:=off", "dri_med:guard=", "dri_med:temperature=warm"])
def test_a_malformed_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        PolicySpec.parse(text)
    with pytest.raises(ConfigError, match="at least one policy"):
        parse_list(" , ")


def test_a_tolerance_without_slack_is_said_so_before_anything_starts() -> None:
    note = PolicySpec.parse("dri_med:absolute=0").note()
    assert note is not None
    assert "may stay on it" in note
    assert PolicySpec.parse("dri_med").note() is None
    assert PolicySpec.parse("dri_med:guard=budget+absolute=0").note() is None
    assert PolicySpec.parse("published_dri_med").note() is None


MINE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from drimed.policies.guards.base import UNCHANGED, Guarded
from drimed.policies.guards.certified import Expected
from drimed.models.linear_regression import Learner
from drimed.policies.policy import Policy
from drimed.policies.registry import make, register


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """The best arm, or any with probability epsilon."""

    epsilon: float = 0.2

    randomisation: ClassVar[str] = "closed form"

    def propose(self, fit, offer, ask):
        value = fit.mean(offer.features)
        allowed = np.ones(value.shape, bool) if ask.mask is None else np.broadcast_to(ask.mask, value.shape)
        best = np.where(allowed, value, -np.inf).argmax(-1)
        even = allowed / allowed.sum(-1, keepdims=True)
        return (1 - self.epsilon) * np.eye(value.shape[-1])[best] + self.epsilon * even


@dataclass(frozen=True, kw_only=True)
class Half:
    """Half of every wish is replaced by the control."""

    share: float = 0.5
    protects: ClassVar[str] = "nothing"
    promise: ClassVar[str] = "the control has at least half"

    def init(self, shape, batch): ...

    def apply(self, state, fit, offer, ask):
        p = self.share * offer.control + (1 - self.share) * ask(offer.available, None)
        return Guarded(p, np.full(p.shape[:-1], UNCHANGED))

    def commit(self, state, fit, offer, decision): ...


@register("mine", about="epsilon, guarded")
def mine(epsilon: float = 0.3):
    return Policy(learner=Learner(), rule=Epsilon(epsilon=epsilon), guard=Expected())


def unregistered():
    return make("oful")


ready = Policy(learner=Learner(), rule=Epsilon(epsilon=0.4), guard=Half())


class Broken:
    def propose(self, fit, offer, ask): ...


class Leaky(Epsilon):
    def propose(self, fit, offer, ask):
        return 0.9 * super().propose(fit, offer, ask)


class Deaf(Epsilon):
    def propose(self, fit, offer, ask):
        return np.full(offer.features.shape[:-1], 1 / offer.features.shape[-2])


class Crash(Epsilon):
    def propose(self, fit, offer, ask):
        raise KeyError("oops")


class Moody(Epsilon):
    def propose(self, fit, offer, ask):
        p = super().propose(fit, offer, ask)
        return p + np.random.default_rng().random() * 0.1 * (np.eye(p.shape[-1])[0] - p)


class OneLeader(Epsilon):
    def propose(self, fit, offer, ask):
        p = super().propose(fit, offer, ask)
        return np.broadcast_to(p.reshape(-1, p.shape[-1])[0], p.shape)


class HalfAPolicy:
    def decide(self, state, offer, draws): ...


number = 3
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module from outside, in a folder of its own."""
    name = "somebodys_rules"
    (tmp_path / f"{name}.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "does_not_import.py").write_text("import no_such_library\n", encoding="utf-8")
    (tmp_path / "does_not_run.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.delenv(registry.MODULES, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for loaded in (name, "does_not_import", "does_not_run"):
        sys.modules.pop(loaded, None)
    REGISTRY.pop("mine", None)


def test_a_rule_alone_gets_the_learner_of_dri_med_and_no_guard(module: str) -> None:
    policy = made(f"{module}:Epsilon", epsilon=0.1)
    assert policy.rule.epsilon == 0.1  # type: ignore[attr-defined]
    assert policy.learner == made("dri_med").learner
    assert policy.guard == Off()


def test_rule_and_guard_of_any_policy_can_be_replaced_by_module_and_name(module: str) -> None:
    policy = made("dri_med", rule=f"{module}:Epsilon", epsilon=0.1, guard=f"{module}:Half", share=0.75)
    assert type(policy.rule).__name__ == "Epsilon"
    assert policy.guard.share == 0.75  # type: ignore[attr-defined]
    assert policy.traits.guard == f"{module}:Half" == guard_name(policy.guard)
    assert {"epsilon", "share", "discount"} <= policy.traits.settings


def test_parts_may_be_names_classes_and_instances() -> None:
    assert isinstance(made("dri_med", rule="oful").rule, OFUL)
    assert isinstance(made("dri_med", rule=OFUL).rule, OFUL)
    policy = made("oful", guard=Expected(confidence=0.9), absolute=0.7)
    assert isinstance(policy.guard, Expected)
    assert (policy.guard.confidence, policy.guard.tolerance.absolute) == (0.9, 0.7)


def test_a_registered_function_is_a_policy_under_both_its_names(module: str) -> None:
    policy = made(f"{module}:mine", epsilon=0.15)
    assert policy.rule.epsilon == 0.15  # type: ignore[attr-defined]
    assert isinstance(policy.guard, Expected)
    assert made("mine") == made(f"{module}:mine")
    assert find(f"{module}:mine").about == "epsilon, guarded"


def test_settings_that_a_function_does_not_take_go_to_the_parts_of_its_policy(module: str) -> None:
    policy = made(f"{module}:mine", epsilon=0.15, relative=0.2, norm_bound=3.0)
    assert policy.rule.epsilon == 0.15  # type: ignore[attr-defined]
    assert isinstance(policy.guard, Expected)
    assert (policy.guard.tolerance.relative, policy.guard.tolerance.absolute) == (0.2, 0.05)
    assert isinstance(policy.learner, Learner)
    assert policy.learner.norm_bound == 3.0
    with pytest.raises(UnknownNameError, match="unknown setting 'epsilom'; did you mean 'epsilon'"):
        make(f"{module}:mine", epsilom=0.1)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("no_such_module:Rule", "there is no module 'no_such_module'; it must be installed, in the current folder"),
        ("somebodys_rules.inside:Rule", "there is no module 'somebodys_rules.inside'"),
        ("does_not_import:Rule", "does_not_import cannot be imported: No module named 'no_such_library'"),
        ("does_not_run:Rule", "does_not_run cannot be imported: ZeroDivisionError"),
        ("somebodys_rules:number", "neither a rule .it has no `propose`. nor the class of a policy"),
        ("somebodys_rules:Half", "is a guard: give it to a policy, as in dri_med:guard=somebodys_rules:Half"),
        ("somebodys_rules:unregistered", "is a function: register it with @drimed.register"),
        ("subprocess:run", "is a function: register it"),
        ("subprocess:Popen", "neither a rule .* nor the class of a policy"),
        ("somebodys_rules:Broken", "Broken is no rule: it lacks randomisation"),
        ("somebodys_rules:HalfAPolicy", "HalfAPolicy is no policy: it lacks begin_episode, commit"),
        ("somebodys_rules:Leaky", r"somebodys_rules:Leaky must give one user with 3 arms probabilities"),
        ("somebodys_rules:Deaf", "gives an arm that is not available the probability 0.33"),
        ("somebodys_rules:Crash", "fails on a small problem: KeyError: 'oops'"),
        ("somebodys_rules:Moody", "must answer the same question in the same way.* no random numbers of its own"),
        ("somebodys_rules:OneLeader", "must compute each run of a batch as if it were alone"),
        ("dri_med:certain", "there is no module 'dri_med'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(module: str, place: str, message: str) -> None:
    del module
    with pytest.raises(ConfigError, match=message):
        make(place)


def test_a_wrong_name_in_a_module_suggests_the_nearest(module: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown name in drimed\.policies\.registry 'RULES\.x'"):
        make("drimed.policies.registry:RULES.x")
    with pytest.raises(UnknownNameError, match="unknown name in somebodys_rules 'Epsilom'; did you mean 'Epsilon'"):
        make(f"{module}:Epsilom")
    with pytest.raises(UnknownNameError, match="unknown setting 'epsilom'; did you mean 'epsilon'"):
        make(f"{module}:Epsilon", epsilom=0.1)


@pytest.mark.parametrize(("setting", "wrong"), [("rule", "Half"), ("guard", "Epsilon")])
def test_a_part_of_the_wrong_kind_says_what_it_lacks(module: str, setting: str, wrong: str) -> None:
    lacks = {"rule": "propose", "guard": "apply"}[setting]
    with pytest.raises(ConfigError, match=f"{module}:{wrong} is no {setting}: it lacks .*{lacks}"):
        make("dri_med", **{setting: f"{module}:{wrong}"})


def test_a_part_that_is_no_dataclass_is_told_to_be_one() -> None:
    bare = type("Bare", (), {"randomisation": "closed form", "propose": None})
    with pytest.raises(ConfigError, match="Bare must be a dataclass"):
        make("dri_med", rule=bare)


def test_the_text_form_tells_names_from_settings(module: str) -> None:
    spec = PolicySpec.parse(f"{module}:Epsilon:guard=expected+epsilon=0.1")
    assert (spec.name, spec.settings) == (f"{module}:Epsilon", {"guard": "expected", "epsilon": 0.1})
    other = PolicySpec.parse(f"dri_med:rule={module}:Epsilon+guard={module}:Half+share=0.3")
    assert other.settings == {"rule": f"{module}:Epsilon", "guard": f"{module}:Half", "share": 0.3}
    assert other.parts() == {"learner": "vector, known noise", "rule": "Epsilon", "guard": f"{module}:Half"}
    names = [s.name for s in parse_list(f"oful, {module}:Epsilon, dri_med:guard=off")]
    assert names == ["oful", f"{module}:Epsilon", "dri_med"]


@pytest.fixture
def installed(module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers policies."""
    places = {"their_epsilon": "Epsilon", "their_function": "unregistered"}
    points = [metadata.EntryPoint(name, f"{module}:{own}", registry.GROUP) for name, own in places.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [p for p in points if p.group == group])
    monkeypatch.setenv(registry.MODULES, "another_module")
    registry.offered.cache_clear()
    yield
    registry.offered.cache_clear()


@pytest.mark.usefixtures("installed")
def test_policies_of_installed_packages_have_short_names() -> None:
    assert made("their_epsilon", epsilon=0.1).rule.epsilon == 0.1  # type: ignore[attr-defined]
    assert isinstance(made("their_function").rule, OFUL)
    assert find("their_epsilon").about == "The best arm, or any with probability epsilon."
    with pytest.raises(UnknownNameError, match="did you mean 'their_epsilon'"):
        make("their_epsilom")


def test_a_name_of_drimed_cannot_be_taken() -> None:
    with pytest.raises(ConfigError, match="'oful' is a policy of drimed"):
        register("oful")(OFUL)


def test_a_process_that_names_its_modules_loads_no_others(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.MODULES, "")
    with pytest.raises(ConfigError, match=f"module '{module}' may not be loaded here; DRIMED_MODULES names"):
        make(f"{module}:Epsilon")
    with pytest.raises(ConfigError, match="may not be loaded here"):
        make("dri_med", guard=f"{module}:Half")
    assert module not in sys.modules
    assert made("dri_med").guard == Expected()
    monkeypatch.setenv(registry.MODULES, f"other, {module}")
    assert made(f"{module}:Epsilon").rule.epsilon == 0.2  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["Epsilon", "mine"])
def test_the_fingerprint_changes_with_the_file(policy: str, module: str, tmp_path: Path) -> None:
    text = f"{module}:{policy}"
    assert policy_digest("dri_med:guard=certain") == code_digest()
    before = policy_digest(text)
    assert before == policy_digest(f"{text}:epsilon=0.1") != code_digest()
    file = tmp_path / f"{module}.py"
    file.write_text(MINE.replace("epsilon: float = 0.2", "epsilon: float = 0.25"), encoding="utf-8")
    policy_digest.cache_clear()
    assert policy_digest(text) != before
