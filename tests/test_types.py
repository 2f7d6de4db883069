"""Public signatures say what goes in and what comes out: no `Any`, and arrays that have the shapes they are said to."""

import collections.abc
import inspect
import subprocess
import sys
import types
import typing
from dataclasses import fields
from functools import cached_property

import numpy as np
import pandas
import pytest
from jaxtyping import jaxtyped
from numpy.typing import DTypeLike

import bpsearch as bps
from bpsearch._core.arrays import Array, Observations
from bpsearch.estimands import Estimand
from bpsearch.inference.judgement import Judgement
from bpsearch.inference.valuation import ValuedBatch
from bpsearch.policies.chosen_starts import StartChoice
from bpsearch.report import comparison_json
from bpsearch.report import json as report_json
from bpsearch.study.journal import Journal

ROOMS = [name for name in bps.__all__ if inspect.ismodule(getattr(bps, name))]
CONTRACTS = (bps.Search, bps.Runner, bps.ControlVariate, Journal, Estimand, bps.Valuation)
# Where a signature says `Any` for a reason.
ALLOWED = {
    "FunctionPolicy.function": "a user's function takes what the user's environment observes",
    "FunctionPolicy.__init__.function": "the same",
    "from_jax.apply": "a user's function takes the user's parameters",
    "Estimate.to_dataframe": "pandas need not be installed",
    "GymnasiumEnv": "Gymnasium's interface, in Gymnasium's types",
    "GymnasiumVectorEnv": "the same",
}
# Names that are imported for types alone.
FOR_TYPES = {
    "EstimateJson": report_json.EstimateJson,
    "ComparisonJson": comparison_json.ComparisonJson,
    "pandas": pandas,
    "StartChoice": StartChoice,
}
OPERATORS = ("__init__", "__call__", "__add__", "__len__")


def public():
    """Every public name, and those of the rooms, with where it stands; classes of other packages are theirs."""
    found = {name: getattr(bps, name) for name in bps.__all__}
    for room in ROOMS:
        inside = found.pop(room)
        found |= {f"{room}.{name}": getattr(inside, name) for name in getattr(inside, "__all__", ())}
    found |= {contract.__name__: contract for contract in CONTRACTS}
    return {name: value for name, value in found.items() if getattr(value, "__module__", "").startswith("bpsearch")}


def signatures(name, value):
    """The functions that a public name stands for, and the class itself for its fields."""
    if inspect.isfunction(value):
        yield name, inspect.unwrap(value)
    if not inspect.isclass(value):
        return
    yield name, value
    for member, found in inspect.getmembers_static(value):
        if member.startswith("_") and member not in OPERATORS:
            continue
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        elif isinstance(found, cached_property):
            found = found.func
        found = inspect.unwrap(found) if inspect.isfunction(found) else found
        if inspect.isfunction(found) and found.__module__.startswith("bpsearch"):
            yield f"{name}.{member}", found


def hints_of(value):
    """What a function or the fields of a class say; the classes of other packages that it is made of are theirs."""
    if not inspect.isclass(value):
        return typing.get_type_hints(value, localns=FOR_TYPES)
    own = [cls for cls in reversed(value.__mro__) if cls.__module__.startswith("bpsearch")]
    return {name: hint for cls in own for name, hint in inspect.get_annotations(cls, eval_str=True).items()}


def says_any(hint):
    """Whether an annotation is `Any`, or a union, a container or a function of it.

    The values of settings by name may be anything. So may the parameter of another class: `Space[Any]` is every space,
    `Search[Any]` every search.
    """
    if hint is typing.Any:
        return True
    if hint == DTypeLike:
        return False
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (dict, collections.abc.Mapping) and inner == (str, typing.Any):
        return False
    if origin is collections.abc.Callable:
        arguments, result = inner
        return says_any(result) or (arguments is not ... and any(map(says_any, arguments)))
    through = (typing.Union, types.UnionType, typing.Annotated, tuple, list, dict, set, frozenset)
    passes = origin in through or getattr(origin, "__module__", "") == "collections.abc"
    return passes and any(map(says_any, inner))


SIGNATURES = {
    where: function for name, value in sorted(public().items()) for where, function in signatures(name, value)
}


def test_the_walk_meets_the_contracts():
    assert {"evaluate", "Search.step", "Runner.run", "Journal.append", "Policy.act"} <= set(SIGNATURES)
    assert len(SIGNATURES) > 300
    for hint, expected in (
        (typing.Any, True),
        (list[typing.Any], True),
        (typing.Any | None, True),
        (collections.abc.Callable[[typing.Any], int], True),
        (dict[str, typing.Any], False),
        (dict[int, typing.Any], True),
        (bps.Search[typing.Any] | None, False),
    ):
        assert says_any(hint) == expected, hint


def test_no_public_signature_says_any():
    loose = {}
    for where, function in SIGNATURES.items():
        hints = hints_of(function)
        loose |= {f"{where}.{name}": hint for name, hint in hints.items() if says_any(hint)}
    kept = {where: hint for where, hint in loose.items() if not any(name in where for name in ALLOWED)}
    assert not kept, "\n".join(f"{where}: {hint}" for where, hint in kept.items())
    for name in ALLOWED:
        assert any(name in where for where in loose), f"{name} is out of date"


def test_every_public_function_has_annotations():
    for where, function in SIGNATURES.items():
        if inspect.isclass(function):
            continue
        for name, parameter in inspect.signature(function).parameters.items():
            named = parameter.annotation is not inspect.Parameter.empty
            assert named or name in ("self", "cls"), f"{where} does not say what {name} is"


def check_shapes(instance):
    """Every field of a dataclass has the shape and type that its annotation says; the same name is the same number."""
    hints = typing.get_type_hints(type(instance))
    with jaxtyped("context"):
        for field in fields(instance):
            hint, value = hints[field.name], getattr(instance, field.name)
            if typing.get_origin(hint) is not tuple:
                assert isinstance(value, hint), f"{field.name} of {type(instance).__name__} is no {hint}: {value!r}"


@pytest.fixture(scope="module")
def batch():
    policy, mdp = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
    return bps.sample(mdp, policy, 30, seed=0)


def test_data_have_the_shapes_of_their_annotations(batch):
    check_shapes(batch)
    valuation = bps.Valuation(control_variates=(bps.Scores(), bps.TabularAdvantages()))
    valued = valuation.value(valuation.init(bps.shipped_policy("gridworld-early")), batch)
    assert isinstance(valued, ValuedBatch)
    check_shapes(valued)
    check_shapes(Judgement.of(np.ones(7), np.ones((3, 7)), np.zeros((3, 7))))
    _, info = bps.BPG(1e-5).step(bps.BPG(1e-5).init(bps.shipped_policy("gridworld-early")), batch)
    check_shapes(info)


def test_a_wrong_shape_is_found(batch):
    """The check above is able to fail."""
    wrong = object.__new__(bps.Trajectories)
    for field in fields(batch):
        object.__setattr__(wrong, field.name, getattr(batch, field.name))
    object.__setattr__(wrong, "mask", batch.mask[:-1])
    with pytest.raises(AssertionError, match="mask of Trajectories"):
        check_shapes(wrong)
    object.__setattr__(wrong, "mask", batch.mask.astype(float))
    with pytest.raises(AssertionError, match="mask of Trajectories"):
        check_shapes(wrong)


def test_arrays_are_known_without_their_library():
    import jax.numpy as jnp

    for array in (np.zeros(3), np.float64(0.0), jnp.zeros(3)):
        assert isinstance(array, Array)
    assert not isinstance([0.0], Array)
    assert isinstance({"camera": np.zeros(3)}, Observations)
    program = "import sys, bpsearch._core.arrays; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("program", ["import bpsearch", "from bpsearch.cli import main"])
def test_types_cost_nothing_at_import(program):
    loaded = f"import sys; {program}; sys.exit('jaxtyping' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
