"""The JSON of results: what it holds, and the schemas that are published for it."""

import dataclasses
import json
import math
import typing
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from bpsearch.inference.diagnostics import Diagnostics
from bpsearch.inference.pilot import Plan, Quantity
from bpsearch.inference.stopping import Ended, Target
from bpsearch.report.json import SCHEMA, DiagnosticsJson, EstimateJson, load_schema, plain
from test_words import estimate_of, events, plain_returns, weighted

PLAN_SCHEMA = load_schema("plan-1")


def check(result, schema):
    """It is valid as it is, and the same after a round trip through JSON, which has no number that is not finite."""
    jsonschema.Draft202012Validator(schema).validate(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


ESTIMATES = {
    "returns": partial(estimate_of, plain_returns()),
    "bounded returns": partial(estimate_of, plain_returns(), return_range=(-100.0, 50.0)),
    "weighted": weighted,
    "weighted, bounded": partial(weighted, return_range=(0.0, 2.0), weight_bound=4.0),
    "event": partial(events, 3, 200),
    "no event": partial(events, 0, 200),
    "one episode": partial(estimate_of, [2.0]),
    "no spread": partial(estimate_of, [2.0, 2.0, 2.0, 2.0]),
    "interrupted": partial(
        estimate_of, plain_returns(), ended=Ended.INTERRUPTED, waiting=(3,), abandoned=(1,), no_help="it is so"
    ),
    "biased": partial(estimate_of, plain_returns(), unbiased=False, explained=0.5),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates_are_valid_by_the_schema(name):
    estimate = ESTIMATES[name]()
    result = estimate.to_json()
    check(result, SCHEMA)
    assert result["value"] == estimate.value
    assert result["std_error"] == estimate.std_error
    for key, interval in (
        ("interval", estimate.interval()),
        ("anytime_interval", estimate.anytime_interval()),
        ("certified_interval", estimate.certified_interval()),
    ):
        assert result[key] == (None if interval is None else list(interval))
        kind = result[key.removesuffix("interval") + "kind" if key != "interval" else "interval_kind"]
        assert kind.startswith("unknown") == (interval is None)
    assert result["diagnostics"] == dataclasses.asdict(estimate.diagnostics)
    assert result["event"] == (estimate.event or None)
    assert (result["upper_bound"] is None) == (not estimate.event) == (result["certificate"] is None)


def test_what_is_not_finite_is_null():
    lost = Diagnostics(math.nan, math.inf, math.nan, math.inf, math.inf, -math.inf)
    found = estimate_of(plain_returns(), diagnostics=lost, value=math.inf, explained=math.nan)
    result = dataclasses.replace(found, settings={"time": math.inf}).to_json()
    check(result, SCHEMA)
    assert result["value"] is result["explained"] is result["interval"] is result["savings"] is None
    assert set(result["diagnostics"].values()) == {None}
    assert result["settings"] == {"time": None}


def test_settings_of_any_kind_are_written():
    class Policy:
        pass

    def failed(batch):
        return batch

    settings = {
        "policy": Policy(),
        "env": Path("a/b"),
        "failure": failed,
        "seed": np.int64(3),
        "discount": np.float32(0.5),
        "target": Target(halfwidth=0.5),
        "env_kwargs": {"size": (4, 4), "name": None},
    }
    result = estimate_of(plain_returns(), settings=settings).to_json()
    check(result, SCHEMA)
    assert result["settings"] == {
        "policy": "<Policy>",
        "env": "a/b",
        "failure": "<failed>",
        "seed": 3,
        "discount": 0.5,
        "target": {"halfwidth": 0.5, "relative": None, "seconds": None, "level": 0.95, "kind": "asymptotic"},
        "env_kwargs": {"size": [4, 4], "name": None},
    }
    assert plain(result["settings"]) == result["settings"]


def test_the_schema_refuses_what_is_not_an_estimate():
    result = dict(estimate_of(plain_returns()).to_json())
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert validator.is_valid(result)
    for change in (
        {"more": 1},
        {"schema": "bpsearch estimate 2"},
        {"interval": [1.0]},
        {"ended": "why"},
        {"episodes": 0},
    ):
        assert not validator.is_valid(result | change)
    assert not validator.is_valid({name: value for name, value in result.items() if name != "anytime_kind"})


@pytest.mark.parametrize("schema", [SCHEMA, PLAN_SCHEMA], ids=["estimate", "plan"])
def test_the_schemas_are_schemas_with_every_field_described(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    objects = [schema, *schema.get("$defs", {}).values()]
    objects += [field for field in schema["properties"].values() if "properties" in field]
    for part in objects:
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])
        for name, field in part["properties"].items():
            assert field["description"].endswith((".", '".')), name


JSON_TYPES = {
    float: "number", int: "integer", str: "string", bool: "boolean", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "schema"), [(EstimateJson, SCHEMA), (DiagnosticsJson, SCHEMA["properties"]["diagnostics"])]
)
def test_the_typed_dictionaries_are_the_schema(typed, schema):
    hints = typing.get_type_hints(typed)
    assert typed.__required_keys__ == set(schema["required"]) == set(schema["properties"]) == set(hints)
    for name, hint in hints.items():
        field = schema["properties"][name]
        if "const" in field:
            assert typing.get_args(hint) == (field["const"],)
        elif "enum" in field:
            assert hint is str
            assert field["enum"] == [str(ended) for ended in Ended]
        elif typing.is_typeddict(hint):
            assert field["type"] == "object"
        else:
            parts = typing.get_args(hint) if isinstance(hint, typing.types.UnionType) else (hint,)
            named = {JSON_TYPES[typing.get_origin(part) or part] for part in parts}
            assert named == set(field["type"] if isinstance(field["type"], list) else [field["type"]]), name


def test_plans_are_valid_by_their_schema():
    unknown = Plan(200, 1.5, None, 0.0, None, None, None, 0.95, None, None, "", ("all returns are the same",))
    known = dataclasses.replace(
        unknown,
        std_error=0.1,
        variance=2.0,
        action_share=Quantity(0.5, 0.4, 0.6),
        savings=Quantity(2.0, None, None),
        halfwidth=0.1,
        monte_carlo_episodes=Quantity(800.0, 700.0, 900.0),
        auto_episodes=Quantity(400.0, 300.0, 500.0),
        no_gain="starts make it",
        settings={"policy": "gridworld-early", "seed": 0},
    )
    for plan in (unknown, known):
        check(plan.to_json(), PLAN_SCHEMA)
    fields = {field.name for field in dataclasses.fields(Plan)}
    assert set(PLAN_SCHEMA["properties"]) == fields | {"schema", "largest_savings"}
    quantity = {field.name for field in dataclasses.fields(Quantity)}
    assert set(PLAN_SCHEMA["$defs"]["quantity"]["properties"]) == quantity
