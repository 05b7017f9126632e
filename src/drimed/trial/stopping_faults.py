"""What is wrong with the stopping rules of a trial file, or with those that replace them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drimed.errors import ConfigError, UnknownNameError
from drimed.evaluation.stopping_rules import NEED_MARGIN, Rule
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.records import Fault, Path
from drimed.trial.parts import StoppingRule, User
from drimed.trial.spec import TrialSpec
from drimed.trial.stopping import groups_of, views


def stopping_faults(spec: TrialSpec, users: Mapping[str, User], *, sound: bool = True) -> Iterator[Fault]:
    """What does not fit a trial with these users; `sound`: the rest of it has no faults."""
    stopping, until = spec.stopping, None if spec.floors is None else spec.floors.until
    rules = {} if stopping is None else stopping.rules
    if until is not None and until not in rules:
        yield Fault(("floors", "until"), str(UnknownNameError("stopping rule", until, rules)))
    for name, rule in rules.items():
        for fault in _rule_faults(spec, users, rule, ("stopping", "rules", name)):
            sound = False
            yield fault
    for name, view in views(spec, users).items() if sound else ():
        if not view.arms:
            yield Fault(("stopping", "rules", name), "there is no arm but the control to ask about")


def _rule_faults(spec: TrialSpec, users: Mapping[str, User], rule: StoppingRule, at: Path) -> Iterator[Fault]:
    for field, name, known in (
        ("arm", rule.arm, spec.arms),
        ("metric", rule.metric, spec.metrics),
        ("user", rule.user, users),
        ("group", rule.group, groups_of(spec, users)),
    ):
        if name is not None and name not in known:
            yield Fault((*at, field), str(UnknownNameError(field, name, known)))
    given = [field for field in ("group", "user", "each") if getattr(rule, field) is not None]
    if len(given) > 1:
        yield Fault((*at, given[1]), f"give one of group, user and each; {' and '.join(given)} contradict each other")
    if rule.kind in NEED_MARGIN and not rule.margin:
        yield Fault((*at, "margin"), f"{rule.kind} needs a margin above zero: the smallest effect that matters")
    else:
        try:
            Rule(kind=rule.kind, margin=rule.margin)
        except ConfigError as error:
            yield Fault((*at, "margin"), str(error))
    if (
        rule.arm is not None
        and spec.control == rule.arm
        and all(spec.resolved(u).control == rule.arm for u in users.values())
    ):
        yield Fault((*at, "arm"), f"{rule.arm!r} is the control itself: it has no effect against itself")
    yield from _each_faults(spec, users, rule, at)
    yield from _evidence_faults(spec, rule, at)
    if rule.evidence == "model" and rule.then != "advise" and spec.blames_arms:
        yield Fault(
            (*at, "evidence"),
            f'a rule that ends in "{rule.then}" by the model needs a model with seasons, and [model] says seasons = '
            "false: such a model takes a shift from season to season for an effect of arms, and the rule is met "
            f"wrongly; leave `seasons = false` out of [model], use "
            'evidence = "propensities" or then = "advise", or give [stopping] seasons = 1 if there is one season',
        )


def _each_faults(spec: TrialSpec, users: Mapping[str, User], rule: StoppingRule, at: Path) -> Iterator[Fault]:
    """A rule divides alpha among those that are there when it is fixed."""
    if rule.each == "group" and not groups_of(spec, users):
        yield Fault((*at, "each"), "no user and no cohort has a group: give them groups, or leave `each` out")
    if rule.each == "user" and spec.enrols:
        yield Fault(
            (*at, "each"),
            "with open enrolment nobody knows how many users there will be, and alpha cannot be divided among them: "
            'write each = "group", or leave `each` out',
        )
    elif rule.each == "user" and not users:
        yield Fault((*at, "each"), "there are no users in the file to divide alpha among: name them first")


def _evidence_faults(spec: TrialSpec, rule: StoppingRule, at: Path) -> Iterator[Fault]:
    if rule.evidence == "model" and spec.kind == "paper":
        yield Fault(
            (*at, "evidence"),
            'the paper\'s model has no ranges of a level of their own: write [model] kind = "field", or '
            'evidence = "propensities"',
        )
    policy = make(spec.policy.name)
    if rule.evidence == "exact":
        for metric in spec.metrics if rule.metric is None else [rule.metric]:
            if metric in spec.metrics and spec.metrics[metric].range is None:
                yield Fault(
                    (*at, "evidence"),
                    f"exact ranges need the range of {metric!r}, outside of which no outcome can be; give it one, or "
                    'evidence = "propensities"',
                )
    if rule.evidence != "model" and isinstance(policy, Policy) and policy.rule.randomisation == "sampled":
        yield Fault(
            (*at, "evidence"),
            f"the policy {spec.policy.name!r} only samples, and its propensities are not known: take another policy, "
            'such as dri_med, or evidence = "model"',
        )
