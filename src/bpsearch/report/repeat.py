"""The lines that repeat an evaluation."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bpsearch.inference.estimate import Estimate
from bpsearch.inference.stopping import Ended, Target
from bpsearch.report.json import plain

# Settings of the environment, which `bps.environment` takes; the others belong to `bps.evaluate`.
_OF_ENV = ("env_kwargs", "horizon", "num_envs", "vectorization")
# Settings that a command has as options and Python in objects: then the line is the command.
_OF_COMMAND = ("batch_size", "defensive", "lag", "normalize", "trust")
_BY_CHANCE = {Ended.TIME_LIMIT: "It ended by its time limit", Ended.INTERRUPTED: "It was interrupted"}


def repeat_lines(estimate: Estimate) -> str:
    """What gives the same value again when it is run; empty if the estimate does not know its settings.

    A policy or an environment that was an object has no name that a line could use: the lines then are comments that
    say so.
    """
    settings = {name: plain(value) for name, value in estimate.settings.items() if value is not None}
    if not {"policy", "env"} <= settings.keys():
        return ""
    if not settings.keys().isdisjoint(_OF_COMMAND):
        return _command(settings)
    lines = ["import bpsearch as bps"]
    if estimate.ended in _BY_CHANCE:
        lines.append(f"# {_BY_CHANCE[estimate.ended]} after {estimate.episodes} episodes: the value of as many.")
        settings["episodes"] = estimate.episodes
        settings.pop("target", None)
    lines.append(f"print({_call(settings)})")
    objects = {name: str(value) for name, value in settings.items() if _is_object(value)}
    if objects:
        listed = " and ".join(f"{name} ({kind.split('(')[0].strip('<>')})" for name, kind in objects.items())
        lines = [f"# Made in Python, without a name to write here: {listed}. With the same objects:"] + [
            line if line.startswith("#") else f"# {line}" for line in lines
        ]
    return "\n".join(lines)


def _call(settings: Mapping[str, Any]) -> str:
    """`bps.evaluate` with these settings. A store is left out: with it, the episodes would be read, not run."""
    own = {name: value for name, value in settings.items() if name not in ("policy", "env", "store", *_OF_ENV)}
    place = {name: settings[name] for name in _OF_ENV if name in settings}
    discount = own.pop("discount", None)
    env = _write("env", settings["env"])
    if _is_object(settings["env"]):
        place = {}  # an object has them already
    elif discount is not None and _is_compiled(settings["env"]):
        place["discount"] = discount
    elif discount is not None and "failure" in own:
        own["estimand"] = f"Failure({own.pop('failure')!r}, {discount!r})"
    elif discount is not None and "estimand" not in own:
        own["estimand"] = f"Return({discount!r})"
    if place:
        env = f"bps.environment({env}, {_keywords(place)})"
    return f"bps.evaluate({_write('policy', settings['policy'])}, {env}, {_keywords(own)})"


def _command(settings: Mapping[str, Any]) -> str:
    """`bpsearch evaluate` with these settings as options. A store is left out here as well."""
    rule = settings.get("target")
    targets = {"halfwidth": "target", "relative": "relative_target", "seconds": "time_limit"}
    options = {name: value for name, value in settings.items() if name not in ("store", "target", "estimand")}
    options |= {targets[name]: part for name, part in rule.items() if name in targets} if isinstance(rule, dict) else {}
    words = ["bpsearch", "evaluate"]
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return shlex.join(words)


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_write(name, value)}" for name, value in values.items())


def _write(name: str, value: Any) -> str:
    """As Python has it; an object by the name of its parameter."""
    if _is_object(value):
        return name
    if name == "target" and isinstance(value, dict):
        defaults = asdict(Target())
        return f"bps.Target({_keywords({key: part for key, part in value.items() if part != defaults.get(key)})})"
    if name == "estimand":
        return f"bps.{value}"
    return repr(value)


def _is_object(value: Any) -> bool:
    """Whether a setting is the kind of an object, as in "<SoftmaxTable>", or has such a one inside."""
    if not isinstance(value, str):
        return False
    return (value.startswith("<") and value.endswith(">")) or "<function " in value


def _is_compiled(env: Any) -> bool:
    from bpsearch.envs.registration import FACTORIES

    return env in FACTORIES
