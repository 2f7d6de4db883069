"""What the adversary measures is right: ratios, verdicts, tables, the search for the worst case, the command.

Statistical tests allow five standard errors, a false alarm in 1 of 1,700,000 for each comparison.
"""

import csv
import json
import sys
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import bpsearch as bps
from adversary_tasks import task_of
from benchmarks.adversary import __main__ as command
from benchmarks.adversary import run as running
from benchmarks.adversary.beside import load, side_by_side
from benchmarks.adversary.measure import Cell, cell, measure
from benchmarks.adversary.methods import METHODS, MonteCarlo, OfLibrary, Outcome
from benchmarks.adversary.report import markdown, worst_ratios, worst_savings
from benchmarks.adversary.run import Draw, Result, Settings, draws
from benchmarks.adversary.verdicts import is_below_plain, is_biased, is_worse, misses, misstates, overstatement
from benchmarks.adversary.worst import bad_coverage, bad_ratio, evolve

pytestmark = pytest.mark.slow

# --- what is measured ---


def outcomes(values, half=1.0, savings=1.0):
    return [Outcome(value, value - half, value + half, savings, 2.0 * savings) for value in values]


def normal_task():
    """Of value 0, with the return ± 1 of a fair coin."""
    task = task_of("rare-nothing", steps=1.0, actions=2.0, noise=1.0, luck=0.5)
    assert (task.truth, task.variance, task.kurtosis) == pytest.approx((0.0, 1.0, 1.0))
    return task


def test_a_cell_by_hand():
    """A method that halves every error has a quarter of Monte Carlo's, however the studies fell out."""
    errors = np.random.default_rng(0).normal(size=50) / np.sqrt(20)
    found = cell(normal_task(), 20, outcomes(0.5 * errors, 0.2, savings=3.0), outcomes(errors, 0.4))
    assert found.ratio == pytest.approx(0.25, abs=1e-12)
    assert found.ratio_error == pytest.approx(0.0, abs=1e-12)
    assert found.realised == pytest.approx(4.0)
    assert found.coverage == np.mean(np.abs(0.5 * errors) <= 0.2)
    assert found.plain_coverage == np.mean(np.abs(errors) <= 0.4)
    assert found.width == pytest.approx(0.5)
    assert (found.reported, found.tight, found.unreported) == (3.0, 6.0, 0.0)
    assert (found.failed, found.studies) == (0, 50)
    assert found.tail == pytest.approx(np.sqrt((2.0 - 2.0 / 20) / 50))
    assert abs(found.bias) < 5.0


def test_the_ratio_is_right_on_average_and_its_error_too():
    """Over 200 repetitions: errors of twice the variance, half of it shared with Monte Carlo's."""
    rng, task = np.random.default_rng(1), normal_task()
    found = []
    for _ in range(200):
        shared, own = rng.normal(size=(2, 60)) / np.sqrt(30)
        found.append(cell(task, 30, outcomes(shared + own), outcomes(shared)))
    ratios, stated = np.array([(c.ratio, c.ratio_error) for c in found]).T
    assert abs(ratios.mean() - 2.0) < 5.0 * ratios.std() / np.sqrt(200)
    assert np.sqrt(np.mean(stated**2)) == pytest.approx(ratios.std(), rel=0.25)  # five standard errors of it


def test_what_the_ratio_is_at_least_allows_for_few_large_errors():
    """One study in ten is off by far, and by how far varies: the mean is noise, that it is above 1 is not."""
    rng, task = np.random.default_rng(3), normal_task()
    errors = rng.normal(size=200) / np.sqrt(20)
    off = np.where(np.arange(200) % 10 == 0, 10.0 ** rng.uniform(0.0, 3.0, size=200), 0.0)
    found = cell(task, 20, outcomes(errors + off), outcomes(errors))
    assert found.ratio - 3.0 * found.ratio_error < 1.05 < found.ratio_low < found.ratio
    assert cell(task, 20, outcomes(errors), outcomes(errors)).ratio_low == pytest.approx(1.0, abs=1e-12)


def test_studies_that_have_not_shown_the_variance_say_only_what_differs():
    task = replace(normal_task(), kurtosis=1e6)
    errors = 0.01 * np.random.default_rng(2).normal(size=50)
    found = cell(task, 20, outcomes(0.5 * errors), outcomes(errors))
    assert not found.resolved
    assert found.ratio == pytest.approx(1.0 - 0.75 * np.mean(errors**2) * 20)


def test_without_variance_an_answer_is_right_or_wrong():
    task = task_of("zero-variance", kind=1.0, scale=3.0)
    exact = [Outcome(task.truth * (1.0 + 1e-15), np.nan, np.nan, np.nan, np.nan)] * 5
    found = cell(task, 20, exact, outcomes([task.truth] * 5, 0.0))
    assert (found.ratio, found.coverage, found.plain_coverage, found.width) == (1.0, 1.0, 1.0, 1.0)
    assert np.isnan(found.reported)
    assert np.isnan(found.realised)
    wrong = cell(task, 20, outcomes([task.truth + 0.1] * 5, 0.01), outcomes([task.truth] * 5, 0.0))
    assert (wrong.ratio, wrong.coverage, wrong.width) == (np.inf, 0.0, np.inf)


class Refusing(MonteCarlo):
    """Gives no answer from more than 20 episodes."""

    def answers(self, task, sizes, seed):
        for size, answer in zip(sizes, super().answers(task, sizes, seed), strict=True):
            if size > 20:
                raise ValueError("too large")
            yield answer


def test_a_method_that_raises_is_counted():
    small, *large = measure(normal_task(), [40, 20, 60], 3, 0, Refusing())
    assert (small.episodes, small.failed, small.ratio) == (20, 0, 1.0)
    for found in large:
        assert (found.failed, found.studies, found.message) == (3, 3, "ValueError: too large")


def test_monte_carlo_is_as_good_as_itself_and_every_method_gives_an_answer():
    task = normal_task()
    for found in measure(task, [50, 120], 12, 3, MonteCarlo()):
        assert (found.ratio, found.ratio_error, found.bias, found.width) == (1.0, 0.0, 0.0, 1.0)
        assert found.coverage == found.plain_coverage
    for method in METHODS.values():
        (answer,) = method.answers(task, [120], 3)
        assert abs(answer.value - task.truth) < 5.0 * np.sqrt(task.variance / 120)
        assert answer.low < answer.value < answer.high


@pytest.mark.parametrize("family", ["binary", "signs-and-discounts", "zero-variance", "modes"])
def test_the_default_says_what_evaluate_says_at_each_size(family):
    """Modes has several starts, from which `auto` learns as well."""
    task, sizes = task_of(family, seed=2), [50, 100, 250, 400]
    for size, answer in zip(sizes, METHODS["auto"].answers(task, sizes, 7), strict=True):
        estimate = bps.evaluate(task.policy, task.mdp, episodes=size, seed=7)
        assert answer.value == estimate.value
        expected = (*(estimate.interval() or (np.nan, np.nan)), estimate.savings, estimate.tight_savings)
        expected = np.array(expected, dtype=float)  # None is NaN
        np.testing.assert_array_equal((answer.low, answer.high, answer.savings, answer.tight), expected)
        assert task.variance > 0.0 or np.isnan(answer.savings)


def test_monte_carlo_has_the_episodes_that_the_method_runs():
    task, method = normal_task(), OfLibrary("mc")
    ours, theirs = ([a.value for a in one.answers(task, [50, 100, 300], 4)] for one in (method, MonteCarlo()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


# --- verdicts, tables, search ---


def a_cell(**changes):
    fine = {"episodes": 300, "studies": 200, "failed": 0, "ratio": 1.0, "ratio_error": 0.01, "tail": 0.1, "bias": 0.0}
    fine = {**fine, **changes}
    fine["ratio_low"] = fine["ratio"] - 3.0 * fine["ratio_error"]
    more = {"coverage": 0.95, "plain_coverage": 0.95, "width": 1.0, "reported": 1.0, "unreported": 0.0}
    more["tight"] = changes.get("reported", 1.0)
    return Cell(**{**fine, **more, **changes})


def a_result(family="jackpot", number=0, parameters=None, **changes):
    return Result(family, number, parameters or {"size": 2.0}, 5, 2, 3, 1.0, 2.0, 3.0, (a_cell(**changes),))


def test_verdicts_allow_for_noise():
    assert not is_worse(a_cell(ratio=1.2, ratio_error=0.06))
    assert is_worse(a_cell(ratio=1.2, ratio_error=0.04))
    assert not misses(a_cell(coverage=0.90))
    assert misses(a_cell(coverage=0.84))
    assert not misses(a_cell(coverage=0.84, plain_coverage=0.93))
    assert not misses(a_cell(coverage=0.84, episodes=100))
    assert misses(a_cell(coverage=0.80, episodes=100))
    assert not misses(a_cell(coverage=0.5, episodes=50))


def test_an_interval_below_monte_carlos_is_shown_even_if_monte_carlos_fails():
    assert is_below_plain(a_cell(coverage=0.815, plain_coverage=0.93))
    assert not is_below_plain(a_cell(coverage=0.87, plain_coverage=0.93))
    assert is_below_plain(a_cell(coverage=0.3, plain_coverage=0.6))
    assert not is_below_plain(a_cell(coverage=0.3, plain_coverage=0.6, episodes=50))
    assert not is_below_plain(a_cell(coverage=0.96, plain_coverage=0.6))
    assert not misstates(a_cell(reported=1.4))
    assert misstates(a_cell(reported=1.7))
    assert misstates(a_cell(reported=0.5))
    assert not misstates(a_cell(reported=1.7, ratio_error=0.1))
    assert not misstates(a_cell(reported=1.7, tail=0.6))
    assert not misstates(a_cell(reported=0.1, tight=1.2))
    assert misstates(a_cell(reported=0.1, tight=0.6))
    assert misstates(a_cell(reported=1.7, tight=3.0))
    assert not misstates(a_cell(reported=1.0, tight=np.nan))
    assert is_biased(a_cell(bias=-6.0))
    assert not is_biased(a_cell(bias=-6.0, tail=0.6))


def test_savings_are_off_by_what_lies_outside_of_the_stated_range():
    ranges = {(2.0, 8.0): 2.0, (0.5, 8.0): 1.0, (0.25, 0.5): 0.5, (0.25, np.nan): 1.0}
    for (reported, tight), off in ranges.items():
        assert overstatement(a_cell(reported=reported, tight=tight)) == off
    results = [a_result(number=0, reported=0.5, tight=8.0), a_result(number=1, reported=2.0, tight=np.nan)]
    rows = worst_savings([(result, result.cells[0]) for result in results]).splitlines()[2:]
    assert rows[0].startswith("| jackpot | 1 | 300 | 2 | nan | 1 |")
    assert "| x 2 |" in markdown(results)


def test_the_report_names_the_worst():
    results = [a_result(number=number, ratio=1.0 + number) for number in range(12)]
    refused = a_result(
        "taxi", failed=200, message="too large", **dict.fromkeys(("ratio", "coverage", "reported", "tight"), np.nan)
    )
    page = markdown([*results, refused])
    assert "Ratio above 1.05: 11 of 13 cells." in page
    assert "Savings off by more than a factor of 1.5: 11 of 13 cells." in page
    assert "so that its own variance is known: 11 of 12 cells." in page
    assert 'No answer, but an error ("too large"): 1 of 13 cells.' in page
    assert "| jackpot | 12 | 6.5 | 12 ± 0.01 | 11 | 95% (95%) | 0 |" in page
    rows = worst_ratios([(result, result.cells[0]) for result in results]).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == [str(number) for number in range(11, 1, -1)]
    assert '`{"size": 2.0}`' in rows[0]


def test_the_search_finds_what_is_worst_and_the_same_again():
    judged = []

    def judge(each):
        judged.append(len(each))
        return [a_result("frozen-lake-4x4", parameters=p, ratio=-np.log10(p["epsilon"])) for p in each]

    worst = evolve("frozen-lake-4x4", judge, 60, bad_ratio, seed=0)
    assert sum(judged) == 60
    assert worst.parameters["epsilon"] < 1.05e-5
    assert evolve("frozen-lake-4x4", judge, 60, bad_ratio, seed=0) == worst


def test_what_is_bad():
    assert bad_ratio([a_cell(), a_cell(ratio=2.0, ratio_error=0.1)]) == pytest.approx(1.95)
    assert bad_coverage([a_cell(coverage=0.5, plain_coverage=0.9), a_cell(coverage=0.9)]) == pytest.approx(0.05)
    assert bad_ratio([a_cell(failed=200, ratio=np.nan)]) == bad_coverage([a_cell(failed=200)]) == np.inf


def test_given_parameters_are_not_drawn():
    given = {"epsilon": [0.1, 0.01], "planning": [0.99]}
    found = draws(["frozen-lake-4x4"], 3, 0, given)
    assert [draw.parameters["epsilon"] for draw in found] == [0.1, 0.01, 0.1]
    assert {draw.parameters["planning"] for draw in found} == {0.99}
    with pytest.raises(ValueError, match="frozen-lake-4x4 has the parameters epsilon, planning, got depth"):
        draws(["frozen-lake-4x4"], 1, 0, {"depth": [1.0]})


def test_more_tasks_leave_the_first_ones_as_they_are():
    few, many = (draws(["jackpot", "taxi"], tasks, 0) for tasks in (3, 8))
    assert many[:3] == few
    assert [(d.family, d.number) for d in few] == [("jackpot", 0), ("taxi", 0), ("jackpot", 1)]
    assert len({json.dumps(d.parameters) for d in many}) == 8
    assert draws(["jackpot"], 1, 1) != draws(["jackpot"], 1, 0)


class Here:
    """A pool that works in this process and counts."""

    calls = 0

    def submit(self, function, *arguments):
        Here.calls += 1
        future = Future()
        future.set_result(function(*arguments))
        return future


def test_the_command_keeps_what_it_measured_and_goes_on(tmp_path, monkeypatch, capsys):
    def at_once(settings, draw):
        cells = tuple(a_cell(episodes=size, studies=settings.studies) for size in settings.sizes)
        return Result(draw.family, draw.number, draw.parameters, 5, 2, 3, 1.0, 2.0, 3.0, cells)

    monkeypatch.setattr(running, "workers", lambda jobs: nullcontext(Here()))
    monkeypatch.setattr(running, "judged", at_once)
    monkeypatch.setattr(Here, "calls", 0)
    options = ["--family", "jackpot", "taxi", "--studies", "6", "--episodes", "40", "20", "--method", "mc"]

    def run(tasks, *more):
        monkeypatch.setattr(sys, "argv", ["adversary", *options, "--tasks", tasks, "--out", str(tmp_path), *more])
        command.main()
        return capsys.readouterr().out

    assert "Ratio above 1.05: 0 of 2 cells." in run("1")
    first = list((tmp_path / "tasks" / "mc").iterdir())
    assert "Ratio above 1.05: 0 of 4 cells." in run("2")
    assert Here.calls == 2
    assert len(list((tmp_path / "tasks" / "mc").iterdir())) == 2
    assert first[0].exists()
    with (tmp_path / "adversary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["family"], row["episodes"], row["ratio"]) for row in rows] == [
        (family, episodes, "1") for family in ("jackpot", "taxi") for episodes in ("20", "40")
    ]
    kept = Result.from_json(first[0].read_text())
    assert kept == at_once(Settings("mc", (20, 40), 6, 0), *draws(["jackpot"], 1, 0))
    run("1", "--fresh")
    assert Here.calls == 3


def test_a_draw_is_judged_by_its_parameters():
    parameters = normal_task().parameters
    settings, draw = Settings("mc", (20, 40), 12, 0), Draw("rare-nothing", 2, parameters)
    result = running.judged(settings, draw)
    assert (result.family, result.number, result.parameters) == ("rare-nothing", 2, parameters)
    assert [(c.episodes, c.studies, c.ratio) for c in result.cells] == [(20, 12, 1.0), (40, 12, 1.0)]
    assert running.judged(settings, draw) == result
    assert running.judged(settings, replace(draw, number=3)).cells != result.cells


def test_what_is_kept_knows_the_settings(tmp_path):
    settings, draw = Settings("mc", (20,), 5, 0), Draw("jackpot", 0, {"size": 1.0})
    other = [replace(settings, studies=6), replace(settings, seed=1), replace(settings, sizes=(20, 40))]
    paths = [running.kept_at(tmp_path, each, draw) for each in (settings, *other)]
    assert len({*paths, running.kept_at(tmp_path, settings, replace(draw, parameters={"size": 2.0}))}) == 5


def test_methods_stand_side_by_side(tmp_path):
    settings, planned = Settings("mc", (20,), 12, 0), draws(["jackpot", "binary"], 3, 0)
    for method in ("mc", "as"):
        list(running.run(planned, replace(settings, method=method), 1, tmp_path / "tasks" / method))
    results = load(tmp_path)
    assert {method: len(found) for method, found in results.items()} == {"mc": 3, "as": 3}
    rows = {line.split(" | ")[0].strip("| "): line for line in side_by_side(results, 20).splitlines()}
    assert rows["jackpot"].split(" | ")[1:3] == ["2", "1"]  # tasks, and Monte Carlo by itself
    assert rows["taxi"] == "| taxi | 0 | – | – |"
    worse = replace(results["as"][0], cells=(a_cell(episodes=20, ratio=7.0, ratio_low=4.0),))
    assert "7 (up to 7)" in side_by_side({"as": [worse]}, 20)
