"""A comparison as JSON: what it holds, by type; `SCHEMA` describes it to other programs."""

from typing import Literal, TypedDict

from bpsearch.inference.comparison import Comparison, Difference
from bpsearch.report import comparison_words as words
from bpsearch.report.json import EstimateJson, Json, ends, estimate_json, finite, load_schema, plain

SCHEMA = load_schema("comparison-1")


class DifferenceJson(TypedDict):
    """`Difference`; see there."""

    one: str
    other: str
    difference: float | None
    interval: list[float] | None
    fixed_interval: list[float] | None
    decision: str
    decided_at: int | None
    episodes: int
    shared: int
    savings: float | None
    tight_savings: float | None
    pairing_savings: float | None
    control_savings: float | None


class RankJson(TypedDict):
    """`Rank`; see there."""

    name: str
    value: float | None
    best: int
    worst: int


class ComparisonJson(TypedDict):
    """`Comparison`; what a field means is in the schema. None for what is unknown, and for what JSON cannot hold."""

    schema: Literal["bpsearch comparison 1"]
    verdict: str
    differences: list[DifferenceJson]
    ranking: list[RankJson]
    level: float
    margin: float | None
    reference: str | None
    kind: str
    interval_kind: str
    fixed_kind: str
    ended: str
    episodes: int
    dropped: list[str]
    estimates: dict[str, EstimateJson]
    doubts: list[str]
    settings: dict[str, Json]


def comparison_json(comparison: Comparison) -> ComparisonJson:
    """What a program wants to know of a comparison; `SCHEMA` describes it."""
    design = comparison.design
    return {
        "schema": "bpsearch comparison 1",
        "verdict": words.headline(comparison),
        "differences": [_difference(found, design.level) for found in comparison.differences],
        "ranking": [
            {"name": rank.name, "value": finite(rank.value), "best": rank.best, "worst": rank.worst}
            for rank in comparison.ranking
        ],
        "level": design.level,
        "margin": design.margin,
        "reference": design.reference,
        "kind": design.kind,
        "interval_kind": words.interval_kind(comparison),
        "fixed_kind": words.fixed_kind(comparison),
        "ended": str(comparison.ended),
        "episodes": comparison.episodes,
        "dropped": list(comparison.dropped),
        "estimates": {name: estimate_json(estimate) for name, estimate in comparison.estimates.items()},
        "doubts": list(words.doubts(comparison)),
        "settings": {name: plain(value) for name, value in comparison.settings.items()},
    }


def _difference(found: Difference, level: float) -> DifferenceJson:
    return {
        "one": found.one,
        "other": found.other,
        "difference": finite(found.value),
        "interval": ends(found.interval(level)),
        "fixed_interval": ends(found.fixed_interval(level)),
        "decision": str(found.decision),
        "decided_at": found.decided_at,
        "episodes": len(found.pairs),
        "shared": int(found.shared.sum()),
        "savings": finite(found.savings),
        "tight_savings": finite(found.tight_savings),
        "pairing_savings": finite(found.pairing_savings),
        "control_savings": finite(found.control_savings),
    }
