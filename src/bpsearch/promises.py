"""What an interval promises, in words; the measured numbers are those of benchmarks/coverage.py (docs/intervals.md)."""

import math

# Coverage of nominal 95% intervals over 2,000 studies per case: lowest and highest case.
MEASURED = {
    "fixed, light": ("95%", "97%"),
    "fixed, heavy": ("43%", "81%"),
    "fixed, looking": ("14%", "100%"),
}

BIASED = "no guarantee: the values are biased by a model learned from the same episodes"
NO_RANGE = "unknown: it needs to know between which numbers every return lies (return_range)"


def fixed_kind(ended: str, *, binomial: bool, weighted: bool) -> str:
    """Of the interval for a number of episodes fixed in advance: exact for a count, else by a central limit theorem."""
    name = "martingale central limit theorem, for a number of episodes fixed in advance"
    if binomial:
        name = "Clopper and Pearson's, exact for a number of episodes fixed in advance"
    if ended == "budget":
        if binomial:
            return name
        if not weighted:
            return f"{name}; approximate, and too narrow if rare episodes that have not come yet make the variance"
        light, heavy = (MEASURED[f"fixed, {weights}"] for weights in ("light", "heavy"))
        return (
            f"{name}; approximate: 95% intervals were measured to hold in {_span(light)} of studies with light "
            f"or bounded importance weights, in {_span(heavy)} with heavy ones"
        )
    return (
        f"{name}, which this one was not: it ended by {_ENDS[ended]}. 95% intervals of studies that end when they look "
        f"narrow were measured to hold in {_span(MEASURED['fixed, looking'])}"
    )


_ENDS = {"target": "reaching its target", "time limit": "its time limit", "interrupted": "an interruption"}


def out_of_range(returns: tuple[float, float], return_range: tuple[float, float]) -> str:
    """Why there is no anytime-valid interval if the range was wrong."""
    low, high = return_range
    return (
        f"unknown: returns from {returns[0]:.6g} to {returns[1]:.6g} were seen, beyond the given range [{low:.6g}, "
        f"{high:.6g}]; give one that holds every return that can happen"
    )


def anytime_kind(return_range: tuple[float, float], weight_bound: float, *, moved: bool) -> str:
    """Of the confidence sequence."""
    low, high = return_range
    weights = ""
    if moved:
        known = math.isfinite(weight_bound)
        weights = f", importance weights of at most {weight_bound:.4g}" if known else ", importance weights of any size"
    return (
        f"empirical Bernstein confidence sequence: holds with at least its level however often one looks and whenever "
        f"one stops, for any returns in [{low:.6g}, {high:.6g}]{weights}"
    )


def certificate(episodes: int, weight_bound: float, *, moved: bool, level: float = 0.95) -> str:
    """What can be promised about the probability of an event, and what cannot."""
    delta = 1.0 - level
    best = math.log(1.0 / delta) / episodes
    if not moved:
        return (
            f"without assumptions {episodes} episodes cannot certify a probability below about log(1/{delta:.2g})/n = "
            f"{best:.2g} at {level:.0%}"
        )
    if not math.isfinite(weight_bound):
        return (
            f"without assumptions {episodes} episodes cannot certify a probability below about {best:.2g} at "
            f"{level:.0%}, and failures that the behaviors have made rarer than the policy does may be missed "
            f"altogether: a defensive mixture (defensive=...) bounds that"
        )
    return (
        f"without assumptions {episodes} episodes, a share of {1.0 / weight_bound:.4g} of them from the policy itself, "
        f"cannot certify a probability below about {best * weight_bound:.2g} at {level:.0%}: importance sampling "
        f"sharpens the estimate, not the certificate"
    )


def _span(pair: tuple[str, str]) -> str:
    return pair[0] if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"
