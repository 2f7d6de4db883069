"""What a comparison says: words, JSON, tables, the page, and the command."""

import builtins
import json
import re
from functools import cache

import jsonschema
import pytest

import bpsearch as bps
from bpsearch.cli.compare import _name_each
from bpsearch.errors import MissingDependencyError
from bpsearch.report import comparison_words as words
from bpsearch.report.comparison_figures import draw_figures
from bpsearch.report.comparison_json import SCHEMA
from bpsearch.report.comparison_page import repeat_lines
from bpsearch.report.json import SCHEMA as ESTIMATE

MDP = bps.envs.gridworld()
EARLY = bps.shipped_policy("gridworld-early")


@cache
def comparison(kind):
    scaled = {
        name: bps.SoftmaxTable(scale * EARLY.logits) for name, scale in (("new", 1.3), ("old", 1.0), ("mid", 1.1))
    }
    two = {name: scaled[name] for name in ("new", "old")}
    if kind == "two":
        return bps.compare(two, MDP, 400, "mc", seed=0)
    if kind == "undecided":
        return bps.compare({"new": EARLY, "old": bps.SoftmaxTable(1.001 * EARLY.logits)}, MDP, 200, "mc", seed=0)
    if kind == "equivalent":
        return bps.compare({"new": EARLY, "old": EARLY}, MDP, 400, seed=0, margin=20.0)
    if kind == "three":
        return bps.compare(scaled, MDP, 400, seed=0, margin=0.1)
    if kind == "weighted":
        return bps.compare(two, MDP, 200, "bpg", seed=0, failure="return < -80", stop_early=False)
    if kind == "certified":
        return bps.compare(two, MDP, 200, "mc", seed=0, kind="certified", stop_early=False)
    constant = bps.TabularMDP([[[1.0], [1.0]]], [[[1.0], [1.0]]], [1.0], [False], horizon=2)
    coins = {name: bps.SoftmaxTable.uniform(1, 2) for name in "ab"}
    return bps.compare(coins, constant, 100, "mc", seed=0)


KINDS = ("two", "undecided", "equivalent", "three", "weighted", "certified", "constant")


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_valid_by_its_schema_and_says_the_same(kind):
    found = comparison(kind)
    result = found.to_json()
    jsonschema.Draft202012Validator(SCHEMA).validate(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for estimate in result["estimates"].values():
        jsonschema.Draft202012Validator(ESTIMATE).validate(estimate)
    assert result["verdict"] == words.headline(found)
    for row, difference in zip(result["differences"], found.differences, strict=True):
        assert row["difference"] == difference.value
        assert row["decision"] == difference.decision
        interval = difference.interval(0.95)
        assert row["interval"] == (None if interval is None else list(interval))


def test_every_field_of_the_schema_is_explained():
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        assert set(part["required"]) == set(part["properties"])
        assert all(field.get("description") for field in part["properties"].values() if "$ref" not in field)


def test_the_verdict_is_one_sentence():
    assert re.fullmatch(
        r"new is better than old: difference \+\d[\d.]*, 95% interval \[[\d.]+, [\d.]+\], from \d+ episodes of each",
        str(comparison("two")),
    )
    assert str(comparison("undecided")).startswith("undecided between new and old: difference ")
    assert "new and old are equivalent within ± 20: difference +0" in str(comparison("equivalent"))
    assert words.headline(comparison("three")) == "new is better than all others; 3 of 3 differences decided"
    assert "fails less often" in str(comparison("weighted")) or "undecided" in str(comparison("weighted"))
    assert "have not varied at all" in str(comparison("constant"))
    assert "interval unknown" in str(comparison("constant"))
    assert "&" not in comparison("two")._repr_html_()
    assert comparison("three")._repr_html_().count("<tr>") == 3


def test_intervals_say_what_they_promise_and_savings_what_they_are_made_of():
    two, whole = comparison("two"), comparison("weighted")
    assert "whenever one stops" in words.interval_kind(two)
    assert "which this one was not" in words.fixed_kind(two)
    assert "which this one was not" not in words.fixed_kind(whole)
    assert "all 3 differences hold at once" in words.interval_kind(comparison("three"))
    saved = words.savings_text(two.differences[0])
    assert saved.startswith("two independent Monte Carlo evaluations need ")
    assert "shared starts" in saved
    assert words.savings_text(whole.differences[0]) == ""
    lines = words.describe_lines(comparison("three"))
    assert any(line.startswith("place 1: new ") for line in lines)


def test_a_table_of_differences(monkeypatch):
    table = comparison("three").to_dataframe()
    assert list(table["one"]) == ["new", "new", "old"]
    assert table["difference"].tolist() == [d.value for d in comparison("three").differences]
    assert (table["low"] <= table["high"]).all()
    original = builtins.__import__

    def without(name, *arguments, **options):
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        comparison("three").to_dataframe()


@pytest.mark.parametrize("kind", ["two", "three", "weighted", "certified", "constant"])
def test_the_page_shows_the_verdict_and_how_it_came(kind, tmp_path):
    found = comparison(kind)
    page = found.report(tmp_path / "new folder" / "page.html").read_text()
    assert words.headline(found).split(":")[0].split(";")[0] in page
    assert "as it settled" in page
    assert ("Pairs of episodes" in page) == (kind not in ("three", "weighted")), "weighted are episodes of others"
    assert ("What was saved" in page) == (kind == "two")
    assert ("All differences" in page) == (kind == "three")
    assert "<script" not in page
    assert not re.search(r'(src|href)="?http', page)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S).lower().replace("covariance", "")


def test_pairs_of_failures_are_counted():
    policies = {"new": bps.SoftmaxTable(1.3 * EARLY.logits), "old": EARLY}
    found = bps.compare(policies, MDP, 400, "mc", seed=0, failure="return < -80", stop_early=False)
    (svg,) = (drawing.svg for drawing in draw_figures(found) if drawing.title == "Pairs of episodes")
    one, other = (found.differences[0].pairs > 0.0).T
    assert one.mean() == found.estimates["new"].value
    texts = re.findall(r">([^<>]+)</text>", svg)
    counts = [(one & other).sum(), (one & ~other).sum(), (~one & other).sum(), (~one & ~other).sum()]
    assert sum(counts) == 400
    assert texts[-4:] == [str(count) for count in counts]
    assert {"both fail", "only new fails", "only old fails", "neither fails"} <= set(texts)


def test_the_page_has_the_lines_that_repeat_it(capsys):
    names = {"new": "gridworld-converged", "old": "gridworld-early"}
    found = bps.compare(names, "bpsearch/Gridworld-v0", 200, "mc", seed=3, margin=1.5)
    exec(repeat_lines(found))
    assert capsys.readouterr().out.strip() == str(found)
    assert repeat_lines(comparison("two")).startswith("# Made in Python")


def test_the_command(in_process, tmp_path):
    page = tmp_path / "page.html"
    arguments = ["--env", "bpsearch/Gridworld-v0", "--seed", 1, "--episodes", 300]
    done = in_process("compare", "old=gridworld-early", "gridworld-converged", *arguments, "--report", page)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("old is worse than gridworld-converged: difference -1")
    assert "seed 1" in done.stdout
    assert page.exists()
    again = in_process("compare", "old=gridworld-early", "gridworld-converged", *arguments, "--json")
    result = json.loads(again.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(result)
    same = bps.compare(
        {"old": "gridworld-early", "gridworld-converged": "gridworld-converged"}, "bpsearch/Gridworld-v0", 300, seed=1
    )
    assert result["differences"] == same.to_json()["differences"]
    assert result["settings"]["policies"] == {"old": "gridworld-early", "gridworld-converged": "gridworld-converged"}


def test_the_command_says_by_its_exit_code_what_became_of_it(in_process, tmp_path):
    same = ["compare", "a=gridworld-early", "b=gridworld-early", "--env", "bpsearch/Gridworld-v0", "--episodes", 100]
    assert in_process(*same).returncode == 0
    assert in_process(*same, "--check").returncode == 3
    assert in_process(*same, "--margin", 50, "--check", "--store", tmp_path / "kept").returncode == 0
    assert sorted(path.name for path in (tmp_path / "kept").glob("*.db")) == ["0-a.db", "1-b.db"]
    twice = in_process("compare", "gridworld-early", "gridworld-early", "--env", "bpsearch/Gridworld-v0")
    assert twice.returncode == 2
    assert "give them others by NAME=FILE" in twice.stderr
    both = in_process(
        "compare", "gridworld-early", "gridworld-converged", "--env", "bpsearch/Gridworld-v0", "--env", "CartPole-v1"
    )
    assert both.returncode == 2
    assert "one policy and several" in both.stderr
    alone = in_process("compare", "gridworld-early", "--env", "bpsearch/Gridworld-v0")
    assert alone.returncode == 2
    assert "got gridworld-early alone" in alone.stderr


def test_files_of_the_same_name_are_told_apart_by_their_folders():
    files = ["runs/first/best_model.zip", "runs/second/best_model.zip", "old=runs/old/best_model.zip"]
    names = _name_each(files, ["E"])
    assert list(names) == ["first/best_model", "second/best_model", "old"]
    assert list(_name_each(["runs/first/a.zip", "runs/second/b.zip"], ["E"])) == ["a", "b"]


def test_certified_verdicts_by_the_command(in_process):
    files = ["new=gridworld-converged", "old=gridworld-early"]
    arguments = ["compare", *files, "--env", "bpsearch/Gridworld-v0", "--episodes", 200, "--seed", 1, "--json"]
    known, given = (
        json.loads(in_process(*arguments, "--kind", "certified", *more).stdout)
        for more in ([], ["--return-range", "-1000", "1000"])
    )
    assert known["kind"] == given["kind"] == "certified"
    assert known["differences"][0]["interval"] != given["differences"][0]["interval"]
    refused = in_process(*arguments, "--failure", "return < 0", "--return-range", "0", "1")
    assert refused.returncode == 2
    assert "no meaning for a failure" in refused.stderr


def test_one_policy_in_two_environments_by_the_command(in_process):
    envs = ["--env", "a=bpsearch/Gridworld-v0", "--env", "b=bpsearch/Gridworld-v0"]
    done = in_process("compare", "gridworld-early", *envs, "--episodes", 100, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["settings"]["env"] == {"a": "bpsearch/Gridworld-v0", "b": "bpsearch/Gridworld-v0"}
    assert result["differences"][0]["difference"] == 0.0
