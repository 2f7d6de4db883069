"""Results as JSON: what it holds, by type, and the schemas that describe it to other programs."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from bpsearch.inference.diagnostics import Diagnostics
from bpsearch.inference.estimate import Estimate, Interval
from bpsearch.inference.stopping import Target
from bpsearch.report import words

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class DiagnosticsJson(TypedDict):
    """`Diagnostics`; see there."""

    effective_sample_size: float | None
    largest_weight_share: float | None
    largest_value_share: float | None
    monte_carlo_variance: float | None
    variance: float | None
    final_variance: float | None


class EstimateJson(TypedDict):
    """`Estimate`; what a field means is in the schema. None for what is unknown, and for what JSON cannot hold."""

    schema: Literal["bpsearch estimate 1"]
    value: float | None
    std_error: float | None
    interval: list[float] | None
    interval_level: float
    interval_kind: str
    tight_interval: list[float] | None
    anytime_interval: list[float] | None
    anytime_kind: str
    certified_interval: list[float] | None
    certified_kind: str
    ended: str
    event: str | None
    upper_bound: float | None
    certificate: str | None
    episodes: int
    method: str
    unbiased: bool
    savings: float | None
    tight_savings: float | None
    savings_basis: str
    explained: float | None
    explained_by: dict[str, float]
    unused: list[str]
    diagnostics: DiagnosticsJson
    unreliable: list[str]
    hopeless: str | None
    settings: dict[str, Json]
    deterministic: bool | None
    notes: list[str]
    waiting: list[int]
    abandoned: list[int]


def load_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of this name: "estimate-1" of estimates, "plan-1" of plans, "comparison-1" of comparisons."""
    text = (files("bpsearch.report") / "schemas" / f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


SCHEMA = load_schema("estimate-1")


def estimate_json(estimate: Estimate) -> EstimateJson:
    """What a program wants to know of an estimate; `SCHEMA` describes it."""
    return {
        "schema": "bpsearch estimate 1",
        "value": finite(estimate.value),
        "std_error": finite(estimate.std_error),
        "interval": ends(estimate.interval()),
        "interval_level": 0.95,
        "interval_kind": words.interval_kind(estimate),
        "tight_interval": ends(estimate.tight_interval()),
        "anytime_interval": ends(estimate.anytime_interval()),
        "anytime_kind": words.anytime_kind(estimate),
        "certified_interval": ends(estimate.certified_interval()),
        "certified_kind": words.certified_kind(estimate),
        "ended": str(estimate.ended),
        "event": estimate.event or None,
        "upper_bound": finite(estimate.upper_bound()),
        "certificate": words.certificate(estimate) or None,
        "episodes": int(estimate.episodes),
        "method": estimate.method,
        "unbiased": bool(estimate.unbiased),
        "savings": finite(estimate.savings),
        "tight_savings": finite(estimate.tight_savings),
        "savings_basis": words.savings_basis(estimate),
        "explained": finite(estimate.explained),
        "explained_by": {kind: float(share) for kind, share in estimate.explained_by.items()},
        "unused": list(estimate.unused),
        "diagnostics": _diagnostics(estimate.diagnostics),
        "unreliable": list(words.unreliable(estimate)),
        "hopeless": words.hopeless(estimate) or None,
        "settings": {name: plain(value) for name, value in estimate.settings.items()},
        "deterministic": estimate.deterministic,
        "notes": list(estimate.notes),
        "waiting": [int(number) for number in estimate.waiting],
        "abandoned": [int(number) for number in estimate.abandoned],
    }


def plain(value: Any) -> Json:
    """A setting as JSON has it: an object that JSON does not have is named by its kind, as in "<SoftmaxTable>"."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Target):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return f"<{getattr(value, '__name__', type(value).__name__)}>"


def _diagnostics(found: Diagnostics) -> DiagnosticsJson:
    return {
        "effective_sample_size": finite(found.effective_sample_size),
        "largest_weight_share": finite(found.largest_weight_share),
        "largest_value_share": finite(found.largest_value_share),
        "monte_carlo_variance": finite(found.monte_carlo_variance),
        "variance": finite(found.variance),
        "final_variance": finite(found.final_variance),
    }


def finite(number: float | None) -> float | None:
    """The number, or None if JSON cannot hold it."""
    return float(number) if number is not None and math.isfinite(number) else None


def ends(interval: Interval | None) -> list[float] | None:
    """The ends of an interval, or None if JSON cannot hold them."""
    if interval is None or not all(map(math.isfinite, interval)):
        return None
    return [float(end) for end in interval]
