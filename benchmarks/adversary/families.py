"""The families of tasks, by name: which assumption each attacks, and from what its parameters are drawn."""

from collections.abc import Mapping
from functools import partial

from benchmarks.adversary import compositions, gymnasium_tables, random_tables, rare
from benchmarks.adversary.family import Family, Task
from benchmarks.adversary.networks import NetworkFamily
from benchmarks.adversary.ranges import Choice, LogUniform, Range, Seed, Uniform

__all__ = ["FAMILIES", "NETWORKS", "TABLES", "Family", "Task", "build"]

EPSILON = LogUniform(1e-5, 1e-1)
PLANNING = Choice((0.95, 0.99, 0.999))
SIGN = Choice((-1.0, 1.0))
YES_OR_NO = Choice((0.0, 1.0))
WALK: dict[str, Range] = {
    "explained": LogUniform(0.01, 1.0),
    "noise": LogUniform(0.001, 1.0),
    "steps": Choice((1, 3, 6)),
    "seed": Seed(),
}
RANDOM: dict[str, Range] = {
    "states": Choice((5, 10)),
    "actions": Choice((2, 4)),
    "horizon": Choice((5, 20)),
    "concentration": LogUniform(0.03, 3.0),
    "seed": Seed(),
}
RARE_LUCK: dict[str, Range] = {
    "probability": LogUniform(1e-3, 1e-1),
    "size": LogUniform(1.0, 300.0),
    "early": YES_OR_NO,
    "steps": Choice((1, 3, 6)),
    "seed": Seed(),
}

_SYNTHETIC = (
    Family(
        "luck-chain",
        "states reached only by luck of the environment, with rare actions there",
        rare.luck_chain,
        {
            "length": Choice((3, 5, 10)),
            "reach": LogUniform(0.02, 0.9),
            "stay": Uniform(0.0, 0.5),
            "epsilon": EPSILON,
            "actions": Choice((2, 4)),
            "seed": Seed(),
        },
    ),
    Family(
        "rare-effect",
        "a rare action with a deterministic effect",
        rare.rare_effect,
        {
            "probability": LogUniform(1e-4, 1e-1),
            "effect": LogUniform(0.1, 100.0),
            "sign": SIGN,
            "ends": YES_OR_NO,
            **WALK,
        },
    ),
    Family(
        "rare-noise",
        "a rare action that opens noise of the environment, without an effect on the mean",
        rare.rare_noise,
        {
            "probability": LogUniform(1e-3, 1e-1),
            "size": LogUniform(0.1, 100.0),
            "skew": LogUniform(0.05, 0.5),
            "sign": SIGN,
            **WALK,
        },
    ),
    Family(
        "rare-nothing",
        "rare actions without any effect; all noise is the environment's",
        rare.rare_nothing,
        {
            "probability": LogUniform(1e-4, 1e-1),
            "noise": LogUniform(0.01, 100.0),
            "luck": Uniform(0.02, 0.98),
            "steps": Choice((1, 3, 10)),
            "actions": Choice((2, 4)),
        },
    ),
    Family(
        "jackpot",
        "rare jackpots of the environment under noise that the actions explain",
        partial(rare.rare_luck, sign=1.0),
        RARE_LUCK,
    ),
    Family(
        "disaster",
        "rare disasters of the environment under noise that the actions explain",
        partial(rare.rare_luck, sign=-1.0),
        RARE_LUCK,
    ),
    Family(
        "heavy-tails",
        "a geometric ladder of rewards with falling probabilities",
        rare.heavy_tails,
        {
            "tail": Uniform(1.05, 3.0),
            "rungs": Choice((4, 6, 8)),
            "factor": Uniform(1.5, 3.0),
            "sign": SIGN,
            "explained": LogUniform(0.1, 30.0),
            "lift": LogUniform(0.2, 5.0),
            "steps": Choice((1, 3)),
            "seed": Seed(),
        },
    ),
    Family(
        "survival",
        "hundreds of steps among few states, a bonus for each",
        random_tables.survival,
        {
            "horizon": Choice((100, 300)),
            "states": Choice((3, 6)),
            "hazard": LogUniform(1e-4, 0.05),
            "risk": LogUniform(0.01, 0.9),
            "epsilon": LogUniform(1e-4, 0.3),
            "penalty": Choice((0.0, 100.0)),
            "seed": Seed(),
        },
    ),
    Family(
        "near-deterministic",
        "policies with ε from 0.1 to 1e-5 on random tables",
        random_tables.near_deterministic,
        {**RANDOM, "epsilon": EPSILON},
    ),
    Family(
        "modes",
        "starts of several modes, one of them rare",
        random_tables.modes,
        {
            "starts": Choice((2, 4)),
            "gap": LogUniform(0.1, 100.0),
            "rarest": LogUniform(0.005, 0.5),
            "explained": LogUniform(0.1, 10.0),
            "noise": LogUniform(0.001, 1.0),
            "steps": Choice((1, 3)),
            "seed": Seed(),
        },
    ),
    Family(
        "binary",
        "returns in {0, 1}",
        random_tables.binary,
        {
            "layers": Choice((2, 4)),
            "width": Choice((2, 4)),
            "actions": Choice((2, 3)),
            "success": LogUniform(0.003, 0.5),
            "flipped": YES_OR_NO,
            "effect": LogUniform(0.1, 5.0),
            "epsilon": LogUniform(1e-4, 0.5),
            "seed": Seed(),
        },
    ),
    Family(
        "random",
        "nothing: random tables with random policies",
        random_tables.random_table,
        {**RANDOM, "temperature": LogUniform(0.2, 3.0)},
    ),
)

# Small enough for time to become a part of the state.
_SHORT = {"states": Choice((5,)), "actions": Choice((2,)), "horizon": Choice((5,))}
_TINY = {"steps": Choice((1, 3))}
_BASES = {family.name: family for family in _SYNTHETIC}
_SMALL_BASES = {
    **{name: _BASES[name].with_ranges(**_TINY) for name in ("rare-effect", "rare-noise", "jackpot", "disaster")},
    **{name: _BASES[name] for name in ("binary", "modes")},
    **{name: _BASES[name].with_ranges(**_SHORT) for name in ("near-deterministic", "random")},
}


def _numbers(bases: Mapping[str, Family]) -> Choice:
    return Choice(tuple(float(number) for number in range(len(bases))))


_FAMILIES = (
    Family(
        "frozen-lake-4x4",
        "the slippery lake with its own dynamics, the optimal policy plus ε",
        partial(gymnasium_tables.frozen_lake, size=4),
        {"epsilon": EPSILON, "planning": PLANNING},
    ),
    Family(
        "frozen-lake-8x8",
        "the same with 64 states",
        partial(gymnasium_tables.frozen_lake, size=8),
        {"epsilon": EPSILON, "planning": PLANNING},
    ),
    *_SYNTHETIC,
    Family(
        "constant",
        "a constant on top of a task, paid at any one step",
        partial(compositions.constant, _SMALL_BASES),
        {
            "base": _numbers(_SMALL_BASES),
            "seed": Seed(),
            "when": Choice((0.0, 0.5, 1.0)),
            "size": LogUniform(1.0, 1000.0),
            "sign": SIGN,
        },
    ),
    Family(
        "signs-and-discounts",
        "other signs, units and discounts of a task",
        partial(compositions.signs_and_discounts, _BASES),
        {
            "base": _numbers(_BASES),
            "seed": Seed(),
            "scale": LogUniform(1e-3, 1e3),
            "sign": SIGN,
            "myopia": LogUniform(1e-3, 0.5),
        },
    ),
    Family(
        "many-states",
        "hundreds of states and few episodes",
        random_tables.many_states,
        {
            "states": Choice((100, 200, 300)),
            "branches": Choice((1, 3)),
            "horizon": Choice((10, 30)),
            "temperature": LogUniform(0.2, 3.0),
            "noise": LogUniform(0.01, 1.0),
            "seed": Seed(),
        },
    ),
    Family(
        "zero-variance",
        "every episode has the same return",
        random_tables.zero_variance,
        {
            "layers": Choice((2, 6)),
            "width": Choice((1, 3)),
            "actions": Choice((2, 3)),
            "kind": Choice((0, 1, 2)),
            "scale": LogUniform(0.01, 1000.0),
            "discount": Choice((0.9, 1.0)),
            "seed": Seed(),
        },
    ),
    Family(
        "cliff-walking",
        "CliffWalking with its own dynamics, the optimal policy plus ε",
        gymnasium_tables.cliff_walking,
        {"epsilon": EPSILON, "planning": PLANNING, "limit": Choice((100, 200))},
    ),
    Family(
        "taxi",
        "Taxi with its own dynamics, 3,000 parameters, the optimal policy plus ε",
        gymnasium_tables.taxi,
        {"epsilon": EPSILON, "planning": PLANNING, "limit": Choice((100, 200))},
    ),
    Family(
        "mixture",
        "two tasks, one after the other or one of them by chance",
        partial(compositions.mixture, _BASES),
        {
            "first": _numbers(_BASES),
            "first_seed": Seed(),
            "second": _numbers(_BASES),
            "second_seed": Seed(),
            "scale": LogUniform(0.01, 100.0),
            "share": Choice((0.05, 0.5, 0.95, 1.0, 1.0, 1.0)),
        },
    ),
)

TABLES: dict[str, Family] = {family.name: family for family in _FAMILIES}
NETWORKS: dict[str, Family] = {family.name: family for family in map(NetworkFamily.of, _FAMILIES)}
FAMILIES: dict[str, Family] = {**TABLES, **NETWORKS}


def build(family: str, parameters: Mapping[str, float]) -> Task:
    """The task of a family with these parameters."""
    if family not in FAMILIES:
        raise ValueError(f"{family!r} is not one of {', '.join(FAMILIES)}")
    return FAMILIES[family].build(parameters)
