"""What an estimate says, in words: for the terminal, notebooks, the page and JSON."""

import math
from dataclasses import dataclass
from html import escape

from bpsearch.inference.estimate import Estimate, Interval
from bpsearch.inference.intervals import binomial_upper_bound
from bpsearch.inference.stopping import Ended
from bpsearch.report.numbers import brackets, count, percent, round_to, significant, spread

MIN_EFFECTIVE_EPISODES = 10.0
LARGE_SHARE = 0.5  # of all weight or variance, in one episode
NOTHING_EXPLAINED = 0.03  # a share of the variance that is not worth a search
ENOUGH_TO_JUDGE = 300  # episodes
WORTH_SAYING = 1.05  # savings
ROUNDING = 1e-12  # of the returns

FIXED, ANYTIME, CERTIFIED = "95% interval", "95% anytime-valid interval", "95% certified interval"
_BIASED = "no guarantee: the values are biased by a model learned from the same episodes"
_ENDS = {
    Ended.TARGET: "reaching its target",
    Ended.VERDICT: "a verdict",
    Ended.TIME_LIMIT: "its time limit",
    Ended.INTERRUPTED: "an interruption",
}


@dataclass(frozen=True)
class Promise:
    """An interval and what it promises; without one, the reason.

    Attributes:
        name: what people call it.
        interval: its ends; None if they are unknown.
        shown: the ends as text.
        kind: what it promises, or why it is unknown.
    """

    name: str
    interval: Interval | None
    shown: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name}{'' if self.interval is None else ' ' + self.shown}: {self.kind}"


def promises(estimate: Estimate) -> tuple[Promise, Promise, Promise]:
    """The three 95% intervals: each promises more than the one before, and is wider."""
    fixed, anytime, certified = estimate.interval(), estimate.anytime_interval(), estimate.certified_interval()
    value = estimate.value
    return (
        Promise(FIXED, fixed, brackets(fixed, value), interval_kind(estimate)),
        Promise(ANYTIME, anytime, brackets(anytime, value), anytime_kind(estimate)),
        Promise(CERTIFIED, certified, brackets(certified, value), certified_kind(estimate)),
    )


def interval_kind(estimate: Estimate) -> str:
    """What `estimate.interval()` promises."""
    if estimate.event and estimate.error is None and not estimate.counted:
        return certified_kind(estimate)
    if estimate.interval() is None:
        return "unknown, because the values do not vary or are too few"
    if not estimate.unbiased:
        return _BIASED
    fixed = "for a number of episodes fixed in advance"
    if estimate.ended != Ended.BUDGET:
        return f"{fixed}, which this one was not: it ended by {_ENDS[estimate.ended]}"
    if estimate.counted:
        return f"exact, {fixed}"
    if roomy(estimate):
        return f"approximate, {fixed}; {room(estimate)}"
    if estimate.data.weighted:
        return f"approximate, {fixed}; too narrow if a few importance weights are much larger than the others"
    return f"approximate, {fixed}; too narrow if rare episodes that have not come yet make most of the variance"


def roomy(estimate: Estimate) -> bool:
    """Whether the interval is wider than the spread of the values tells."""
    tight, honest = estimate.tight_error, estimate.error
    return honest is not None and (tight is None or honest.variance > 1.01 * tight.variance)


def room(estimate: Estimate) -> str:
    """What the episodes cannot have shown, and how the interval allows for it; empty if it does not."""
    if not roomy(estimate):
        return ""
    likely = percent(binomial_upper_bound(0, estimate.episodes, 0.95))
    tight = estimate.tight_interval()
    known = "" if tight is None else f"; {brackets(tight, estimate.value)} if there are no such events"
    if estimate.event and estimate.data.weighted:
        return (
            f"the failures that were found have weights of which a few make the sum, so that there may be others, "
            f"which the search has not found, and there is room for three of those{known}"
        )
    return (
        f"an event that none of {_episodes(estimate)} showed may have a probability of up to {likely}, and there is "
        f"room for one that moves the return at least as far as any was seen to lie{known}"
    )


def anytime_kind(estimate: Estimate) -> str:
    """What `estimate.anytime_interval()` promises."""
    if estimate.anytime_interval() is None:
        return "unknown, because the values do not vary or are too few"
    if not estimate.unbiased:
        return _BIASED
    promise = "approximate, for many episodes; holds however often one looks and whenever one stops"
    return promise if estimate.event else f"{promise}, for returns of any size"


def certified_kind(estimate: Estimate) -> str:
    """What `estimate.certified_interval()` promises."""
    if estimate.return_range is None:
        return "unknown, because it needs bounded returns (`return_range`)"
    low, high = (significant(end, 6) for end in estimate.return_range)
    if estimate.out_of_range:
        least, most = (significant(float(end), 6) for end in (estimate.data.returns.min(), estimate.data.returns.max()))
        return (
            f"unknown, because returns from {least} to {most} were seen, beyond the given range [{low}, {high}]; give "
            "one that holds every return that can happen"
        )
    promise = "holds for any number of episodes, however often one looks and whenever one stops"
    if estimate.data.weighted:
        known = math.isfinite(estimate.weight_bound)
        size = f"at most {significant(estimate.weight_bound, 4)}" if known else "any size"
        promise += f", for importance weights of {size}"
    return promise if estimate.event else f"{promise}, if every return lies in [{low}, {high}]"


def certificate(estimate: Estimate, level: float = 0.95) -> str:
    """What cannot be promised about the probability of the event; empty if an expected return is estimated."""
    if not estimate.event:
        return ""
    episodes, bound = estimate.episodes, estimate.weight_bound
    best = -math.log(1.0 - level) / episodes
    if estimate.data.weighted and math.isfinite(bound):
        return (
            f"without assumptions {episodes} episodes, a share of {significant(1.0 / bound, 4)} of them from the "
            f"policy itself, cannot certify a probability below about {significant(best * bound, 2)} at {level:.0%}: "
            f"importance sampling sharpens the estimate, not the certificate{_describe_preparation(estimate)}"
        )
    limit = (
        f"without assumptions {episodes} episodes cannot certify a probability below about {significant(best, 2)} at "
        f"{level:.0%}"
    )
    if estimate.data.weighted:
        return (
            f"{limit}, and failures that the behaviors have made rarer than the policy does may be missed altogether: "
            "a defensive mixture (`defensive`) bounds that"
        )
    if estimate.ended != Ended.BUDGET:
        return f"{limit}; the bound is for a number of episodes fixed in advance, which this one was not"
    return limit


def _describe_preparation(estimate: Estimate) -> str:
    """What the estimate rests on, if some episodes only looked for failures."""
    explored = int((estimate.data.counts == 0.0).sum())
    if not explored:
        return ""
    counted = int(estimate.data.returns[estimate.data.counts > 0.0].sum())
    return (
        f"; {explored} episodes only looked for failures, and the estimate rests on {counted} of the other "
        f"{estimate.episodes - explored}; a way to fail that none of them took is covered by the certificate alone"
    )


def value_text(estimate: Estimate) -> str:
    """The value, with as many digits as its interval carries."""
    return round_to(estimate.value, spread(_main(estimate)[1], estimate.value))


def as_good_as(estimate: Estimate) -> str:
    """How many episodes Monte Carlo needs for the same precision; empty if that is unknown or hardly more."""
    if estimate.savings is None or estimate.savings <= WORTH_SAYING:
        return ""
    return f"about {count(estimate.savings * estimate.episodes)} episodes of Monte Carlo"


def savings_basis(estimate: Estimate) -> str:
    """How `estimate.savings` was obtained."""
    how, what = (" by importance weighting", ", search included") if estimate.data.weighted else ("", "")
    return (
        f"Monte Carlo's variance, estimated{how} from the same {estimate.episodes} episodes, divided by the variance "
        f"per episode over the whole study{what}{', with room for unseen events' if roomy(estimate) else ''}"
    )


def sentence(estimate: Estimate) -> str:
    """The answer in one sentence, with the interval that fits how the study ended."""
    name, interval = _main(estimate)
    known = "interval unknown" if interval is None else f"{name} {brackets(interval, estimate.value)}"
    if estimate.event and not estimate.events:
        return (
            f"{estimate.event} in none of {_episodes(estimate)}: its probability is at most "
            f"{significant(estimate.upper_bound())} (95%, one-sided), {known}"
        )
    what = f"probability of {estimate.event}: " if estimate.event else ""
    more = as_good_as(estimate)
    saved = f", as good as {more}" if more else ""
    return f"{what}{value_text(estimate)}, {known}, from {_episodes(estimate)}{saved}"


def _main(estimate: Estimate) -> tuple[str, Interval | None]:
    """The interval to go by, with its name: the first that holds for how the study ended."""
    if estimate.ended == Ended.BUDGET:
        return FIXED, estimate.interval()
    anytime = estimate.anytime_interval()
    return (CERTIFIED, estimate.certified_interval()) if anytime is None else (ANYTIME, anytime)


def unreliable(estimate: Estimate) -> tuple[str, ...]:
    """Reasons not to trust the standard error; empty if nothing speaks against it."""
    reasons = []
    found, episodes = estimate.diagnostics, estimate.episodes
    if found.effective_sample_size < min(MIN_EFFECTIVE_EPISODES, 0.5 * episodes):
        reasons.append(
            f"the importance weights of {episodes} episodes are worth only {found.effective_sample_size:.1f} equally "
            "weighted ones"
        )
    if episodes > 2 and found.largest_weight_share > LARGE_SHARE:
        reasons.append(f"one episode has {found.largest_weight_share:.0%} of all importance weight")
    if episodes > 2 and found.largest_value_share > LARGE_SHARE:
        reasons.append(f"one episode makes {found.largest_value_share:.0%} of the variance")
    return tuple(reasons)


def hopeless(estimate: Estimate) -> str:
    """Why behavior search cannot help here; empty if nothing says so."""
    if estimate.explained_by.get("starts", 0.0) > NOTHING_EXPLAINED:
        return ""  # something else did
    if estimate.no_help:
        return estimate.no_help
    if estimate.event and not estimate.events:
        return ""  # nothing is known about a failure that was never seen
    share, episodes = estimate.explained, estimate.episodes
    if share is None or share > NOTHING_EXPLAINED or episodes < ENOUGH_TO_JUDGE or alike(estimate):
        return ""
    return (
        f"the policy's action noise explains {max(share, 0.0):.0%} of the variance of the returns; the "
        f"rest comes from the environment and its starts, or from actions in a way that {episodes} episodes do not show"
    )


def alike(estimate: Estimate) -> str:
    """What is not known where all returns are the same; empty if they are not, and of events."""
    returns, episodes = estimate.data.returns, estimate.episodes
    if estimate.event or episodes < 2 or returns.max() - returns.min() > ROUNDING * abs(returns).max():
        return ""
    found = f"all {episodes} episodes had the same return: it is not known how others vary"
    if estimate.data.weighted:
        return found
    return f"{found}, of which there may be {binomial_upper_bound(0, episodes, 0.95):.2%} (95% confidence)"


def explain(estimate: Estimate) -> str:
    """What the savings were made of: "starts 84%, actions 3%"; empty if nothing was."""
    shares = {kind: share for kind, share in estimate.explained_by.items() if share > 0.005}
    return ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())


def left_out(estimate: Estimate) -> str:
    """Which batches are not part of the estimate, and what that may do to it; empty if all are."""
    groups = {"not told yet": estimate.waiting, "abandoned": estimate.abandoned}
    parts = [f"{len(numbers)} {name} ({_join(numbers)})" for name, numbers in groups.items() if numbers]
    if not parts:
        return ""
    return (
        f"requests left out: {', '.join(parts)}; the estimate is biased if what keeps a batch out has to do with what "
        "happened in its episodes, for instance if long ones are missing"
    )


def warnings(estimate: Estimate) -> tuple[str, ...]:
    """What a reader must know besides the number."""
    found = []
    if not estimate.unbiased:
        found.append("biased, without guarantee")
    if estimate.ended == Ended.INTERRUPTED:
        found.append(f"interrupted after {estimate.episodes} episodes")
    if alike(estimate):
        found.append(alike(estimate))
    reasons = unreliable(estimate)
    if reasons:
        found.append("unreliable, because " + " and ".join(reasons))
    if hopeless(estimate):
        found.append(f"behavior search cannot help here, because {hopeless(estimate)}")
    if estimate.unused:
        found.append(f"not used: {'; '.join(estimate.unused)}")
    if left_out(estimate):
        found.append(left_out(estimate))
    return tuple(found)


def question(estimate: Estimate) -> str:
    """Which actions the value is of; empty if that is unknown."""
    if estimate.deterministic is None:
        return ""
    if not estimate.deterministic:
        return "actions drawn from the policy"
    return "the most likely actions" if estimate.settings.get("deterministic") else "actions without noise"


def describe(estimate: Estimate) -> str:
    """What `print` shows."""
    how = ", the most likely actions" if estimate.settings.get("deterministic") else ""
    answer = f"{sentence(estimate)} ({estimate.method}{how})"
    return "; ".join([answer, *warnings(estimate), *estimate.notes])


def describe_lines(estimate: Estimate) -> tuple[str, ...]:
    """What the command prints, a line each: the answer, what its intervals promise, and what to beware of."""
    effective = f"effective sample size {estimate.diagnostics.effective_sample_size:.0f} of {estimate.episodes}"
    limit = certificate(estimate)
    asked = f"{question(estimate)}; " if question(estimate) else ""
    return (
        sentence(estimate),
        f"method: {estimate.method}; {asked}ended by: {estimate.ended}",
        *map(str, promises(estimate)),
        *([f"certificate: at most {significant(estimate.upper_bound())} (95%, one-sided); {limit}"] if limit else []),
        f"savings {_describe_savings(estimate)}, {effective}",
        *([f"variance explained by {explain(estimate)}"] if explain(estimate) else []),
        *(f"{text[0].upper()}{text[1:]}." for text in (*warnings(estimate), *estimate.notes)),
    )


def _describe_savings(estimate: Estimate) -> str:
    more = f" ({significant(estimate.tight_savings)} if no rare event was missed)" if roomy(estimate) else ""
    return f"{significant(estimate.savings)}{more}"


def describe_html(estimate: Estimate) -> str:
    """What a notebook shows."""
    rows = {f"probability of {estimate.event}" if estimate.event else "value": value_text(estimate)}
    rows |= {promise.name: promise.shown for promise in promises(estimate)}
    rows["episodes"] = str(estimate.episodes)
    if as_good_as(estimate):
        rows["as good as"] = as_good_as(estimate)
    rows["method"] = estimate.method
    if question(estimate):
        rows["policy"] = question(estimate)
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
    return f"<table>{cells}</table>" + "".join(
        f"<p>{escape(text)}</p>" for text in (*warnings(estimate), *estimate.notes)
    )


def _episodes(estimate: Estimate) -> str:
    return f"{estimate.episodes} episode{'' if estimate.episodes == 1 else 's'}"


def _join(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return shown if len(numbers) <= 10 else f"{shown}, ..."
