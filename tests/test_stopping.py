"""Stopping: at a target, at a time limit, by Ctrl-C; each leaves a usable estimate that says how it ended."""

import dataclasses
import json
import os
import pickle
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

import bpsearch as bps
from bpsearch._core.interrupts import hold_interrupts
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference.confidence_sequence import CertifiedSequence, anytime_bounds
from bpsearch.inference.looks import Looks
from bpsearch.inference.stopping import Ended
from bpsearch.inference.valuation import Valuation
from bpsearch.methods import find_method
from bpsearch.report import words
from bpsearch.runners import InProcess
from bpsearch.study.sqlite import WRITE_POINTS
from enumeration import SMALL_CASES, enumerate_trajectories, random_mdp

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


def in_batches_of(size, method="mc"):
    return dataclasses.replace(find_method(method), batch_size=size)


@pytest.fixture
def interruptible():
    """Ctrl-C as Python has it by default: a background job may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("method", "kind", "halfwidth"), [("mc", "certified", 8.0), ("mc", "asymptotic", 2.0), ("auto", "asymptotic", 0.5)]
)
def test_a_study_stops_at_its_target_and_not_before(method, kind, halfwidth):
    seen = []

    def interval(estimate, level=0.95):
        return estimate.certified_interval(level) if kind == "certified" else estimate.anytime_interval(level)

    def look(study, _):
        low, high = interval(study.estimate())
        seen.append((high - low) / 2)

    target = bps.Target(halfwidth=halfwidth, kind=kind)
    found = bps.Study(POLICY, method, seed=1).run(MDP, episodes=5000, on_batch=look, target=target)
    assert found.ended is Ended.TARGET
    assert found.episodes == 100 * len(seen) < 5000
    assert seen[-1] <= halfwidth < seen[-2]
    assert "which this one was not: it ended by reaching its target" in words.interval_kind(found)
    assert "whenever one stops" in words.anytime_kind(found)
    assert "whenever one stops" in words.certified_kind(found)
    low, high = interval(found)
    assert low < bps.oracle.value(MDP, POLICY) < high
    wider = interval(found, 0.99)
    assert wider[0] < low < high < wider[1]
    name = "certified_interval" if kind == "certified" else "anytime_interval"
    assert tuple(found.to_json()[name]) == pytest.approx((low, high))


def test_a_number_is_a_target_for_the_anytime_valid_interval():
    numbers = [
        bps.Study(POLICY, "mc", seed=1).run(MDP, episodes=5000, target=target).episodes
        for target in (2.0, bps.Target(halfwidth=2.0), bps.Target(halfwidth=2.0, level=0.99))
    ]
    assert numbers[0] == numbers[1] < numbers[2] < 5000


def test_a_relative_target_and_the_one_that_is_reached_first():
    def look(study, _):
        low, high = study.estimate().anytime_interval()
        seen.append((high - low) / abs(high + low))

    seen = []
    found = bps.Study(POLICY, "mc", seed=1).run(MDP, episodes=5000, on_batch=look, target=bps.Target(relative=0.05))
    assert found.ended is Ended.TARGET
    assert seen[-1] <= 0.05 < seen[-2]
    both = bps.Target(relative=0.05, halfwidth=100.0)
    assert bps.Study(POLICY, "mc", seed=1).run(MDP, episodes=5000, target=both).episodes == 100


def test_no_target_is_reached_with_a_handful_of_episodes():
    few = in_batches_of(4)
    found = bps.Study(POLICY, few, seed=1).run(MDP, episodes=400, target=1000.0)
    assert (found.ended, found.episodes) == (Ended.TARGET, 32)
    cut = bps.Study(POLICY, few, seed=1).run(MDP, episodes=400, target=bps.Target(seconds=1e-9))
    assert (cut.ended, cut.episodes, cut.anytime_interval()) == (Ended.TIME_LIMIT, 4, None)
    assert "too few" in words.anytime_kind(cut)


def test_every_saving_brings_the_target_nearer():
    """The certified interval knows nothing of control variates; the other one does."""
    numbers = {
        method: bps.Study(POLICY, method, seed=2).run(MDP, episodes=20_000, target=1.0).episodes
        for method in ("mc", "auto")
    }
    assert numbers["auto"] < numbers["mc"] / 3
    certified = bps.Target(halfwidth=8.0, kind="certified")
    same = {bps.Study(POLICY, name, seed=2).run(MDP, episodes=20_000, target=certified).episodes for name in numbers}
    assert len(same) == 1


@pytest.mark.parametrize("method", ["auto", "bpg", "mc"])
@pytest.mark.parametrize("kind", ["asymptotic", "certified"])
def test_looking_after_every_batch_costs_as_much_for_the_last_as_for_the_first(method, kind, monkeypatch):
    """Counted in batches that are valued, learned from or added up, and in episodes of each call: not in seconds."""
    work, largest = Counter(), Counter()

    def count(cls, name, size_of):
        original = getattr(cls, name)

        def counted(self, *arguments, **named):
            work[name] += 1
            largest[name] = max(largest[name], size_of(*arguments))
            return original(self, *arguments, **named)

        monkeypatch.setattr(cls, name, counted)

    count(Valuation, "advance", lambda state, knowledge, batch: len(batch.values))
    count(Valuation, "value", lambda state, batch, *fixed: len(batch))
    count(Valuation, "summarize", lambda state, batch: len(batch))
    count(Valuation, "conclude", lambda state, batches: len(batches))
    count(CertifiedSequence, "add", lambda log_weights, returns: len(returns))
    batches = 30
    target = bps.Target(halfwidth=1e-6, kind=kind)
    found = bps.Study(POLICY, in_batches_of(20, method), seed=0).run(MDP, episodes=20 * batches, target=target)
    assert found.episodes == 20 * batches
    assert work["value"] == work["summarize"] == batches
    assert work["advance"] == (batches if kind == "asymptotic" else 0), "nobody has asked for the other one"
    assert found.anytime_interval() == found.anytime_interval()
    assert work["advance"] == batches, "once, also for the one estimate at the end"
    assert work["conclude"] == 1
    assert work["add"] == (batches if kind == "certified" else 0)
    assert {largest[name] for name in ("advance", "value", "summarize")} == {20}


def test_the_anytime_interval_of_an_estimate_does_not_depend_on_when_it_is_asked_for():
    """At once, after more batches were told and looked at, in a copy from another process: the same to the last bit."""
    study, at_once = (bps.Study(POLICY, in_batches_of(20, "auto"), seed=4) for _ in range(2))
    before = [study.run(MDP, episodes=100) for _ in range(3)]
    expected = [at_once.run(MDP, episodes=100).sequence for _ in range(3)]
    copied = pickle.loads(pickle.dumps(before[1]))
    assert study.turns().keys() == set(range(15))
    assert [estimate.sequence for estimate in before] == expected
    assert copied.sequence == expected[1]
    assert copied.value == before[1].value


def test_looks_are_those_of_all_batches_at_once_in_whatever_order_they_come():
    """After every batch, out of order, some of them twice: as if all batches had entered at once."""
    method = find_method("auto")
    valuation, state = method.valuation, method.valuation.init(POLICY)
    sampled = [bps.sample(MDP, POLICY, 30, seed=1, batch=n) for n in range(8)]
    batches = {n: valuation.value(state, sampled[n], weight=1.0 if n else 0.5) for n in range(8)}
    told, looks = {}, Looks(valuation, state)
    for number in (1, 0, 2, 3, 6, 5, 4, 7):
        told[number] = batches[number]
        fresh = Looks(valuation, state)
        for _ in range(2):
            assert looks.sequence(told, told.get, 500) == fresh.sequence(told, told.get, 500)
            low, high = looks.certified(told, told.get, (-600.0, 110.0), 0.9)
        ordered = [told[n] for n in sorted(told)]
        expected = anytime_bounds(
            np.concatenate([batch.log_weights for batch in ordered]),
            np.concatenate([batch.returns for batch in ordered]),
            (-600.0, 110.0),
            np.cumsum([len(batch.values) for batch in ordered]),
            0.9,
        )
        assert (low, high) == pytest.approx([bound[-1] for bound in expected])
    knowledge, sequence = None, None
    for number in range(8):  # what the sequence is made of: values that later batches do not change
        values, knowledge = valuation.advance(state, knowledge, batches[number])
        weight = 1.0 if number else 0.5
        added = (weight * len(values), weight * values.sum(), weight**2 * len(values) * values.var(ddof=1))
        sequence = added if sequence is None else tuple(np.add(sequence, added))
    found = looks.sequence(told, told.get, 500)
    assert (found.weight, found.total, found.reduced) == pytest.approx(sequence)


def test_a_look_that_is_interrupted_is_made_again():
    method = find_method("auto")
    valuation, state = method.valuation, method.valuation.init(POLICY)
    batches = {n: valuation.value(state, bps.sample(MDP, POLICY, 30, seed=1, batch=n)) for n in range(4)}
    looks = Looks(valuation, state)
    looks.sequence({0: batches[0]}, batches.get, 500)
    looks.certified({0: batches[0]}, batches.get, (-600.0, 110.0), 0.9)

    def interrupted(number):
        if number == 2:
            raise KeyboardInterrupt
        return batches[number]

    for look in (
        lambda get: looks.sequence(batches, get, 500),
        lambda get: looks.certified(batches, get, (-600.0, 110.0), 0.9),
    ):
        with pytest.raises(KeyboardInterrupt):
            look(interrupted)
    fresh = Looks(valuation, state)
    assert looks.sequence(batches, batches.get, 500) == fresh.sequence(batches, batches.get, 500)
    again = [one.certified(batches, batches.get, (-600.0, 110.0), 0.9) for one in (looks, fresh)]
    assert again[0] == again[1]


def test_a_batch_that_lacks_what_a_control_variate_needs_is_looked_at_without_it():
    """Whoever runs the episodes elsewhere may not know the last observations, which the model learns from."""
    study = bps.Study(POLICY, in_batches_of(60, "auto"), seed=3)
    for number in range(4):
        request = study.ask()
        batch = bps.sample(MDP, request.behavior, 60, seed=3, batch=number)
        if number in (1, 2):
            batch = dataclasses.replace(batch, final_observations=None)
        study.tell(request.number, batch)
        low, high = study.estimate().anytime_interval()
        assert low < study.estimate().value < high
    assert study.run(MDP, episodes=120, target=1e-6).episodes == 360


def test_where_the_sequence_is_narrow_is_fixed_before_the_first_episode(tmp_path):
    with bps.Study(POLICY, "mc", seed=1, store=tmp_path / "s.db") as study:
        assert study.run(MDP, episodes=300).sequence.tightest == 300
        assert study.run(MDP, episodes=5000, target=20.0).sequence.tightest == 300
    with bps.Study.open(tmp_path / "s.db", read_only=True) as study:
        assert study.estimate().sequence.tightest == 300
    assert bps.evaluate(POLICY, MDP, 500, "mc", seed=1).sequence.tightest == 500
    for target in (20.0, bps.Target(seconds=600.0), bps.Target(relative=0.5)):
        assert bps.evaluate(POLICY, MDP, 500, "mc", seed=1, target=target).sequence.tightest == 300, "it may end early"
    told = bps.Study(POLICY, "mc", seed=1)
    told.tell(told.ask().number, bps.sample(MDP, POLICY, 100))
    before = told.estimate().sequence.tightest
    assert told.run(MDP, episodes=100).sequence.tightest == before == 300


def test_a_target_out_of_reach_ends_with_the_budget():
    found = bps.evaluate(POLICY, MDP, 200, "mc", target=1e-3)
    assert found.ended is Ended.BUDGET
    assert found.episodes == 200


def test_a_target_that_is_reached_already_takes_no_more_episodes(tmp_path):
    """As if the process had been killed before it could write that it was done."""
    whole = bps.evaluate(POLICY, MDP, 5000, "mc", seed=1, target=2.0)
    assert whole.ended is Ended.TARGET
    for store, write in ((tmp_path / "a.db", lambda *_: None), (tmp_path / "b.db", None)):
        with bps.Study(POLICY, "mc", seed=1, store=store) as study:
            if write is not None:
                study._end = write
            study.run(MDP, total=5000, target=2.0)
        with bps.Study(POLICY, "mc", seed=1, store=store) as study:
            assert study.estimate().ended is (Ended.BUDGET if write is not None else Ended.TARGET)
            again = study.run(MDP, total=5000, target=2.0)
        assert (again.episodes, again.value, again.ended) == (whole.episodes, whole.value, Ended.TARGET)


def test_a_time_limit_lets_the_batch_finish():
    found = bps.evaluate(
        POLICY,
        MDP,
        500,
        "mc",
        target=bps.Target(halfwidth=1e-3, seconds=0.01),
        on_batch=lambda *_: time.sleep(0.02),
    )
    assert found.ended is Ended.TIME_LIMIT
    assert found.episodes == 100


def test_an_interrupt_leaves_whole_batches_and_a_usable_estimate(interruptible):
    def interrupt(study, _):
        if study.episodes == 300:
            os.kill(os.getpid(), signal.SIGINT)

    study = bps.Study(POLICY, bps.AdaptiveBPG(), seed=2)
    found = study.run(MDP, episodes=1000, on_batch=interrupt)
    assert found.ended is Ended.INTERRUPTED
    assert "interrupted after" in str(found)
    assert 300 <= found.episodes < 1000
    assert int(study.state.objective.batches) == found.episodes // 100
    whole = bps.Study(POLICY, bps.AdaptiveBPG(), seed=2).run(MDP, episodes=1000)
    assert study.run(MDP, episodes=1000 - found.episodes).value == whole.value, "the study goes on as if nothing was"


@pytest.mark.parametrize("point", WRITE_POINTS[2:])
def test_an_interrupt_while_a_batch_is_written_leaves_study_and_file_of_one_mind(point, interruptible, tmp_path):
    """At every point of the write, in the first, the second and the third batch; then the study goes on."""
    method, passed = in_batches_of(20, "bpg"), Counter()

    def on_write(name):
        passed[name] += 1
        if name == point and passed[name] in (4, 6, 8):
            os.kill(os.getpid(), signal.SIGINT)

    journal = bps.SQLiteJournal(tmp_path / "s.db", on_write=on_write)
    interrupted = 0
    with bps.Study(POLICY, method, seed=5, store=journal) as study:
        for _ in range(9):
            if study.episodes < 120:
                interrupted += study.run(MDP, total=120).ended is Ended.INTERRUPTED
                assert study.episodes % 20 == 0
                with bps.Study.open(tmp_path / "s.db", read_only=True) as reader:
                    assert reader.episodes == study.episodes
                    assert reader.verify() == []
        found = study.estimate()
    assert interrupted >= 2
    assert found.episodes == 120
    assert found.value == bps.Study(POLICY, method, seed=5).run(MDP, episodes=120).value


def test_an_interrupt_waits_for_what_must_not_be_done_by_halves(interruptible):
    done = []

    def whole():
        with hold_interrupts(), hold_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inside")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        whole()
    assert done == ["inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with hold_interrupts():
        pass
    thread = threading.Thread(target=lambda: done.append(str(hold_interrupts().__enter__())))
    thread.start()
    thread.join()
    assert done == ["inside", "None"], "where no signals come it changes nothing"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    whole()
    assert done[2:] == ["inside", "after"]


def test_an_interrupt_before_the_first_batch_is_an_interrupt(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(InProcess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bps.Study(POLICY, bps.OnPolicy()).run(MDP, episodes=100)


def test_the_command_prints_and_writes_what_it_has_when_interrupted(tmp_path, monkeypatch, in_process):
    original = InProcess.run

    def run(self, behavior, episodes, *, seed, batch, repeats=1):
        if batch == 2:
            raise KeyboardInterrupt
        return original(self, behavior, episodes, seed=seed, batch=batch, repeats=repeats)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(InProcess, "run", run)
    arguments = "--env bpsearch/Gridworld-v0 --policy gridworld-early --method mc --seed 0 --out found --failure"
    done = in_process("evaluate", *arguments.split(), "return < -80")
    assert done.returncode == 130
    assert "Interrupted after 200 episodes." in done.stdout
    assert "probability of return < -80" in done.stdout
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    assert (result["ended"], result["episodes"]) == ("interrupted", 200)
    assert 0.0 <= result["interval"][0] < result["interval"][1] <= 1.0
    assert "Interrupted after 200 episodes" in (tmp_path / "found" / "report.html").read_text()


def test_the_range_of_returns_of_a_table_is_exact():
    for case in SMALL_CASES:
        mdp = random_mdp(*case)
        returns = enumerate_trajectories(mdp).batch.returns(mdp.discount)
        np.testing.assert_allclose(mdp.return_range, (returns.min(), returns.max()))


def test_without_a_range_there_is_no_certified_interval_and_no_target_for_it():
    cut = bps.environment("CartPole-v1", horizon=20)
    found = bps.evaluate(lambda observation: 0, cut, 40)
    assert found.certified_interval() is None
    assert found.anytime_interval() is not None, "this one needs no range"
    assert "needs bounded returns (`return_range`)" in words.certified_kind(found)
    assert "certified" not in str(found)
    study = bps.Study(POLICY, "mc", estimand=bps.Outcome(lambda batch: batch.lengths))
    with pytest.raises(InvalidArgumentError, match="a certified target needs return_range"):
        study.run(MDP, episodes=20, target=bps.Target(halfwidth=1.0, kind="certified"))
    assert study.episodes == 0, "nothing is run in vain"
    ranged = bps.evaluate(lambda observation: 0, cut, 60, estimand=bps.Return(return_range=(0, 20)))
    low, high = ranged.certified_interval()
    assert 0.0 <= low < ranged.value < high <= 20.0
    cut.close()
    untraceable = bps.evaluate(lambda state: 1, bps.environment(MDP, horizon=5), 20)
    assert untraceable.certified_interval() is not None, "the table knows its range whoever runs it"


def test_a_range_that_returns_leave_is_refused():
    study = bps.Study(POLICY, bps.OnPolicy(), estimand=bps.Return(return_range=(-10.0, 0.0)))
    with pytest.raises(InvalidArgumentError, match=r"beyond the given range \[-10, 0\]"):
        study.run(MDP, episodes=300, target=bps.Target(halfwidth=1.0, kind="certified"))
    assert study.episodes == 100
    assert study.estimate().certified_interval() is None
    assert "give one that holds every return" in words.certified_kind(study.estimate())
    assert study.run(MDP, episodes=300, target=1.0).anytime_interval() is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bps.evaluate(POLICY, MDP, 100, target=0.0), "halfwidth must be"),
        (lambda: bps.Target(halfwidth=float("nan")), "halfwidth must be"),
        (lambda: bps.Target(relative=-0.1), "relative must be"),
        (lambda: bps.Target(seconds=-1.0), "seconds must be"),
        (lambda: bps.Target(1.0, level=1.0), "level must be"),
        (lambda: bps.Target(1.0, kind="sure"), "kind must be 'asymptotic' or 'certified'"),
        (lambda: bps.Return(return_range=(1.0, 1.0)), "return_range must be"),
        (lambda: bps.Return(return_range=(0.0, float("inf"))), "return_range must be"),
        (lambda: bps.Return(return_range=3.0), "return_range must be two finite numbers"),
        (lambda: bps.Outcome(len, return_range=(1.0, 0.0)), "return_range must be"),
        (lambda: bps.AdaptiveBPG(defensive=1.0), "defensive must be"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_an_event_has_the_range_of_events_and_monte_carlo_no_weights_to_defend_against():
    assert bps.Failure("length > 3").return_range == (0.0, 1.0)
    with pytest.raises(TypeError, match="return_range"):
        bps.Failure("length > 3", return_range=(0.0, 2.0))
    with pytest.raises(TypeError, match="defensive"):
        bps.OnPolicy(defensive=0.1)


def test_the_interval_speaks_of_weights_only_where_there_are_some():
    own = bps.evaluate(POLICY, MDP, episodes=200, method="mc", seed=0)
    searched = bps.evaluate(POLICY, MDP, episodes=200, method="bpg", seed=0)
    assert "rare episodes" in words.interval_kind(own)
    assert "weights" not in words.interval_kind(own)
    assert "importance weights" in words.interval_kind(searched)
