"""What a trial of the kind field or people has taught: for whom, when, and on whose outcomes it rests."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drimed.findings.charts.varying import components
from drimed.findings.dictionary import TABLES, meanings
from drimed.findings.field_sentences import field_sentences
from drimed.findings.varying import Varies

from drimed.findings import field_worth
from drimed.findings.analysis import Analysis, analyse, sentences
from drimed.findings.effects import EVERYBODY, effects
from drimed.findings.page import report, write_report
from drimed.learning.field.contrasts import Found, Known
from drimed.records import Report
from drimed.trial.model_free import REWARD
from drimed.trial.model_ranges import offers_now
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from tests.findings.field_trials import ARMS, EFFECT, FIELD, PEOPLE, drawn, grown


@pytest.fixture(scope="module")
def done() -> Analysis:
    return analyse(grown(FIELD, 8, slope=8.0))


@pytest.fixture(scope="module")
def people() -> Analysis:
    return analyse(grown(PEOPLE, 8))


def test_ranges_hold_the_truth_and_are_of_use(done: Analysis) -> None:
    """At one fixed seed, 36 effects; the likely ranges may miss 5 % of them, those at all times fewer."""
    own = [x for x in done.own_effects if x.arm != "old"]
    assert len(own) == 12
    for x in own:
        assert x.ends[0] <= EFFECT[x.arm] <= x.ends[1], x
        assert x.ends[0] <= x.likely_ends[0] <= x.estimate <= x.likely_ends[1] <= x.ends[1], x
        # field-model.md, section 5: about 1.7 times as wide where much was learned
        assert 1.2 < (x.ends[1] - x.ends[0]) / (x.likely_ends[1] - x.likely_ends[0]) < 2.5, x
    for x in done.effects:
        if (x.who, x.on, x.arm, x.source) == (EVERYBODY, REWARD, "good", "model"):
            assert x.likely_ends[0] > 0
    control = [x for x in done.effects if x.arm == "old" and x.source == "model"]
    assert all((x.estimate, x.ends[0], x.ends[1]) == (0.0, 0.0, 0.0) for x in control)


def test_users_with_other_controls_and_levels_have_the_right_effects() -> None:
    """Half of the users are 60 higher and have another control; the paper's model is off by half of that."""
    users = {f"s{i}": {"control": "old" if i < 3 else "bad"} for i in range(6)}
    spec = {k: v for k, v in FIELD.items() if k != "context"} | {"users": users}
    rng = np.random.default_rng(7)
    trial = Trial.create(spec, MemoryStore())
    for _ in range(10):
        trial.open_episode()
        year = 15 * rng.standard_normal()
        reports = []
        for given in trial.ask_many():
            high = 60.0 * (int(given.user[1]) >= 3)
            y = 60 + high + year + EFFECT[given.arm] + 4 * rng.standard_normal()
            reports.append(Report(given.id, {"yield": y, "cost": 20 + rng.standard_normal()}))
        trial.tell_many(reports, confirm=True)
    found = analyse(trial)
    truth = {user: EFFECT["good"] - EFFECT["old" if int(user[1]) < 3 else "bad"] for user in users}
    for x in found.own_effects:
        if x.arm == "good":
            assert abs(x.estimate - truth[x.who]) < 8, x  # half of the gap would be 30
            assert x.ends[0] <= truth[x.who] <= x.ends[1]
    pooled = next(x for x in found.effects if (x.who, x.on, x.arm) == (EVERYBODY, REWARD, "good"))
    assert abs(pooled.estimate - np.mean(list(truth.values()))) < 5
    assert pooled.likely_ends[0] <= np.mean(list(truth.values())) <= pooled.likely_ends[1]


def test_effects_of_some_users_come_from_the_state_alone(done: Analysis) -> None:
    some = ["s4", "s1"]
    found = effects(done.seen.state, some)
    wanted = [x for user in some for x in done.own_effects if x.who == user]
    assert [(x.who, x.arm, x.decisions, x.available) for x in found] == [
        (x.who, x.arm, x.decisions, x.available) for x in wanted
    ]
    np.testing.assert_allclose([x.estimate for x in found], [x.estimate for x in wanted], rtol=1e-9)
    np.testing.assert_allclose([x.ends[0] for x in found], [x.ends[0] for x in wanted], rtol=1e-6)


def test_the_better_arm_is_recommended_to_everybody(done: Analysis, people: Analysis) -> None:
    for found in (done, people):
        assert {r.effect.arm for r in found.recommendations} == {"good"}
        assert len(found.recommendations) == len(found.seen.state.users)
        assert np.mean([r.p_best for r in found.recommendations]) > 0.9


@pytest.mark.parametrize("kind", ["field", "people"])
def test_the_gain_is_the_sum_of_what_each_decision_was_worth(kind: str, done: Analysis, people: Analysis) -> None:
    """The last number of the course is one combination of effects: by the covariance of all of them at once."""
    a = done if kind == "field" else people
    assert isinstance(a.fit, Known)
    seen, course = a.seen, a.course
    by_user = {(x.who, x.arm): x.estimate for x in a.own_effects}
    if kind == "people":  # no contexts: every decision is worth the user's own effect
        names = list(seen.state.users)
        total = sum(by_user[names[user], ARMS[arm]] for user, arm in zip(seen.user, seen.arm, strict=True))
        assert course.gain[-1] == pytest.approx(total, rel=1e-6)
    assert course.gain_low[-1] < course.gain[-1] < course.gain_high[-1]
    assert (np.diff(course.allowed) < 0).all()
    first = field_worth.worth(replace(seen, episode=np.ones_like(seen.episode)), a.fit)
    assert first.total.value[0] == pytest.approx(course.gain[-1])
    assert first.total.low[0] == pytest.approx(course.gain_low[-1], rel=1e-6), "in whatever episodes they were"


@pytest.mark.parametrize("kind", ["field", "people"])
def test_what_each_user_gained_adds_up_and_is_the_whole_where_there_is_one(
    kind: str, done: Analysis, people: Analysis
) -> None:
    a = done if kind == "field" else people
    mine = a.course.by_user
    assert mine.gain.sum() == pytest.approx(a.course.gain[-1])
    assert mine.allowed.sum() == pytest.approx(a.course.allowed[-1])
    assert mine.decisions.sum() == len(a.seen.arm)
    assert mine.low is not None
    assert mine.high is not None
    assert ((mine.low <= mine.gain) & (mine.gain <= mine.high)).all()
    user = int(a.seen.user[0])
    rows = np.flatnonzero(a.seen.user == user)
    alone = replace(a.seen, **{f.name: getattr(a.seen, f.name)[rows] for f in fields(a.seen) if _is_column(a, f.name)})
    assert isinstance(a.fit, Known)
    one = field_worth.worth(alone, a.fit).total
    assert one.value[-1] == pytest.approx(mine.gain[user])
    assert one.low[-1] == pytest.approx(mine.low[user], rel=1e-6)


@pytest.mark.parametrize("kind", ["field", "people"])
def test_what_a_user_gained_has_the_range_of_the_effects_that_make_it_up(kind: str) -> None:
    """Without contexts: of one decision that of its effect, of several that of the sum in the same belief."""
    a = analyse(grown({k: v for k, v in FIELD.items() if k != "context"} if kind == "field" else PEOPLE, 2))
    assert isinstance(a.fit, Known)
    mine, own = a.course.by_user, {(x.who, x.arm): x for x in a.own_effects}
    assert mine.low is not None
    assert mine.high is not None
    offers, single = offers_now(a.data.state), 0
    belief = a.fit.learner.beliefs(a.fit.evidence, offers, together=True)
    for h, user in enumerate(a.data.state.users):
        given = a.seen.arm[a.seen.user == h]
        others = [ARMS[k] for k in given if ARMS[k] != "old"]
        if len(others) == 1:
            effect, single = own[user, others[0]], single + 1
            assert [mine.low[h], mine.high[h]] == pytest.approx([effect.low, effect.high], rel=1e-6)
        if others:
            w = np.zeros_like(offers.control[h])
            np.add.at(w, given, 1.0)
            w = w - len(given) * offers.control[h]
            p = np.ones(1) if offers.preference is None else offers.preference[h]
            C, C0 = (np.einsum("k,m,kmln,l,n->", w, p, c[h], w, p) for c in (belief.covariance, belief.prior))
            ends = Found(mine.gain[h], np.sqrt(C), np.sqrt(C0), np.asarray(np.inf)).at_all_times()
            assert [mine.low[h], mine.high[h]] == pytest.approx(np.array(ends).tolist(), rel=1e-6)
    assert single, "somebody got the control but once"


def _is_column(a: Analysis, name: str) -> bool:
    return isinstance(getattr(a.seen, name), np.ndarray)


def test_what_varies_is_found(done: Analysis) -> None:
    assert done.varying is not None
    found = {v.family: v for v in done.varying.varies if v.metric == "yield"}
    spread: dict[str, list[float]] = {"season": drawn("year", 8), "group": drawn("level", 8)}
    for family, values in spread.items():
        assert found[family].low < np.std(values, ddof=1) < found[family].high, family
        assert found[family].low < found[family].deviation < found[family].high
    # Effects are the same everywhere: what the model reserves for their differences is missing from the noise.
    assert 6 / 1.5 < found["residual"].deviation < 6 * 1.5
    assert found["season"].says == "seasons differ by"
    assert found["group x arm"].says == "an arm's effect differs between sites by"
    assert found["season"].told


def test_levels_of_sites_and_seasons_are_those_of_the_control(done: Analysis) -> None:
    assert done.varying is not None
    truth = {f"s{i}": 60 + v for i, v in enumerate(drawn("level", 8))}
    sites = {v.name: v for v in done.varying.sites if v.metric == "yield"}
    seasons = [v for v in done.varying.seasons if v.metric == "yield"]
    assert [v.outcomes for v in sites.values()] == [16] * 6
    assert [(v.name, v.outcomes) for v in seasons] == [(str(i), 12) for i in range(1, 9)]
    order = sorted(truth, key=lambda s: truth[s])
    assert sites[order[0]].estimate < sites[order[-1]].estimate
    for v, year in zip(seasons, drawn("year", 8), strict=True):
        wanted = np.mean(list(truth.values())) + year
        assert abs(v.estimate - wanted) < 2 * (v.high - v.low), "four deviations, of a likely range of two on each side"
    for v in sites.values():
        assert abs(v.estimate - truth[v.name]) < 2 * (v.high - v.low)


@pytest.mark.parametrize("kind", ["field", "people"])
def test_levels_of_seasons_follow_their_own_rain(kind: str) -> None:
    """It is the same at all sites and shifts outcomes by 15 for each spread; nothing else differs between seasons."""
    rains = [240.0, 390.0, 270.0, 330.0, 360.0, 210.0]
    users: dict[str, Any] = {f"s{i}": {} for i in range(12)}
    spec = FIELD | {"model": {"kind": kind}, "metrics": {"yield": {"unit": "dt"}}, "users": users, "preference": {"yield": 1.0}}  # fmt: skip  # noqa: E501
    rng = np.random.default_rng(2)
    trial = Trial.create(spec, MemoryStore())
    for rain in rains:
        trial.open_episode({user: {"rain": rain} for user in users})
        y = {g.id: 60 + (rain - 300) / 4 + EFFECT[g.arm] + 2 * rng.standard_normal() for g in trial.ask_many()}
        trial.tell_many([Report(i, {"yield": value}) for i, value in y.items()], confirm=True)
    found = analyse(trial)
    assert found.varying is not None
    shown = [v.estimate for v in found.varying.seasons]
    # With noise of 2 a season's 12 outcomes tell its level to about 1; at typical rain the levels are all about 60.
    np.testing.assert_allclose(shown, [60 + (rain - 300) / 4 for rain in rains], atol=4)
    page = report(found)
    assert "Expected yield in each season with its own rain under the control" in page
    assert "beyond what rain explains, seasons differ by" in " ".join(sentences(found))


def test_a_covariate_that_changes_an_effect_has_a_line(done: Analysis) -> None:
    assert done.varying is not None
    lines = {(x.covariate, x.arm): x for x in done.varying.lines if x.on == "yield"}
    assert set(lines) == {(c, a) for c in ("rain", "soil") for a in ("good", "bad")}
    rain = lines["rain", "good"]
    slope = 60 * (rain.estimate[-1] - rain.estimate[0]) / (rain.values[-1] - rain.values[0])
    assert slope == pytest.approx(8.0, abs=4.0)
    assert min(rain.values) < 250 < 350 < max(rain.values)
    assert all(low < e < high for e, low, high in zip(rain.estimate, rain.low, rain.high, strict=True))
    assert lines["soil", "good"].levels == ["loam", "sand"]


def test_a_site_without_outcomes_rests_on_the_others() -> None:
    found = analyse(grown(FIELD, 4, untold="s3"))
    assert found.varying is not None
    rests = found.varying.rests
    others = [rests[f"s{i}", "good"] for i in (0, 1, 2, 4, 5)]
    assert all(r.outcomes > 0 for r in others)
    says = f"0 outcomes here, {sum(r.outcomes for r in others)} from other sites"
    assert rests["s3", "good"].says == says
    assert ("s3", "old") not in rests, "its control"
    assert says in report(found)


def test_sentences_say_for_whom_and_when(done: Analysis, people: Analysis) -> None:
    said = " ".join(sentences(done))
    assert re.search(r"For the average of these 6 sites in an average season, good earns [\d.]+ more than", said)
    good = next(x for x in done.effects if (x.who, x.arm, x.on) == (EVERYBODY, "good", "reward"))
    assert f"; compared in {good.seasons} seasons)" in said
    assert re.search(
        r"For \d of 6 sites, good is (likely|certainly) better than the control in an average season\.", said
    )
    number = r"about [\d.]+ dt \([\d.]+ to [\d.]+\)"
    assert re.search(
        rf"Yield, as standard deviations: .*beyond what rain and soil explain, seasons differ by {number}", said
    )
    assert "(range at this look: " in said
    assert "guaranteed" not in said
    said = " ".join(sentences(people))
    assert "For the average of these 20 people in an average season" in said
    assert re.search("Steps, as standard deviations: (seasons .*, )?people differ by about", said)
    assert "beyond" not in said, "there are no covariates"


def test_what_may_be_nothing_and_what_cannot_be_told_are_said_so(done: Analysis) -> None:
    assert done.varying is not None
    some = [
        Varies("yield", "group", "sites differ by", 5.21, 3.04, 11.9, told=True),
        Varies("yield", "group x arm", "an arm's effect differs between sites by", 0.3, 0.0, 4.64, told=True),
        Varies("yield", "season", "seasons differ by", 2.0, 0.0, 8.0, told=False),
        Varies("yield", "season x arm", "an arm's effect differs between seasons by", 2.0, 0.0, 8.0, told=False),
    ]
    found = replace(done.varying, varies=some, words=replace(done.varying.words, covariates=()))
    said = (
        "sites differ by about 5.2 dt (3 to 12); an arm's effect differs between sites by at most 4.6 dt; it cannot be "
        "told yet how much seasons differ and how much an arm's effect differs between seasons."
    )
    assert field_sentences(found, [], {"reward": "", "yield": "dt"}) == [f"Yield, as standard deviations: {said}"]
    assert field_sentences(replace(found, varies=some[2:]), [], {"reward": "", "yield": "dt"}) == [
        "Yield: it cannot be told yet how much seasons differ and how much an arm's effect differs between seasons."
    ], "no number, no unit of it"
    chart = components(found, "yield", "dt", 0)
    assert chart is not None
    assert chart.says == f"yield: {said}"
    assert [row[1:] for row in chart.table.rows] == [
        ["5.21", "3.04", "11.9", ""],
        ["", "0", "4.64", ""],
        ["", "", "", "cannot be told yet"],
        ["", "", "", "cannot be told yet"],
    ]


def test_what_covariates_do_is_said_where_it_is_clear_and_all_else_is_beyond_it(done: Analysis) -> None:
    """An effect that is other on sand than on loam is none that differs between sites."""
    assert done.varying is not None
    on_soil = "an arm's effect differs between levels of soil by"
    some = [
        Varies("yield", "category 0", "levels of soil differ by", 0.7, 0.0, 8.6, told=True),
        Varies("yield", "category 0 x arm", on_soil, 0.37, 0.19, 0.86, told=True),
        Varies("yield", "group", "sites differ by", 5.21, 3.04, 11.9, told=True),
        Varies("yield", "group x arm", "an arm's effect differs between sites by", 0.04, 0.0, 0.2, told=True),
    ]
    assert field_sentences(replace(done.varying, varies=some), [], {"reward": "", "yield": "dt"}) == [
        "Yield, as standard deviations: an arm's effect differs between levels of soil by about 0.37 dt (0.19 to "
        "0.86); beyond what rain and soil explain, sites differ by about 5.2 dt (3 to 12); an arm's effect differs "
        "between sites by at most 0.2 dt."
    ]


def test_arms_that_nobody_was_given_are_not_judged() -> None:
    trial = grown(FIELD, 3)
    trial.add_arm("new")
    found = analyse(trial)
    assert not any("new" in s for s in sentences(found))
    page = report(found)
    assert page.count("not judged") > 0
    rows = re.findall(r"<th scope=\"row\">(?:s\d: )?new</th>.*?</tr>", page)
    assert rows
    assert all("not judged" in row for row in rows)


def test_where_only_the_control_has_outcomes_nothing_is_recommended(tmp_path: Path) -> None:
    trial = grown(FIELD, 1)
    found = analyse(trial)
    assert found.given == {"old"}
    assert [r.effect.arm for r in found.recommendations] == ["old"] * 6
    assert all(r.p_best < 0.9 for r in found.recommendations)  # of all arms, also of those that nobody was given
    page = write_report(trial, tmp_path).read_text(encoding="utf-8")
    assert "There is nothing to recommend yet: of the arms that can be given, only the control has outcomes." in page
    assert "best so far" not in page
    rows = list(csv.DictReader((tmp_path / "recommendations.csv").read_text(encoding="utf-8").splitlines()))
    assert {(row["arm"], row["effect"], row["lead"], row["runner_up"]) for row in rows} == {("old", "0.0", "", "")}


def test_an_arm_without_outcomes_is_not_recommended_however_good_it_is_estimated_to_be() -> None:
    trial = grown(FIELD, 8)
    trial.add_arm("new")
    trial.retire_arm("good", reason="dear")
    trial.retire_arm("bad", reason="poor")
    found = analyse(trial)
    new = [x.estimate for x in found.own_effects if x.arm == "new"]
    assert max(new) > 0  # as arms have done here on average
    assert {(r.effect.arm, r.alone) for r in found.recommendations} == {("old", True)}


def test_a_range_that_is_not_known_yet_is_said_so_wherever_it_stands(done: Analysis) -> None:
    open_ = [replace(r, effect=replace(r.effect, low=-1e50, high=1e50)) for r in done.recommendations]
    page = report(replace(done, recommendations=open_))
    assert "∞" not in page
    assert page.count("not known yet") == len(open_)


def test_before_any_outcome_the_page_makes_no_claim() -> None:
    trial = Trial.create(FIELD, MemoryStore())
    one = Trial.create(FIELD, MemoryStore())
    one.open_episode({user: {"rain": 300.0} for user in FIELD["users"]})
    one.tell(one.ask_many(["s0"])[0].id, {"yield": 50.0, "cost": 20.0})
    assert "There is nothing to compare yet." in report(analyse(one))
    for a in (analyse(trial), analyse(one), analyse(grown(FIELD, 1, untold="s0"))):
        page = report(a)
        assert "likely better" not in page
        assert not re.search(r"\bnan\b|\binf\b|∞|\d{20}", page)


@pytest.mark.parametrize("spec", [FIELD, PEOPLE, PEOPLE | {"model": {"kind": "paper"}}])
def test_every_column_of_every_table_is_explained(spec: dict[str, Any], tmp_path: Path) -> None:
    write_report(grown(spec, 3), tmp_path)
    for path in tmp_path.glob("*.csv"):
        names = next(csv.reader(path.read_text("utf-8-sig").splitlines()), [])
        arms = ARMS if path.stem == "allocation" else ()
        assert {name for name in names if name not in TABLES[path.stem]} == set(arms), path.stem
        assert list(meanings(path.stem, names)) == names


def test_the_page_stands_alone_with_a_table_for_every_chart(done: Analysis) -> None:
    page = report(done)
    assert not re.search(r"(src|action)=|href=.(?!#)|<script|<link|@import|url\((?!#)", page)
    for heading in ("Effects against control", "What varies", "Sites and seasons", "Covariates"):
        assert f">{heading}</h2>" in page
    charts = re.findall(r'<div class="plot" id="([^"]+)"', page)
    assert len(charts) == len(set(charts))
    assert {"site-effects-chart", "varies-chart", "sites-chart", "seasons-chart", "covariate-chart"} <= set(charts)
    assert page.count("The same in numbers") == len(charts)
    for picture in re.findall(r"<svg class=\"chart.*?</svg>", page, re.S):
        assert ET.fromstring(picture).find("title") is not None
    for word in ("posterior", "prior", "covariance", "variance", "mixed model", "random effect", "regression"):
        assert not re.search(rf"\b{word}\b", page), word


def test_the_files_beside_the_page_hold_its_numbers(tmp_path: Path) -> None:
    write_report(grown(FIELD, 3), tmp_path)

    def read(name: str) -> list[dict[str, str]]:
        with (tmp_path / name).open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    assert {row["of"] for row in read("levels.csv")} == {"site", "season"}
    assert {row["metric"] for row in read("varies.csv")} == {"yield", "cost"}
    assert {row["covariate"] for row in read("covariates.csv")} == {"rain", "soil"}
    own = [row for row in read("effects.csv") if row["who"] == "s0" and row["arm"] == "good"]
    assert [int(row["own_outcomes"]) > 0 for row in own] == [True]


def test_the_checks_see_what_the_model_leaves(done: Analysis) -> None:
    """Seasons and sites are in the model: nothing is left of them, and no alarm is raised."""
    assert done.checks.left
    assert done.checks.alarms == []
    assert done.checks.mean is None


def test_a_control_plot_is_taken_out_of_the_plot_beside_it() -> None:
    spec = {k: v for k, v in FIELD.items() if k != "context"} | {"feedback": "difference", "users": {f"s{i}": {} for i in range(6)}}  # fmt: skip  # noqa: E501
    rng = np.random.default_rng(4)
    trial = Trial.create(spec, MemoryStore())
    for _ in range(6):
        trial.open_episode()
        block = {f"s{i}": 30 * rng.standard_normal() for i in range(6)}
        reports = []
        for given in trial.ask_many():
            y, beside = (60 + block[given.user] + e + 4 * rng.standard_normal() for e in (EFFECT[given.arm], 0.0))
            reports.append(Report(given.id, {"yield": y, "cost": 1 + rng.random()}, {"yield": beside, "cost": 1.5}))
        trial.tell_many(reports, confirm=True)
    found = analyse(trial)
    good = next(x for x in found.effects if (x.who, x.on, x.arm) == (EVERYBODY, "yield", "good"))
    assert abs(good.estimate - 12) < 5
    assert found.checks.left


def test_an_arm_that_is_retired_keeps_what_was_found_about_it_and_is_marked(tmp_path: Path) -> None:
    spec = FIELD | {"users": FIELD["users"] | {"s0": FIELD["users"]["s0"] | {"arms": ["old", "bad"]}}}
    trial = grown(spec, 8, times=2.0)
    before = analyse(trial)
    trial.retire_arm("good", reason="too dear")
    found = analyse(trial)
    numbers = [replace(x, available=True) for x in found.effects]
    assert numbers == [replace(x, available=True) for x in before.effects]  # also of all together: of the same users

    page = write_report(trial, tmp_path).read_text(encoding="utf-8")
    verdicts = _verdicts(page)
    assert {name.replace(" (retired)", ""): said for name, said in verdicts.items()} == _verdicts(report(before))
    assert verdicts["good (retired)"] == verdicts["s1: good (retired)"] == "more, certainly"
    assert verdicts["s0: good (retired)"] == "not judged"  # it could never get it
    assert "good" not in verdicts
    assert "good (retired, given" in page
    assert ">s1: good (retired)</text>" in page  # in the pictures
    said = sentences(found)
    assert any("good (retired) earns" in s for s in said)
    assert any("at least one arm" not in s and "good (retired) is certainly better" in s for s in said)

    rows = list(csv.DictReader((tmp_path / "effects.csv").read_text(encoding="utf-8").splitlines()))
    assert {(row["arm"], row["retired"]) for row in rows} == {("old", "False"), ("good", "True"), ("bad", "False")}
    assert "good" not in {r.effect.arm for r in found.recommendations}


def test_an_arm_that_is_closed_for_a_season_keeps_what_was_found_about_it() -> None:
    """In charts and sentences alike, for each site that may get it in other seasons and for all of them together."""
    spec = FIELD | {"users": FIELD["users"] | {"s0": FIELD["users"]["s0"] | {"arms": ["old", "bad"]}}}
    trial = grown(spec, 8, times=2.0)
    contexts = {user: {"rain": 300.0} for user in spec["users"]}
    trial.open_episode(contexts)
    before = analyse(trial)
    closed = {user: ["good"] for user in spec["users"] if user != "s0"}
    shut = grown(spec, 8, times=2.0)
    shut.open_episode(contexts, unavailable=closed)
    found = analyse(shut)
    assert {x.who for x in found.own_effects if x.arm == "good" and not x.available} == set(spec["users"])
    assert [replace(x, available=True) for x in found.effects] == [replace(x, available=True) for x in before.effects]
    verdicts = _verdicts(report(found))
    assert verdicts == _verdicts(report(before))
    assert (verdicts["good"], verdicts["s1: good"], verdicts["s0: good"]) == ("more, certainly",) * 2 + ("not judged",)
    assert sentences(found) == sentences(before)


def _verdicts(page: str) -> dict[str, str]:
    """By the model, of the first chart of all users and of the chart of each one."""
    rows = re.findall(r"<tr><th scope=\"row\">([^<]*)</th>(.*?)</tr>", page, re.S)
    cells = [(name, re.findall(r"<td[^>]*>([^<]*)</td>", rest)) for name, rest in rows]
    found: dict[str, str] = {}
    for name, row in cells:
        if "model" in row:
            found.setdefault(name, row[row.index("model") + 1])
    return found
