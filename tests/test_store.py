"""Stored studies: settings, kills, resuming, replaying, verifying, reading beside a writer.

What a journal promises about its file is in test_journal.py.
"""

import dataclasses
import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.errors import InvalidArgumentError, SettingsMismatchError, StoreError, StoreLockedError
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, per_decision
from bpsearch.inference.stopping import Ended
from bpsearch.methods import METHODS, find_method
from bpsearch.report import words
from bpsearch.search import decaying, normalized
from bpsearch.study.journal import Event
from bpsearch.study.progress import Progress
from bpsearch.study.recorder import FORMAT, Recorder
from bpsearch.study.settings import build, check_same, describe
from enumeration import random_mdp, random_policy
from test_journal import MemoryJournal

MDP = random_mdp(0, (3, 2, 3), 0.9)
POLICY = random_policy(1, MDP)
RETURN = bps.Return(0.9)


def in_batches_of(size, method):
    return dataclasses.replace(find_method(method, MDP), batch_size=size)


# Settings


@dataclass(frozen=True)
class Inner:
    rates: tuple[float, ...]
    name: str | None


class Mood(Enum):
    CALM = 1


@dataclass(frozen=True)
class Outer:
    inner: Inner
    mood: Mood
    estimator: bps.Estimator = per_decision


MADE_OF = [
    bps.OnPolicy(),
    bps.BPG(1e-5, baseline=False, patience=3),
    bps.BPG(decaying(0.1, 0.2, 0.7), doubly_robust, center=True, model=TabularModel(3, 2, 4)),
    bps.BPG(normalized(0.05)),
    bps.AdaptiveBPG(per_decision, caution=1.5),
    bps.Valuation(advantage_sum, TabularModel(3, 2, 4, "fixed", 7)),
    bps.Valuation(control_variates=(bps.Scores(), bps.TabularAdvantages())),
    bps.Return(0.9, (-1.0, 2.0)),
    bps.Failure("return < -0.5", 0.9),
]


@pytest.mark.parametrize("setting", MADE_OF, ids=lambda setting: type(setting).__name__)
def test_a_setting_is_made_again_from_its_description(setting):
    assert build(json.loads(json.dumps(describe(setting)))) == setting


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_made_again_from_its_description(name):
    method = in_batches_of(7, name)
    assert build(json.loads(json.dumps(describe(method)))) == method


def test_settings_of_any_dataclass_are_compared_by_name():
    settings = {"search": describe(Outer(Inner((0.1, 0.2), None), Mood.CALM))}
    check_same(settings, json.loads(json.dumps(settings)), "it")
    other = {"search": describe(Outer(Inner((0.1, 0.3), "x"), Mood.CALM))}
    with pytest.raises(SettingsMismatchError) as found:
        check_same(settings, other, "study.db")
    assert "search.inner.rates.1 (stored 0.2, given 0.3), search.inner.name (stored None, given 'x')" in str(
        found.value
    )
    with pytest.raises(StoreError, match="'Outer', which is not a class of bpsearch's searches"):
        build(settings["search"])
    with pytest.raises(StoreError, match="estimator 'mine', which is not one of bpsearch"):
        build({"estimator": "mine"})
    with pytest.raises(StoreError, match="function 'print', which no file can hold"):
        build(describe(print))
    with pytest.raises(InvalidArgumentError, match=r"search.rates cannot be stored.*got \{1, 2\}"):
        describe(Inner({1, 2}, None), "search")


def weighing(factor):
    """A user's estimator; of the same name and source for every factor."""

    @bps.estimator
    def mine(rewards, log_ratios, mask, discount):
        return factor * importance_sampling.function(rewards, log_ratios, mask, discount) / factor

    return mine


def test_a_users_own_functions_are_known_by_more_than_their_names(tmp_path):
    @bps.estimator
    def mine(rewards, log_ratios, mask, discount):
        return importance_sampling.function(rewards, log_ratios, mask, discount)

    def method(estimator):
        return bps.Method(bps.BPG(1e-5), bps.Valuation(estimator), batch_size=10, name="own")

    path = tmp_path / "a.db"
    with bps.Study(POLICY, method(weighing(2.0)), estimand=RETURN, store=path) as study:
        found = study.run(MDP, episodes=20)
    for estimator in (weighing(3.0), mine):
        with pytest.raises(
            SettingsMismatchError, match=r"method.valuation.estimator \(stored 'mine \w{16}', given 'mine"
        ):
            bps.Study(POLICY, method(estimator), estimand=RETURN, store=path)
    with pytest.raises(StoreError, match="estimator 'mine', which is not one of bpsearch"):
        bps.Study.open(path)
    with bps.Study.open(path, method=method(weighing(2.0))) as study:
        assert study.estimate().value == found.value

    def long(batch):
        return batch.lengths > 2

    path = tmp_path / "b.db"
    bps.Study(POLICY, "mc", estimand=bps.Failure(long), store=path).close()
    with pytest.raises(StoreError, match="long', which no file can hold"):
        bps.Study.open(path)
    bps.Study.open(path, estimand=bps.Failure(long)).close()

    def long(batch):
        return batch.lengths > 1

    with pytest.raises(
        SettingsMismatchError, match=r"estimand.condition \(stored '.*long \w{16}', given '.*long \w{16}'"
    ):
        bps.Study(POLICY, "mc", estimand=bps.Failure(long), store=path)


def test_code_without_a_source_is_known_too():
    makers = [{}, {}, {}]
    for maker, source in zip(makers, ("x > 1", "x > 2", "x > 1"), strict=True):
        exec(f"def rule(x): return {source}", maker)
    one, other, again = (describe(maker["rule"]) for maker in makers)
    assert one == again != other


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "study.db"
    with bps.Study(POLICY, in_batches_of(20, bps.BPG(1e-5)), estimand=RETURN, seed=3, store=path) as study:
        study.run(MDP, total=40)
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policy": random_policy(2, MDP)}, r"policy.digest \(stored '\w{16}', given '\w{16}'\)"),
        ({"method": bps.BPG(1e-4)}, r"method.search.step_size.initial \(stored 1e-05, given 0.0001\)"),
        ({"method": bps.OnPolicy()}, r"method.search \(stored 'BPG', given 'OnPolicy'\)"),
        (
            {"method": bps.BPG(1e-5, per_decision)},
            r"method.search.estimator \(stored 'importance_sampling', given 'per_decision'.*valuation.estimator",
        ),
        ({"estimand": bps.Return(1.0)}, r"estimand.discount \(stored 0.9, given 1.0\)"),
        ({"estimand": bps.Return(0.9, (0.0, 1.0))}, r"estimand.return_range.*given 0.0"),
        ({"estimand": bps.Failure("return < 0", 0.9)}, r"estimand \(stored 'Return', given 'Failure'\)"),
        ({"seed": 4}, r"seed \(stored 3, given 4\)"),
        ({"batch_size": 10}, r"method.batch_size \(stored 20, given 10\)"),
    ],
)
def test_other_settings_are_refused_by_name_with_both_values(stored, changed, message):
    given = {"policy": POLICY, "method": bps.BPG(1e-5), "estimand": RETURN, "seed": 3, "batch_size": 20} | changed
    method = in_batches_of(given["batch_size"], given["method"])
    with pytest.raises(SettingsMismatchError, match=message):
        bps.Study(given["policy"], method, estimand=given["estimand"], seed=given["seed"], store=stored)
    bps.SQLiteJournal(stored).close()  # whoever is refused holds no lock


def test_settings_that_become_known_later_must_stay_the_same(stored, tmp_path):
    path = shutil.copy(stored, tmp_path / "s.db")
    with bps.Study.open(path) as study:
        study.fix({"env": "first"})
        study.fix({"env": "first", "horizon": 3})
        with pytest.raises(SettingsMismatchError, match=r"env \(stored 'first', given 'second'\)"):
            study.fix({"env": "second"})
    with bps.Study.open(path) as study:
        assert (study.settings["env"], study.settings["horizon"]) == ("first", 3)
        with pytest.raises(SettingsMismatchError, match=r"horizon \(stored 3, given 4\)"):
            study.fix({"horizon": 4})


def test_a_drawn_seed_is_stored(tmp_path):
    with bps.Study(POLICY, "mc", estimand=RETURN, store=tmp_path / "s.db") as study:
        drawn = study.seed
        found = study.run(MDP, total=200)
    with bps.Study(POLICY, "mc", estimand=RETURN, store=tmp_path / "s.db") as study:
        assert study.seed == drawn
        again = study.run(MDP, total=300)
    assert again.value == bps.Study(POLICY, "mc", estimand=RETURN, seed=drawn).run(MDP, episodes=300).value
    assert found.value == bps.Study(POLICY, "mc", estimand=RETURN, seed=drawn).run(MDP, episodes=200).value
    with pytest.raises(SettingsMismatchError, match="seed"):
        bps.Study(POLICY, "mc", estimand=RETURN, seed=drawn + 1, store=tmp_path / "s.db")


# Resuming


def assert_same_estimate(found, expected):
    for name in ("values", "log_weights", "returns"):
        assert getattr(found.data, name).tobytes() == getattr(expected.data, name).tobytes()
    for of in (
        lambda estimate: (estimate.value, estimate.std_error, estimate.explained, estimate.episodes, estimate.ended),
        lambda estimate: (estimate.interval(), estimate.anytime_interval(), estimate.certified_interval()),
        lambda estimate: (estimate.waiting, estimate.abandoned, estimate.sequence),
    ):
        assert of(found) == of(expected)


RESUMED = {
    "bpg": bps.BPG(normalized(0.3), center=True, patience=2),
    "adaptive": bps.AdaptiveBPG(doubly_robust, TabularModel.like(MDP), caution=0.0),
    "model": bps.Method(bps.OnPolicy(), bps.Valuation(advantage_sum, TabularModel.like(MDP))),
    "auto": "auto",
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("forget", [False, True], ids=["from the cache", "replayed"])
def test_a_resumed_study_is_bit_identical(name, forget, tmp_path):
    """Closed and opened again between all batches, with requests open across them; with and without the cache."""
    path, method = tmp_path / "study.db", in_batches_of(10, RESUMED[name])

    def play(study_at):
        for stop in (25, 50):
            with study_at() as study:
                study.run(MDP, total=stop)
        with study_at() as study:
            first, second, lost = study.ask(), study.ask(), study.ask()
        with study_at() as study:
            assert [request.identity for request in study.outstanding] == [
                request.identity for request in (first, second, lost)
            ]
            study.tell(second.number, bps.sample(MDP, second.behavior, 5, batch=second.number))
            third = study.ask()
        with study_at() as study:
            study.abandon(lost.number, "power cut")
            for request in (first, third):
                study.tell(request.number, bps.sample(MDP, request.behavior, 5, batch=request.number))
        with study_at() as study:
            return study.run(MDP, total=85)

    memory = bps.Study(POLICY, method, estimand=RETURN, seed=0)

    def at_path():
        if forget and path.exists():
            with bps.SQLiteJournal(path) as journal:
                journal.forget()
        return bps.Study(POLICY, method, estimand=RETURN, seed=0, store=path)

    expected = play(lambda: memory)
    found = play(at_path)
    with bps.Study.open(path, read_only=True) as reader:
        damages = reader.verify()
        read = reader.estimate()
        with pytest.raises(StoreLockedError, match="opened for reading"):
            reader.ask()
    assert damages == []
    assert expected.abandoned == (8,)
    for estimate in (found, read):
        assert_same_estimate(estimate, expected)


def test_a_study_goes_on_in_any_journal():
    method = in_batches_of(10, "bpg")
    journal = MemoryJournal()
    with bps.Study(POLICY, method, estimand=RETURN, seed=0, store=journal) as study:
        study.run(MDP, total=30)
    with bps.Study(POLICY, method, estimand=RETURN, seed=0, store=MemoryJournal(journal.shared)) as study:
        found = study.run(MDP, total=60)
        assert study.verify() == []
    uninterrupted = bps.Study(POLICY, method, estimand=RETURN, seed=0)
    uninterrupted.run(MDP, total=30)
    assert_same_estimate(found, uninterrupted.run(MDP, total=60))


def test_what_was_replayed_is_cached_again_with_the_next_event(tmp_path, monkeypatch):
    replayed = []
    original = Progress.replay
    monkeypatch.setattr(Progress, "replay", lambda self, history: replayed.append(1) or original(self, history))
    path, method = tmp_path / "s.db", in_batches_of(10, "bpg")

    def opened():
        replayed.clear()
        return bps.Study(POLICY, method, estimand=RETURN, seed=0, store=path)

    with opened() as study:
        study.run(MDP, total=30)
        waiting = study.ask()
        study.run(MDP, total=50)
        study.journal.forget()
    with opened() as study:
        assert replayed
        study.run(MDP, total=60)
    with opened() as study:
        assert not replayed
        study.tell(waiting.number, bps.sample(MDP, waiting.behavior, 10, seed=0, batch=waiting.number))
        study.journal.forget()
    with opened() as study:
        assert replayed
        study.abandon(study.ask().number)
    with opened() as study:
        assert not replayed
        found = study.run(MDP, total=80)
        assert study.verify() == []
    uninterrupted = bps.Study(POLICY, method, estimand=RETURN, seed=0)
    uninterrupted.run(MDP, total=30)
    uninterrupted.ask()
    uninterrupted.run(MDP, total=60)
    uninterrupted.tell(waiting.number, bps.sample(MDP, waiting.behavior, 10, seed=0, batch=waiting.number))
    uninterrupted.abandon(uninterrupted.ask().number)
    assert_same_estimate(found, uninterrupted.run(MDP, total=80))


def test_a_damaged_cache_is_replayed(stored, tmp_path):
    path = shutil.copy(stored, tmp_path / "s.db")
    with bps.Study.open(path, read_only=True) as study:
        expected = study.estimate()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE cache SET data = substr(data, 1, 40)")
    database.close()
    with bps.Study.open(path) as study:
        assert any("the cached 'batch 0'" in line for line in study.verify())
        assert_same_estimate(study.estimate(), expected)
        study.run(MDP, total=60)
        assert study.verify() == []


# Why a study ended


def test_a_stored_study_knows_why_it_ended(tmp_path, monkeypatch):
    def reopened():
        with bps.Study.open(path, read_only=True) as study:
            return study.estimate()

    def interrupt(study, _):
        raise KeyboardInterrupt

    path, method = tmp_path / "s.db", in_batches_of(50, "mc")
    with bps.Study(POLICY, method, estimand=RETURN, seed=0, store=path) as study:
        study.run(MDP, episodes=100)
        assert reopened().ended is Ended.BUDGET
        study.run(MDP, episodes=100, on_batch=interrupt)
        assert reopened().ended is Ended.INTERRUPTED
        assert "interrupted after 150 episodes" in words.warnings(reopened())
    with bps.Study.open(path) as study:
        study.run(MDP, episodes=50)
        assert reopened().ended is Ended.BUDGET
        study.run(MDP, episodes=100, target=bps.Target(seconds=1e-9))
        assert reopened().ended is Ended.TIME_LIMIT
    with bps.Study.open(path) as study:
        study.run(MDP, episodes=100, target=100.0)
    assert reopened().ended is Ended.TARGET
    assert "it ended by reaching its target" in words.interval_kind(reopened())
    with bps.Study.open(path) as study:
        assert study.run(MDP, episodes=50).ended is Ended.TARGET, "how many episodes there are still depends on them"
    assert reopened().ended is Ended.TARGET


# Versions


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1, None])
def test_a_study_of_another_version_is_refused_in_one_line(tmp_path, version):
    path = tmp_path / "s.db"
    with bps.SQLiteJournal(path) as journal:
        journal.append(Event("made", {} if version is None else {"format": version}), position=0)
    for make in (lambda: bps.Study.open(path), lambda: bps.Study(POLICY, "mc", store=path)):
        with pytest.raises(StoreError) as found:
            make()
        assert f"holds a study of another version: this program reads format {FORMAT}, got" in str(found.value)
        assert "\n" not in str(found.value)
    bps.SQLiteJournal(path).close()


def test_events_that_this_program_does_not_know_are_refused(stored, tmp_path):
    path = shutil.copy(stored, tmp_path / "s.db")
    with bps.SQLiteJournal(path) as journal:
        journal.append(Event("danced", {"when": "now"}), position=len(journal))
    with pytest.raises(StoreError, match=r"event 5 is of a kind that this program does not know: 'danced'"):
        bps.Study.open(path)


def test_there_must_be_a_study(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        bps.Study.open(tmp_path / "nowhere.db")
    bps.SQLiteJournal(tmp_path / "empty.db").close()
    with pytest.raises(StoreError, match="holds no study yet"):
        bps.Study.open(tmp_path / "empty.db")
    bps.SQLiteJournal(tmp_path / "empty.db").close()


# Verifying


def test_verify_names_numbers_that_their_episodes_do_not_give(stored, tmp_path):
    def changed(name, array):
        """A copy of the file whose cache has another number in the last place of an array."""
        path = shutil.copy(stored, tmp_path / f"{name}.db")
        with bps.SQLiteJournal(path) as journal:
            entry = journal.cached(name)
            key = next(key for key in entry.arrays if array in key)
            arrays = dict(entry.arrays) | {key: np.nextafter(entry.arrays[key], np.inf)}
            ended = Event("ended", {"ended": "budget", "at": "now"})
            journal.append(ended, position=len(journal), cache={name: Event(entry.kind, entry.facts, arrays)})
        with bps.Study.open(path, read_only=True) as study:
            return study.verify()

    assert changed("batch 1", "values") == ["batch 1 has other values than its episodes give"]
    assert changed("batch 0", "returns") == ["batch 0 has other returns than its episodes give"]
    assert changed("state 2", "parameters") == ["the state of the search is another than the told batches lead to"]


def test_verify_names_a_behavior_that_the_search_does_not_lead_to(stored, tmp_path):
    with bps.SQLiteJournal(stored, read_only=True) as journal:
        events = [journal.event(position) for position in range(len(journal))]
    with bps.SQLiteJournal(tmp_path / "s.db") as journal:
        for position, event in enumerate(events):
            arrays = dict(event.arrays)
            if event.kind == "told" and event.facts["number"] == 1:
                arrays["parameters"] = np.nextafter(arrays["parameters"], np.inf)
            journal.append(Event(event.kind, event.facts, arrays), position=position)
    with bps.Study.open(tmp_path / "s.db", read_only=True) as study:
        assert study.verify() == ["request 1 has another behavior than its state of the search gives"]


def test_verify_needs_every_event(stored, tmp_path):
    path = shutil.copy(stored, tmp_path / "s.db")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE journal SET arrays = zeroblob(length(arrays)) WHERE position = 2")
    database.close()
    with bps.Study.open(path, read_only=True) as study:
        assert study.estimate().episodes == 40, "the cache still has what the estimate needs"
        assert [line for line in study.verify() if line.startswith("event 2 is damaged")]
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM journal WHERE position = 2")
    database.close()
    with pytest.raises(StoreError, match="event 2 is missing"):
        bps.Study.open(path)
    with pytest.raises(InvalidArgumentError, match="without a store keeps nothing"):
        bps.Study(POLICY).verify()


# Reading beside a writer


def test_a_reader_beside_a_writer_sees_whole_batches_and_changes_nothing(tmp_path):
    path, method = tmp_path / "s.db", in_batches_of(10, "bpg")
    seen = []

    def look(study, _):
        with bps.Study.open(path, read_only=True) as reader:
            assert_same_estimate(reader.estimate(), study.estimate())
            seen.append(reader.episodes)
            for change in (
                reader.ask,
                lambda: reader.run(MDP, episodes=10),
                lambda: reader.abandon(waiting.number),
                lambda: reader.tell(waiting.number, bps.sample(MDP, waiting.behavior, 5)),
                lambda: reader.fix({"note": 1}),
                lambda: reader.journal.forget(),
            ):
                with pytest.raises(StoreLockedError, match="opened for reading"):
                    change()
            assert reader.episodes == study.episodes

    with bps.Study(POLICY, method, estimand=RETURN, seed=0, store=path) as study:
        waiting = study.ask()
        study.run(MDP, episodes=30, on_batch=look)
        assert study.verify() == []
    assert seen == [10, 20, 30]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpg", "auto"])
def test_what_is_written_while_a_reader_opens_does_not_confuse_it(kind, tmp_path, monkeypatch):
    """A batch is told after the reader has read the list of events, before it reads the cache: twice."""
    path, method, expected = tmp_path / "s.db", in_batches_of(30, kind), []
    with bps.Study(POLICY, method, estimand=RETURN, seed=0, store=path) as study:
        study.run(MDP, episodes=60)
        waiting = study.ask()
        original = Recorder.read

        def read(self):
            history = original(self)
            if self.journal.read_only:
                with monkeypatch.context() as patch:
                    patch.setattr(Recorder, "read", original)
                    expected.append(study.estimate())
                    study.run(MDP, episodes=30)
            return history

        monkeypatch.setattr(Recorder, "read", read)
        with bps.Study.open(path, read_only=True) as reader:
            monkeypatch.setattr(Recorder, "read", original)
            assert study.episodes == 120
            assert reader.episodes == 90
            assert [request.identity for request in reader.outstanding] == [waiting.identity]
            found = reader.estimate()
        assert_same_estimate(found, expected[1])


# Kills


@pytest.mark.slow
def test_kills_lose_nothing():
    """At every point of a write, and at three random moments; `benchmarks/kill_study.py` does a hundred."""
    script = Path(__file__).parent.parent / "benchmarks" / "kill_study.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "3", "--rounds", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["kills_at_write_points"] == result["write_points"] >= 12
    assert result["random_kills"] >= 3
