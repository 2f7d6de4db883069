"""What every store promises (`bpsearch.store.Store`): a store's own tests inherit from this class."""

import numpy as np
import pytest

from bpsearch.errors import InvalidArgumentError, StoreError
from bpsearch.store.codec import Record

ARRAYS = {
    "64 bit": np.random.default_rng(0).normal(size=(40, 3)),
    "fits 32 bit": np.arange(50) / 8.0,
    "odd floats": np.array([np.nan, -0.0, np.inf, -np.inf, 5e-324, 1.7e308]),
    "another nan": np.array([np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\x7f")[0], np.nan]),
    "32 bit": np.linspace(0, 1, 7, dtype=np.float32),
    "small": np.array([[0, 1], [255, 3]]),
    "negative": np.array([-129, 127]),
    "large": np.array([0, 2**64 - 1], np.uint64),
    "wide": np.array([-(2**62), 2**62]),
    "many": np.arange(10_000, dtype=np.int32) % 7,
    "flags": np.array([True, False, True]),
    "constant": np.full((5, 2), -1.5),
    "zero and minus zero": np.array([0.0, -0.0, 0.0]),
    "constant and minus zero": np.full(9, -0.0),
    "single": np.float64(0.1),
    "whole": np.int64(7),
    "empty": np.zeros((0, 4)),
    "no integers": np.zeros(0, int),
    "complex": np.array([1 + 2j, -0.0j]),
    "strided": np.arange(24.0).reshape(4, 6)[::2, ::3].T,
    "big-endian": np.arange(4, dtype=">f8"),
}


class StoreSuite:
    @pytest.fixture
    def store(self):
        raise NotImplementedError

    @pytest.mark.parametrize("name", ARRAYS)
    def test_an_array_comes_back_bit_by_bit(self, store, name):
        with store.writing():
            store.put("batch", 3, Record({"a": [1, None, "é", 0.1]}, {name: ARRAYS[name]}))
        found = store.get("batch", 3)
        array = found.arrays[name]
        assert found.facts == {"a": [1, None, "é", 0.1]}
        assert array.dtype == ARRAYS[name].dtype.newbyteorder("<")
        assert array.shape == ARRAYS[name].shape
        assert array.tobytes() == np.ascontiguousarray(ARRAYS[name], array.dtype).tobytes()

    def test_objects_are_refused(self, store):
        with pytest.raises(InvalidArgumentError, match="an array of numbers, got the type object"), store.writing():
            store.put("batch", 0, Record({}, {"a": np.array([print])}))
        assert store.keys("batch") == []

    def test_numbers_are_listed_in_order_and_a_second_put_replaces(self, store):
        with store.writing():
            for number in (5, 0, 12):
                store.put("request", number, Record({"n": number}))
            store.put("state", 5, Record({"n": "state"}))
        with store.writing():
            store.put("request", 5, Record({"n": "new"}))
            store.delete("request", 0)
            store.delete("request", 99)
        assert store.keys("request") == [5, 12]
        assert store.get("request", 5).facts == {"n": "new"}
        assert store.get("state", 5).facts == {"n": "state"}
        assert store.damages() == []

    def test_an_error_leaves_nothing_of_its_transaction(self, store):
        with store.writing():
            store.put("batch", 0, Record({"n": "old"}))
            store.put("batch", 1, Record({"n": "stays"}))

        def fail():
            with store.writing():
                store.put("batch", 0, Record({"n": "new"}))
                store.put("batch", 2, Record())
                store.delete("batch", 1)
                store.put("batch", 1, Record({"n": "again"}))
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert store.keys("batch") == [0, 1]
        assert [store.get("batch", number).facts["n"] for number in (0, 1)] == ["old", "stays"]

    def test_what_is_missing_is_named(self, store):
        with pytest.raises(StoreError, match="episodes 4 is missing"):
            store.get("episodes", 4)

    def test_a_record_in_the_place_of_another_is_refused(self, store):
        with store.writing():
            store.put("batch", 0, Record({"n": 0}))
            store.put("batch", 1, Record({"n": 1}))
        with store.writing():
            store._write("batch", 1, store._read("batch", 0))
        with pytest.raises(StoreError, match="batch 1 is damaged"):
            store.get("batch", 1)
        assert store.damages() == ["batch 1 is damaged: its checksum does not fit its content"]

    def test_a_view_is_consistent(self, store):
        with store.writing():
            store.put("batch", 0, Record({"n": 0}))
        with store.reading():
            assert store.keys("batch") == [0]
            assert store.get("batch", 0).facts == {"n": 0}
