"""The page about a comparison: a single HTML file with its figures inside, which needs no network."""

from bpsearch.inference.comparison import Comparison
from bpsearch.report import comparison_words as words
from bpsearch.report.comparison_figures import draw_figures
from bpsearch.report.json import plain
from bpsearch.report.layout import render_page
from bpsearch.report.numbers import brackets, round_to, significant

# Settings of the environment, which `bps.environment` takes.
_OF_ENV = ("env_kwargs", "horizon", "discount", "num_envs", "vectorization")


def render(comparison: Comparison) -> str:
    """The page of a `Comparison`, as HTML."""
    single = comparison.differences[0] if len(comparison.differences) == 1 else None
    headline = words.headline(comparison)
    level = comparison.design.level
    saved = [words.savings_text(found) for found in comparison.differences] if single is not None else []
    return render_page(
        "comparison.html",
        comparison=comparison,
        headline=headline,
        subject=_subject(comparison),
        verdict=headline.split(";")[0] if single is None else words.verdict(comparison, single),
        sentence=headline if single is None else words.sentence(comparison, single),
        warnings=words.doubts(comparison),
        level=f"{100.0 * level:g}%",
        differences=[_row(comparison, at) for at in range(len(comparison.differences))],
        interval_kind=words.interval_kind(comparison),
        fixed="" if single is None else brackets(single.fixed_interval(level), single.value),
        fixed_kind=words.fixed_kind(comparison),
        saved=[text for text in saved if text],
        ranking=[_place(comparison, at) for at in range(len(comparison.ranking))],
        figures=draw_figures(comparison),
        repeat=repeat_lines(comparison),
        settings={name: _to_list(value) for name, value in comparison.settings.items()},
    )


def repeat_lines(comparison: Comparison) -> str:
    """What gives the same verdict again when it is run; empty if the comparison does not know its settings.

    A store is left out: with it the episodes would be read, not run. Objects have no name that a line could use: then
    the lines are a comment.
    """
    settings = {name: plain(value) for name, value in comparison.settings.items() if value is not None}
    if not {"policies", "env"} <= settings.keys() or "estimand" in settings:
        return ""
    policies, env = settings.pop("policies"), settings.pop("env")
    place = {name: settings.pop(name) for name in _OF_ENV if name in settings}
    rule = settings.pop("target", None)
    settings.pop("store", None)
    own = [*(f"{name}={value!r}" for name, value in settings.items())]
    if rule is not None:
        own.append(f"target=bps.Target(**{rule!r})" if isinstance(rule, dict) else f"target={rule!r}")
    where = repr(env)
    if place and isinstance(env, str) and not env.startswith("<"):
        where = f"bps.environment({where}, {', '.join(f'{name}={value!r}' for name, value in place.items())})"
    call = f"print(bps.compare({policies!r}, {where}, {', '.join(own)}))"
    if "'<" in call:
        return f"# Made in Python: put your objects in place of those in <>.\n# {call}"
    return f"import bpsearch as bps\n{call}"


def _subject(comparison: Comparison) -> str:
    names = ", ".join(comparison.estimates)
    env = comparison.settings.get("env")
    return f"{names} in {env.strip('<>')}" if isinstance(env, str) else names


def _row(comparison: Comparison, at: int) -> tuple[str, ...]:
    found = comparison.differences[at]
    after = "" if found.decided_at is None else f"{found.decided_at} episodes of each"
    return (
        f"{found.one} − {found.other}",
        words.difference_text(comparison, found),
        brackets(found.interval(comparison.design.level), found.value),
        str(found.decision),
        after,
        "" if found.certified is not None else significant(found.savings),
    )


def _place(comparison: Comparison, at: int) -> tuple[str, ...]:
    rank = comparison.ranking[at]
    estimate = comparison.estimates[rank.name]
    error = estimate.std_error
    return (
        str(rank.best) if rank.best == rank.worst else f"{rank.best} to {rank.worst}",
        rank.name,
        round_to(rank.value, None if error is None else 2.0 * error),
        significant(error, 2),
        str(estimate.episodes),
        estimate.method,
    )


def _to_list(value: object) -> object:
    """Names with what they stand for, in a line; another setting as it is."""
    text = plain(value)
    return ", ".join(f"{name}: {part}" for name, part in text.items()) if isinstance(text, dict) else value
