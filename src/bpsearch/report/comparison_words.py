"""What a comparison says, in words: for the terminal, notebooks, the page and JSON."""

from html import escape

from bpsearch.inference.comparison import Comparison, Difference
from bpsearch.inference.confidence_sequence import FEWEST
from bpsearch.inference.difference import Decision
from bpsearch.inference.stopping import Ended
from bpsearch.report.numbers import brackets, round_to, significant, spread
from bpsearch.report.words import WORTH_SAYING, unreliable

_VERDICTS = {
    Decision.BETTER: "{one} {better} than {other}",
    Decision.WORSE: "{one} {worse} than {other}",
    Decision.EQUIVALENT: "{one} and {other} are equivalent within ± {margin}",
    Decision.UNDECIDED: "undecided between {one} and {other}",
}


def verdict(comparison: Comparison, found: Difference) -> str:
    """Who is better; the first policy is the subject. Of failures it says who fails less often."""
    margin = "" if comparison.design.margin is None else significant(comparison.design.margin, 6)
    better, worse = _verbs(comparison)
    return _VERDICTS[found.decision].format(one=found.one, other=found.other, better=better, worse=worse, margin=margin)


def sentence(comparison: Comparison, found: Difference) -> str:
    """The verdict in one sentence, with the difference, its interval and what it took."""
    level = comparison.design.level
    interval = found.interval(level)
    known = "interval unknown" if interval is None else f"{_percent(level)} interval {brackets(interval, found.value)}"
    return (
        f"{verdict(comparison, found)}: difference {difference_text(comparison, found)}, {known}, "
        f"from {len(found.pairs)} episodes of each"
    )


def difference_text(comparison: Comparison, found: Difference) -> str:
    """The difference, with as many digits as its interval carries."""
    text = round_to(found.value, spread(found.interval(comparison.design.level), found.value))
    return text if text.startswith("-") else f"+{text}"


def headline(comparison: Comparison) -> str:
    """The answer in one sentence, for any number of policies."""
    if len(comparison.differences) == 1:
        return sentence(comparison, comparison.differences[0])
    best = comparison.ranking[0]
    decided = sum(found.decision is not Decision.UNDECIDED for found in comparison.differences)
    count = f"{decided} of {len(comparison.differences)} differences decided"
    beaten = [
        found.other if found.one == best.name else found.one
        for found in comparison.differences
        if (found.one == best.name and found.decision is Decision.BETTER)
        or (found.other == best.name and found.decision is Decision.WORSE)
    ]
    better, _ = _verbs(comparison)
    if len(beaten) == len(comparison.estimates) - 1:
        return f"{best.name} {better} than all others; {count}"
    if best.worst == 1:
        return f"{best.name} is the best; {count}"
    rest = f", and {better} than {', '.join(beaten)}" if beaten else ""
    which = "lowest" if comparison.design.lower_is_better else "highest"
    return f"{best.name} has the {which} value{rest}; {count}"


def interval_kind(comparison: Comparison) -> str:
    """What `Difference.interval` promises."""
    many = len(comparison.differences)
    once = "" if many == 1 else f"; the intervals of all {many} differences hold at once"
    if comparison.design.kind == "certified":
        ranges = {estimate.return_range for estimate in comparison.estimates.values() if estimate.return_range}
        known = " or ".join(f"[{significant(low, 6)}, {significant(high, 6)}]" for low, high in sorted(ranges))
        sure = "certified; holds for any number of episodes, however often one looks and whenever one stops"
        return f"{sure}, if every return lies in {known}{once}"
    return f"approximate, for many episodes; holds however often one looks and whenever one stops{once}"


def fixed_kind(comparison: Comparison) -> str:
    """What `Difference.fixed_interval` promises."""
    if comparison.ended == Ended.BUDGET and not comparison.design.stop_early:
        return "approximate, for a number of episodes fixed in advance, and for one difference alone"
    return "for a number of episodes fixed in advance, which this one was not: a verdict could end it"


def savings_text(found: Difference) -> str:
    """What shared seeds and control variates saved; empty if that is unknown, hardly anything, or not what decides."""
    if found.savings is None or found.certified is not None:
        return ""
    parts = []
    if found.pairing_savings is not None and abs(found.pairing_savings - 1.0) > WORTH_SAYING - 1.0:
        parts.append(f"shared starts {significant(found.pairing_savings)}")
    if found.control_savings is not None and found.control_savings > WORTH_SAYING:
        parts.append(f"control variates {significant(found.control_savings)}")
    if found.savings <= WORTH_SAYING:
        return ""
    tight = found.tight_savings
    room = tight is not None and tight > 1.05 * found.savings
    missed = f", {significant(tight)} if no rare event was missed" if room else ""
    why = f" ({' times '.join(parts)}{missed})" if parts else ""
    return f"two independent Monte Carlo evaluations need {significant(found.savings)} times as many episodes{why}"


def doubts(comparison: Comparison) -> tuple[str, ...]:
    """What a reader must know besides the verdicts."""
    found = []
    if comparison.ended == Ended.INTERRUPTED:
        found.append("interrupted: the verdicts are those of all whole rounds")
    for difference in comparison.differences:
        pair = f"{difference.one} and {difference.other}"
        if difference.certified is not None:
            continue
        if difference.sequence.pairs < FEWEST:
            pairs = f"{difference.sequence.pairs} pairs of episodes"
            found.append(f"only {pairs} of {pair} count; no verdict is given below {FEWEST}")
        elif difference.decision is Decision.UNDECIDED and difference.sequence.interval() is None:
            found.append(
                f"the returns of {pair} have not varied at all, so nothing tells how far an unseen one could be off; "
                f"where their range is known, as of failures, certified verdicts tell them apart: kind='certified'"
            )
    for name, estimate in comparison.estimates.items():
        if not estimate.unbiased:
            found.append(f"{name}: biased, without guarantee")
        found += [f"{name}: unreliable, because {reason}" for reason in unreliable(estimate)]
    if comparison.dropped:
        found.append(f"not run to the end, because clearly worse than another: {', '.join(comparison.dropped)}")
    return tuple(found)


def describe(comparison: Comparison) -> str:
    """What `print` shows."""
    return "; ".join([headline(comparison), *doubts(comparison)])


def describe_lines(comparison: Comparison) -> tuple[str, ...]:
    """What the command prints, a line each."""
    lines = [headline(comparison)]
    if len(comparison.differences) > 1:
        lines += [sentence(comparison, found) for found in comparison.differences]
        lines += [
            f"{place(rank.best, rank.worst)}: {rank.name} {value_text(comparison, rank.name)}"
            for rank in comparison.ranking
        ]
    else:
        lines += [f"{name}: {value_text(comparison, name)}" for name in comparison.estimates]
    lines.append(f"interval: {interval_kind(comparison)}")
    lines.append(f"ended by: {comparison.ended}; {comparison.episodes} episodes in all")
    if len(comparison.differences) == 1:
        lines += [f"saved: {text}" for text in [savings_text(comparison.differences[0])] if text]
    else:
        known = [d.savings for d in comparison.differences if d.savings is not None and d.certified is None]
        if known and max(known) > WORTH_SAYING:
            times = f"{significant(min(known))} to {significant(max(known))}"
            lines.append(f"saved: independent Monte Carlo evaluations need {times} times as many episodes")
    return (*lines, *(f"note: {text}" for text in doubts(comparison)))


def value_text(comparison: Comparison, name: str) -> str:
    """A policy's value with its standard error and episodes."""
    estimate = comparison.estimates[name]
    error = "" if estimate.std_error is None else f" ± {significant(estimate.std_error, 2)}"
    half = None if estimate.std_error is None else 2.0 * estimate.std_error
    return f"{round_to(estimate.value, half)}{error} (standard error), {estimate.episodes} episodes, {estimate.method}"


def place(best: int, worst: int) -> str:
    """A place in the ranking, or the places that are possible."""
    return f"place {best}" if best == worst else f"place {best} to {worst}"


def describe_html(comparison: Comparison) -> str:
    """What a notebook shows."""
    rows = "".join(
        f"<tr><th>{escape(verdict(comparison, found))}</th><td>{escape(difference_text(comparison, found))}</td>"
        f"<td>{escape(brackets(found.interval(comparison.design.level), found.value))}</td></tr>"
        for found in comparison.differences
    )
    return f"<p>{escape(headline(comparison))}</p><table>{rows}</table>" + "".join(
        f"<p>{escape(text)}</p>" for text in doubts(comparison)
    )


def _verbs(comparison: Comparison) -> tuple[str, str]:
    """What the better and the worse policy do."""
    return ("fails less often", "fails more often") if comparison.counts_failures else ("is better", "is worse")


def _percent(level: float) -> str:
    return f"{100.0 * level:g}%"
