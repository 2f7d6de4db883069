"""Stores: the contract, the lock, damage, and settings."""

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
from bpsearch.errors import InvalidArgumentError, SettingsMismatchError, StoreError, StoreLockedError
from bpsearch.estimators import advantage_sum, doubly_robust, per_decision
from bpsearch.models import TabularModel
from bpsearch.search import decaying, normalized
from bpsearch.store import MemoryStore, SQLiteStore
from bpsearch.store.codec import Record
from bpsearch.store.settings import build, check_same, describe
from enumeration import random_mdp, random_policy
from store_suite import StoreSuite

MDP = random_mdp(0, (3, 2, 3), 0.9)
POLICY = random_policy(1, MDP)


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestSQLiteStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        with SQLiteStore(tmp_path / "study.db") as store:
            yield store

    def test_what_was_written_is_there_for_the_next(self, tmp_path):
        with SQLiteStore(tmp_path / "a.db") as store, store.writing():
            store.put("batch", 0, Record({"n": 1}))
        with SQLiteStore(tmp_path / "a.db") as store:
            assert store.get("batch", 0).facts == {"n": 1}

    def test_every_transaction_is_synchronised(self, store):
        pragmas = [store._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert pragmas == ["wal", 2]

    def test_a_second_writer_is_told_who_is_the_first(self, store):
        with pytest.raises(StoreLockedError, match=r"written by process \d+ on .+ since 20\d\d-.+for reading"):
            SQLiteStore(store.path)
        store.close()
        SQLiteStore(store.path).close()

    def test_a_writer_in_another_process_is_refused_too(self, store):
        script = "import sys, bpsearch as bps; bps.SQLiteStore(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", script, str(store.path)], capture_output=True, text=True, check=False
        )
        assert "StoreLockedError" in done.stderr

    def test_a_reader_watches_a_writer_and_cannot_write(self, store):
        with store.writing():
            store.put("batch", 0, Record({"n": 0}))
        with SQLiteStore(store.path, read_only=True) as reader:
            with reader.reading():
                assert reader.keys("batch") == [0]
                with store.writing():
                    store.put("batch", 1, Record({"n": 1}))
                assert reader.keys("batch") == [0], "one view, whatever is written meanwhile"
            assert reader.keys("batch") == [0, 1]
            with pytest.raises(StoreLockedError, match="opened for reading"), reader.writing():
                pass

    def test_foreign_and_missing_files_are_refused_with_the_reason(self, tmp_path):
        text, database, later, empty = (tmp_path / name for name in ("a.txt", "b.db", "c.db", "d.db"))
        text.write_text("value,count\n1,2\n")
        with pytest.raises(StoreError, match=r"not a store of bpsearch.*begins otherwise than b'value,count"):
            SQLiteStore(text)
        with sqlite3.connect(database) as other:
            other.execute("CREATE TABLE mine (a)")
        other.close()
        with pytest.raises(StoreError, match="expected the application id 0x62707331 in the SQLite file, got 0x0"):
            SQLiteStore(database)
        SQLiteStore(later).close()
        with sqlite3.connect(later) as other:
            other.execute("PRAGMA user_version = 9")
        other.close()
        with pytest.raises(StoreError, match="this program reads version 1, got 9"):
            SQLiteStore(later)
        empty.touch()
        with pytest.raises(StoreError, match="holds no study yet"):
            SQLiteStore(empty, read_only=True)
        SQLiteStore(empty).close()
        with pytest.raises(StoreError, match="there is no store"):
            SQLiteStore(tmp_path / "nowhere.db", read_only=True)
        with pytest.raises(StoreError, match="cannot open the lock"):
            SQLiteStore(tmp_path / "nowhere" / "study.db")


NUMBERS = range(40)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A closed file of 40 records of some ten thousand bytes, and what is in it."""
    path = tmp_path_factory.mktemp("store") / "study.db"
    rng = np.random.default_rng(0)
    records = {number: rng.normal(size=int(rng.integers(1000, 3000))) for number in NUMBERS}
    with SQLiteStore(path) as store:
        for number, array in records.items():
            with store.writing():
                store.put("episodes", number, Record({}, {"a": array}))
    assert not path.with_name("study.db-wal").exists()
    return path, records


def read_all(path, records):
    """Which records can be read, and what is said to be wrong; none may be other than it was written."""
    try:
        store = SQLiteStore(path, read_only=True)
    except StoreError as error:
        return set(), [str(error)]
    with store:
        readable = set()
        for number in NUMBERS:
            try:
                array = store.get("episodes", number).arrays["a"]
            except StoreError:
                continue
            assert array.tobytes() == records[number].tobytes(), "a record was read that is not what was written"
            readable.add(number)
        return readable, store.damages()


def test_bit_flips_are_found_and_the_rest_stays_readable(written, tmp_path):
    path, records = written
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    unreadable = []
    for trial, place in enumerate(rng.integers(0, len(content), 150)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        copy = tmp_path / f"{trial}.db"
        copy.write_bytes(damaged)
        readable, damages = read_all(copy, records)
        assert readable == set(NUMBERS) or damages, f"a flip at {place} went unnoticed"
        unreadable.append(len(NUMBERS) - len(readable))
    assert np.mean(np.array(unreadable) > 0) > 0.8, "most of the file is records"
    assert np.median(unreadable) == 1, "a flip costs one record"


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.6, 0.99])
def test_truncation_is_found_and_what_is_left_stays_readable(written, tmp_path, share):
    path, records = written
    copy = tmp_path / "cut.db"
    shutil.copy(path, copy)
    with copy.open("r+b") as file:
        file.truncate(int(share * path.stat().st_size))
    readable, damages = read_all(copy, records)
    assert damages
    assert readable < set(NUMBERS)
    if share:
        assert any("bytes of the file are" in line for line in damages)
        assert len(readable) >= 40 * share - 2
        with pytest.raises(StoreError, match=r"is damaged: .* \d+ bytes of the file are"):
            SQLiteStore(copy)
    if share >= 0.3:
        with SQLiteStore(copy, read_only=True) as store:
            assert set(store.intact("episodes")) == readable


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


SEARCHES = [
    bps.OnPolicy(),
    bps.OnPolicy(advantage_sum, TabularModel(3, 2, 4, "fixed", 7)),
    bps.BPG(1e-5, baseline=False, patience=3),
    bps.BPG(decaying(0.1, 0.2, 0.7), doubly_robust, center=True, model=TabularModel(3, 2, 4)),
    bps.BPG(normalized(0.05)),
    bps.AdaptiveBPG(per_decision, caution=1.5),
]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: f"{type(search).__name__}-{search.estimator.name}")
def test_a_search_is_made_anew_from_its_description(search):
    assert build(json.loads(json.dumps(describe(search)))) == search


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
    with pytest.raises(InvalidArgumentError, match=r"search.rates cannot be stored.*got <built-in function print>"):
        describe(Inner(print, None), "search")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "study.db"
    with bps.Study(POLICY, bps.BPG(1e-5), discount=0.9, seed=3, store=path) as study:
        study.run(MDP, total=40, batch_size=20)
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policy": random_policy(2, MDP)}, r"policy.digest \(stored '\w{16}', given '\w{16}'\)"),
        ({"search": bps.BPG(1e-4)}, r"search.step_size.initial \(stored 1e-05, given 0.0001\)"),
        ({"search": bps.OnPolicy()}, r"search \(stored 'BPG', given 'OnPolicy'\)"),
        ({"search": bps.BPG(1e-5, per_decision)}, r"search.estimator \(stored 'importance_sampling', given 'per_dec"),
        ({"discount": 1.0}, r"discount \(stored 0.9, given 1.0\)"),
        ({"seed": 4}, r"seed \(stored 3, given 4\)"),
    ],
)
def test_other_settings_are_refused_by_name_with_both_values(stored, changed, message):
    settings = {"policy": POLICY, "search": bps.BPG(1e-5), "discount": 0.9, "seed": 3} | changed
    with pytest.raises(SettingsMismatchError, match=message):
        bps.Study(settings.pop("policy"), settings.pop("search"), **settings, store=stored)
    bps.SQLiteStore(stored).close()  # whoever is refused holds no lock


def test_another_batch_size_is_refused(stored):
    with (
        bps.Study(POLICY, bps.BPG(1e-5), discount=0.9, seed=3, store=stored) as study,
        pytest.raises(SettingsMismatchError, match=r"batch_size \(stored 20, given 10\)"),
    ):
        study.run(MDP, total=100, batch_size=10)


@pytest.mark.parametrize(
    "search",
    [
        bps.BPG(normalized(0.3), center=True, patience=2),
        bps.AdaptiveBPG(doubly_robust, TabularModel.like(MDP), caution=0.0),
        bps.OnPolicy(advantage_sum, TabularModel.like(MDP, "update")),
    ],
    ids=["bpg", "adaptive", "revaluing"],
)
def test_a_resumed_study_is_bit_identical(search, tmp_path):
    """Closed and opened again between all batches, with requests open across them."""
    path = tmp_path / "study.db"

    def play(study_at):
        for stop in (25, 50):
            with study_at() as study:
                study.run(MDP, total=stop, batch_size=10)
        with study_at() as study:
            first, second = study.ask(), study.ask()
        with study_at() as study:
            assert [request.identity for request in study.outstanding] == [first.identity, second.identity]
            study.tell(second.number, bps.sample(MDP, second.behavior, 5, batch=second.number))
            third = study.ask()
        with study_at() as study:
            for request in (first, third):
                study.tell(request.number, bps.sample(MDP, request.behavior, 5, batch=request.number))
        with study_at() as study:
            return study.run(MDP, total=85, batch_size=10)

    memory = bps.Study(POLICY, search, discount=0.9)
    expected = play(lambda: memory)
    found = play(lambda: bps.Study(POLICY, search, discount=0.9, store=path))
    with bps.Study.open(path, read_only=True) as reader:
        damages = reader.verify()
        read = reader.estimate()
        with pytest.raises(StoreLockedError, match="opened for reading"):
            reader.ask()
    assert damages == []
    for estimate in (found, read):
        for name in ("values", "log_weights", "returns"):
            assert getattr(estimate.data, name).tobytes() == getattr(expected.data, name).tobytes()
        assert (estimate.value, estimate.std_error) == (expected.value, expected.std_error)


def test_verify_names_numbers_that_their_episodes_do_not_give(stored, tmp_path):
    path = tmp_path / "study.db"
    shutil.copy(stored, path)
    with SQLiteStore(path) as store:
        record = store.get("batch", 1)
        values = record.arrays["values"].copy()
        values[3] += 1e-12
        with store.writing():
            store.put("batch", 1, Record(record.facts, dict(record.arrays) | {"values": values}))
    with bps.Study.open(path, read_only=True) as study:
        assert study.verify() == ["batch 1 has other values than its episodes give"]
    with SQLiteStore(path) as store, store.writing():
        store.delete("episodes", 0)
    with bps.Study.open(path, read_only=True) as study:
        assert study.verify() == ["episodes 0 is missing"]
    with SQLiteStore(path) as store, store.writing():
        store._write("batch", 1, b"0" * 100)
    with pytest.raises(StoreError, match="batch 1 is damaged"):
        bps.Study.open(path)


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
