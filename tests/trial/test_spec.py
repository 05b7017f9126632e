"""The trial file: every fault is found, at its place, in words that say what was expected and what came."""

from __future__ import annotations

import copy
import json
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.errors import SpecError
from drimed.records import Fault
from drimed.records import Path as Steps
from drimed.trial.spec import TrialSpec, parse_toml, with_lines
from drimed.trial.spec_faults import MOST_COEFFICIENTS

GOOD = """\
name = "maize-2026"
seed = 7
feedback = "absolute"
decisions = "one per episode"
preference = {yield = 1.0, cost = -0.2}
control = "none"
confidence = 0.99
delta = 0.01
model = {kind = "paper"}

[metrics.yield]
unit = "t/ha"
range = [0, 12]
[metrics.cost]
range = [0, 300]
better = "lower"

[arms.none]
[arms.low]
[arms.high]

[users.north]
group = "clay"
[users.south]
preference = {yield = 1.0}
control = {none = 0.5, low = 0.5}
arms = ["none", "low"]

[tolerance]
relative = 0.1
absolute = 0.2

[[guardrails]]
metric = "cost"
absolute = 20.0

[context.rain]
typical = 500
spread = 150

[noise]
kind = "known"
sd = {yield = 0.8, cost = 10.0}

[policy]
name = "dri_med"
guard = "certain"
"""
NOISE = GOOD[GOOD.index("[noise]") : GOOD.index("[policy]")]
PREFERENCE = "preference = {yield = 1.0, cost = -0.2}\n"
KNOWN = '[noise]\nkind = "known"\n'
ARMS = GOOD[GOOD.index("[arms.none]") : GOOD.index("[users.north]")]
TABLES = GOOD.index("\n[metrics.yield]")  # above it a line without a table can be added
EYE = "[[1, 0], [0, 1]]"
RAILS = GOOD[GOOD.index("[[guardrails]]") : GOOD.index("[context")]


def arms(field: str, none: str, low: str, high: str) -> str:
    return f"[arms.none]\n{field} = {none}\n[arms.low]\n{field} = {low}\n[arms.high]\n{field} = {high}\n"


@dataclass(frozen=True)
class Wrong:
    """GOOD with `old` replaced by `new`; the line with `#!` is where the fault is."""

    old: str  # "" adds a line at the top
    new: str
    path: str
    message: str  # a part of it
    without: str = ""  # a line that is left out besides

    @property
    def text(self) -> str:
        good = GOOD.replace(self.without, "")
        if not self.old:
            return good[:TABLES] + self.new + "\n" + good[TABLES:]
        assert good.count(self.old) == 1, self.old
        return good.replace(self.old, self.new)

    @property
    def line(self) -> int:
        return next(n for n, row in enumerate(self.text.splitlines(), 1) if row.endswith("#!"))


SINGLE = [
    # Fields that do not exist, at every level.
    Wrong("", "zzz = 3 #!", "zzz", "unknown field 'zzz'. Known: about, arms, attributes, blinding, cohorts"),
    Wrong('unit = "t/ha"', 'units = "t/ha" #!', "metrics.yield.units", "did you mean 'unit'?"),
    Wrong("absolute = 20.0", "abs = 20.0 #!", "guardrails.0.abs", "Known: absolute, metric, relative"),
    # Values of another kind.
    Wrong('"maize-2026"', "2026 #!", "name", "must be text in quotes, got 2026"),
    Wrong('"maize-2026"', '"maize 2026" #!', "name", "must be 1 to 100 letters, digits, dots, dashes"),
    Wrong("seed = 7", "seed = -1 #!", "seed", "must be at least 0, got -1"),
    Wrong('feedback = "absolute"', 'feedback = "diff" #!', "feedback", "must be 'absolute' or 'difference', got"),
    Wrong("range = [0, 12]", "range = [0, 6, 12] #!", "metrics.yield.range", "must have two numbers"),
    Wrong("range = [0, 12]", "range = [12, 0] #!", "metrics.yield.range", "must go from low to high, got [12, 0]"),
    Wrong("range = [0, 12]", "range = [0, nan] #!", "metrics.yield.range.1", "must be a finite number, got nan"),
    Wrong("range = [0, 12]", 'range = [ #!\n  0,\n  "12",\n]', "metrics.yield.range.1", "must be a number, got '12'"),
    Wrong("[arms.high]", "[arms]\nhigh = 3 #!", "arms.high", "must be a table of fields, got 3"),
    Wrong('arms = ["none", "low"]', 'arms = "none" #!', "users.south.arms", "must be a list in brackets, or a table"),
    Wrong(RAILS, '[guardrails] #!\nmetric = "cost"\n', "guardrails", "must be a list in brackets, or a table"),
    Wrong("[[guardrails]]", "[[guardrails]] #!", "guardrails.0.metric", "is missing", without='metric = "cost"\n'),
    Wrong("typical = 500", 'typical = "500 mm" #!', "context.rain.typical", "must be a number, got '500 mm'"),
    Wrong("spread = 150", "spread = 0 #!", "context.rain.spread", "must be above 0, got 0"),
    Wrong("confidence = 0.99", "confidence = 99 #!", "confidence", "a level between 0.5 and 1, such as 0.99, or"),
    # Names.
    Wrong("[users.north]", '[users."north/1"] #!', "users.north/1", "must be a name: 1 to 100 characters, no quotes"),
    Wrong("[users.north]", '[users."-north"] #!', "users.-north", "which spreadsheets take for a formula"),
    # Preferences.
    Wrong("cost = -0.2}", "costs = -0.2} #!", "preference.costs", "unknown metric 'costs'; did you mean 'cost'?"),
    Wrong("{yield = 1.0, cost = -0.2}", "{yield = 0.0} #!", "preference", "at least one metric a weight other than"),
    Wrong("[users.north]", "[users.north] #!", "users.north", "needs a preference", without=PREFERENCE),
    # Controls.
    Wrong('control = "none"', 'control = "nothing" #!', "control", "unknown arm 'nothing'; did you mean 'none'?"),
    Wrong("low = 0.5}", "low = 0.4} #!", "users.south.control", "shares must sum to 1, got 0.9"),
    Wrong("[users.north]", "[users.north] #!", "users.north", "needs a control (an", without='control = "none"\n'),
    # Guardrails.
    Wrong('metric = "cost"', 'metric = "price" #!', "guardrails.0.metric", "unknown metric 'price'; did you mean"),
    # Arms.
    Wrong("[arms.high]", "[arms.high] #!\nattributes = {dose = 1.0}", "arms.high", "'none' has own effects, this one"),
    Wrong(
        ARMS,
        arms("attributes", "{dose = 0}", "{dose = 1, water = 2} #!", "{dose = 2}"),
        "arms.low.attributes",
        "must be the same for all arms: expected dose, got dose, water",
    ),
    Wrong(ARMS, arms("map", EYE, "[[1, 0], [0]] #!", EYE), "arms.low.map", "of one length; got 2 of 1 and 2"),
    Wrong(ARMS, arms("map", EYE, "[ #!\n  [1, 0],\n  [0, inf],\n]", EYE), "arms.low.map.1.1", "must be a finite"),
    # Noise.
    Wrong(NOISE, '[noise] #!\nkind = "known"\n', "noise", "needs sd (one for each metric) or covariance"),
    Wrong("sd = {yield = 0.8, cost = 10.0}", "sd = {yield = 0.8} #!", "noise.sd", "expected yield, cost, got yield"),
    Wrong(NOISE, '[noise]\nkind = "learned"\nsd = {yield = 1, cost = 1} #!\n', "noise.sd", "belongs to noise that is"),
    Wrong('kind = "known"', 'kind = "known"\nscale = "rian" #!', "noise.scale", "unknown scale 'rian'; did you mean"),
    Wrong(NOISE, KNOWN + "covariance = [[1, 2], [2, 1]] #!\n", "noise.covariance", "must be positive semi-definite"),
    Wrong(NOISE, NOISE + "[noise.arms.lo] #!\nsd = {yield = 1, cost = 1}\n", "noise.arms.lo", "unknown arm 'lo'; did"),
    # Policies.
    Wrong('name = "dri_med"', 'name = "drimed" #!', "policy.name", "unknown policy 'drimed'; did you mean 'dri_med'?"),
    Wrong('guard = "certain"', 'guard = "certian" #!', "policy.guard", "unknown guard 'certian'; did you mean"),
    Wrong('guard = "certain"', "temprature = 3.0 #!", "policy.temprature", "did you mean 'temperature'?"),
    Wrong('guard = "certain"', "empirical = [0.9] #!", "policy.empirical", "must be a number of at most 1e+30, a text"),
    Wrong("[policy]", "[policy]\ndiscount = 1.5 #!", "policy.discount", "must be in (0, 1], got 1.5"),
    Wrong('guard = "certain"', "tolerance = 0.1 #!", "policy.tolerance", "give it under [tolerance]"),
    Wrong("[policy]", '[policy] #!\nguard = "budget"', "policy", "has no guardrails;", without='guard = "certain"\n'),
]


def faults_of(text: str) -> tuple[Fault, ...]:
    with pytest.raises(SpecError) as error:
        TrialSpec.parse(text)
    return error.value.faults


def dotted(fault: Fault) -> str:
    return ".".join(map(str, fault.path))


@pytest.mark.parametrize("wrong", SINGLE, ids=[f"{w.path}: {w.message[:30]}" for w in SINGLE])
def test_a_fault_is_found_alone_at_its_path_and_line_and_in_plain_words(wrong: Wrong) -> None:
    (fault,) = faults_of(wrong.text)
    assert dotted(fault) == wrong.path
    assert wrong.message in fault.message
    assert fault.line == wrong.line
    assert str(fault).endswith(f"{wrong.path}: {fault.message}")
    for opaque in ("Input should", "pattern", "valid dictionary", "instance of", "pydantic", "validation"):
        assert opaque not in fault.message


WITHIN = {
    "seed": ("seed = 7", "seed = -7"),
    "tolerance.absolute": ("absolute = 0.2", "absolute = -0.2"),
    "metrics.cost.better": ('better = "lower"', 'better = "less"'),
    "context.rain.spread": ("spread = 150", "spread = 0"),
}
BETWEEN = {
    "control": ('control = "none"', 'control = "nothing"'),
    "guardrails.0.metric": ('metric = "cost"', 'metric = "price"'),
    "policy.name": ('name = "dri_med"', 'name = "dri"'),
    "noise.sd": ("sd = {yield = 0.8, cost = 10.0}", "sd = {yield = 0.8}"),
}


@pytest.mark.parametrize("changes", [WITHIN, BETWEEN], ids=["in fields", "between fields"])
def test_several_faults_are_reported_at_once_each_with_its_line(changes: dict[str, tuple[str, str]]) -> None:
    text = GOOD
    for old, new in changes.values():
        text = text.replace(old, new)
    rows = text.splitlines()
    expected = {(path, rows.index(new) + 1) for path, (_, new) in changes.items()}
    assert {(dotted(f), f.line) for f in faults_of(text)} == expected


def small(**changes: Any) -> dict[str, Any]:
    return {
        "name": "d",
        "model": {"kind": "paper"},
        "metrics": {"yield": {}, "cost": {}},
        "arms": {"old": {}, "new": {}, "other": {}},
        "preference": {"yield": 1.0},
        "control": "old",
        "users": {"north": {}, "south": {}},
        "tolerance": {"absolute": 0.5},
    } | changes


def test_a_control_plot_has_one_arm() -> None:
    spec = small(feedback="difference", control={"old": 0.5, "new": 0.5}, model={"kind": "field"})
    with pytest.raises(SpecError, match="a site's control plot has one arm"):
        TrialSpec.read(spec)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"name": "dri_med", "weighting": "known"}, "weighting 'known' needs the noise"),
        ({"name": "published_dri_med"}, "needs noise that is known; dri_med learns it"),
        ({"name": "published_dri_imed"}, "needs noise that is known; dri_med learns it"),
        ({"name": "dri_med", "norm_bound": -1}, "norm_bound: must be positive"),
        ({"name": "dri_med", "discount": 0.9, "confidence": "anytime"}, "confidence 'anytime' needs discount 1"),
    ],
)
def test_a_policy_that_does_not_fit_learned_noise_is_refused(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=r"^policy[.:]") as error:
        TrialSpec.read(small(policy=policy))
    assert message in str(error.value)


def test_text_that_is_not_json_is_refused_with_its_line() -> None:
    with pytest.raises(SpecError, match="line 2: not JSON"):
        TrialSpec.parse('{"name": "a",\n nonsense}', "json")


@pytest.mark.parametrize("changes", [{"about": "\ud800"}, {"users": {"\ud800": {}}}])
def test_half_a_character_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="must be text of whole characters, without lone surrogates, got"):
        TrialSpec.parse(json.dumps(small(**changes)), "json")


def test_a_file_with_very_many_faults_has_their_lines_soon() -> None:
    text = GOOD + "".join(f"[users.u{i}]\nx = 1\n" for i in range(2000))
    start = time.perf_counter()
    first = GOOD.count("\n") + 2
    assert [f.line for f in faults_of(text)] == [first + 2 * i for i in range(2000)]
    assert time.perf_counter() - start < 10


def test_a_trial_learns_no_more_coefficients_than_fit_in_memory() -> None:
    def arms_of(columns: int) -> dict[str, Any]:
        row = [0.0] * columns
        return {"old": {"map": [row, row]}, "new": {"map": [row, row]}}

    TrialSpec.read(small(arms=arms_of(MOST_COEFFICIENTS)))
    with pytest.raises(SpecError, match=r"arms: a trial learns at most 2000 coefficients, .* need 50000"):
        TrialSpec.read(small(arms=arms_of(50_000)))
    with pytest.raises(SpecError, match="need 2004"):
        TrialSpec.read(small(arms={"old": {}} | {f"a{i}": {} for i in range(1000)}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "the trial: must be a table of fields, got"),
        ([1], "the trial: must be a table of fields, got"),
        (small(metrics={}), "^metrics: must not be empty"),
        (small(arms={}), "^arms: must not be empty"),
    ],
)
def test_data_that_is_no_trial_is_refused(data: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        TrialSpec.read(data)


def test_a_name_with_brackets_keeps_its_place_in_the_path() -> None:
    data = small(metrics={"dose [kg]": {"range": "wide"}}, preference={"dose [kg]": 1.0})
    with pytest.raises(SpecError) as error:
        TrialSpec.read(data)
    assert error.value.faults[0].path == ("metrics", "dose [kg]", "range")


def test_toml_json_and_python_give_the_same_spec(tmp_path: Path) -> None:
    data = tomllib.loads(GOOD)
    toml, js = tmp_path / "trial.toml", tmp_path / "trial.json"
    toml.write_text(GOOD)
    js.write_text(json.dumps(data))
    one, two, three = TrialSpec.load(toml), TrialSpec.load(str(js)), TrialSpec.read(data)
    assert one == two == three


@pytest.mark.parametrize("name", ["missing.toml", "latin.toml"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "latin.toml").write_bytes('name = "Bjørn"'.encode("latin-1"))
    with pytest.raises(SpecError, match=r"cannot (be )?read"):
        TrialSpec.load(tmp_path / name)


LEAVES: st.SearchStrategy[object] = st.sampled_from(
    [None, True, -1, 0, 2.5, float("nan"), float("inf"), "", "old", "yield", [], [[1]], {}]
)


@given(
    st.sampled_from(sorted(tomllib.loads(GOOD))),
    st.recursive(LEAVES, lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from(["yield", "x"]), v)),
)
def test_whatever_stands_in_a_field_it_is_read_or_refused_as_a_spec_error(field: str, value: object) -> None:
    data = copy.deepcopy(tomllib.loads(GOOD))
    data[field] = value
    try:
        spec = TrialSpec.read(data)
    except SpecError:
        return
    plain = json.loads(json.dumps(spec.plain()))
    assert TrialSpec.read(plain) == spec
    assert TrialSpec.read(plain).plain() == spec.plain()


@pytest.mark.parametrize("part", ["metrics", "policy", "users"])
def test_a_file_that_is_nested_deeply_is_refused(part: str) -> None:
    nested: Any = 1.0
    for _ in range(900):
        nested = {"a": [nested]}
    with pytest.raises(SpecError, match="nested more than 20 levels deep"):
        TrialSpec.read({"name": "t", part: nested})


# Lines of TOML


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("'a.b' = 1\n\"c\\u0064\" = 2\n", ("cd",), 2),
        ("x = {a.b = [1, {c = '''\n]}'''}], d = 2} # e = 3\ny = 4\n", ("x", "d"), 1),
        ("x = {a = [1, {c = '''\n]}'''}], d = 2} # e = 3\ny = 4\n", ("y",), 3),
        ('s = """a"""" # "\nt = \'\'\'\'\'\'\nu = 1979-05-27 07:32:00\nv = -1.5e+3\nw = 0\n', ("w",), 5),
        ("[[a]]\n[[a.b]]\n[[a]]\n[[a.b]]\n[a.b.c]\nd = 1\n", ("a", 1, "b", 0, "c", "d"), 6),
        ("a = [\n  1, # ]\n  # 2,\n  [2,\n   3],\n]\r\nb = 1\n", ("a", 1, 1), 1),
        ("[ a . 'b' ]\nc . d = 1\n", ("a", "b", "c", "d"), 2),
    ],
)
def test_strings_comments_and_dots_do_not_mislead(text: str, path: Steps, line: int) -> None:
    data: Any = tomllib.loads(text)
    for step in path:
        data = data[step]
    (fault,) = with_lines(text, [Fault(path, "")])
    assert fault.line == line


@pytest.mark.parametrize("key", ["a" + ".a" * 50_000, '"a"' + " . 'a'" * 20_000])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[[{}]]", "x = {{b = 1, {} = 1}}"])
def test_a_key_of_very_many_parts_is_refused_at_once(key: str, form: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError, match="line 2: a key must have at most 20 parts"):
        parse_toml("\n" + form.format(key))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("text", "said"), [("a = " + "9" * 5000, "too many digits"), ("a = " + "[" * 5000, "nested too deeply")]
)
def test_what_is_too_much_for_the_reader_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=f"not TOML: .*{said}"):
        parse_toml(text)


def test_text_that_is_not_toml_has_the_line_of_the_fault() -> None:
    with pytest.raises(SpecError) as error:
        parse_toml('name = "t"\n\nmetric cost\n')
    assert error.value.faults[0].line == 3
    assert "(at line" not in str(error.value)


@pytest.mark.parametrize(("heading", "quotes"), [("[users.Gut-Süd]", 1), ("[users.the mill]", 1), ("[users.mill", 0)])
def test_a_heading_that_needs_quotes_is_said_to(heading: str, quotes: int) -> None:
    with pytest.raises(SpecError) as error:
        parse_toml(f'name = "t"\n{heading}\n')
    (fault,) = error.value.faults
    assert fault.line == 2
    assert fault.message.startswith("not TOML: Expected ']' at the end of a table declaration")
    assert fault.message.count("is written in quotes") == quotes
