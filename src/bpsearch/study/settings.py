"""Settings as JSON, so that a stored study can be opened again, and refused if it was made with others."""

import dataclasses
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from types import CodeType
from typing import Any

import numpy as np

from bpsearch import control_variates, estimands, estimators, inference, methods, search
from bpsearch._core.checks import check_integer
from bpsearch._core.texts import show
from bpsearch.errors import InvalidArgumentError, SettingsMismatchError, StoreError
from bpsearch.estimators.base import Estimator


def describe(value: Any, name: str = "settings") -> Any:
    """What JSON can hold of a setting: a frozen dataclass by class and fields, an estimator by name.

    Raises:
        InvalidArgumentError: the setting is of a kind that cannot be written down, a function for instance.
    """
    if isinstance(value, Enum):
        return {"enum": type(value).__name__, "value": describe(value.value, name)}
    if isinstance(value, np.generic):
        return describe(value.item(), name)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Estimator):
        own = getattr(estimators, value.function.__name__, None) is value
        return {"estimator": value.name} if own else {"estimator": value.name, "code": _code(value.function)}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [describe(part, f"{name}.{i}") for i, part in enumerate(value)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        described = {field: describe(getattr(value, field), f"{name}.{field}") for field in fields}
        return {"class": type(value).__name__, "fields": described}
    if callable(value):
        return {"function": getattr(value, "__qualname__", type(value).__name__), "code": _code(value)}
    raise InvalidArgumentError(
        f"{name} cannot be stored: expected numbers, texts, estimators and dataclasses of these, got {value!r}"
    )


def build(description: Any) -> Any:
    """The setting that `describe` wrote down, of bpsearch's own classes and estimators.

    Raises:
        StoreError: a class or an estimator is not bpsearch's own: who wrote it must give it.
    """
    try:
        return _build(description)
    except StoreError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(
            f"the study has settings that this program does not know: {show(error) or type(error).__name__}"
        ) from error


def _build(description: Any) -> Any:
    if not isinstance(description, dict):
        return description
    if "enum" in description:
        return _own_class(description["enum"])(_build(description["value"]))
    if "estimator" in description:
        own = {found.name: found for found in vars(estimators).values() if isinstance(found, Estimator)}
        found = own.get(description["estimator"])
        if found is None or "code" in description:
            raise StoreError(
                f"the study uses the estimator {show(description['estimator'])!r}, which is not one of bpsearch: open "
                f"the study from Python with Study(policy, method, store=...)"
            )
        return found
    if "function" in description:
        raise StoreError(
            f"the study uses the function {show(description['function'])!r}, which no file can hold: open the study "
            f"from Python with Study(policy, method, estimand=..., store=...)"
        )
    if "tuple" in description:
        return tuple(_build(part) for part in description["tuple"])
    if "list" in description:
        return [_build(part) for part in description["list"]]
    return _own_class(description["class"])(**{name: _build(part) for name, part in description["fields"].items()})


def check_same(stored: dict[str, Any], given: dict[str, Any], where: str) -> None:
    """Refuse settings of which one differs, naming it and both values.

    Raises:
        SettingsMismatchError: one differs.
    """
    old, new = dict(_flat("", stored)), dict(_flat("", given))
    differ = [name for name in {**old, **new} if not _equal(old.get(name), new.get(name))]
    # Where the class is another, its fields say nothing more.
    roots = [name for name in differ if not any(name.startswith(f"{other}.") for other in differ)]
    changed = [f"{name} (stored {show(repr(old.get(name)))}, given {show(repr(new.get(name)))})" for name in roots]
    if changed:
        raise SettingsMismatchError(
            f"{where} holds a study with other settings: {', '.join(changed)}; use the same settings to go on with it, "
            "or another file for another study"
        )


def _equal(one: Any, other: Any) -> bool:
    return one == other and (type(one) is type(other) or (_is_number(one) and _is_number(other)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Single values by dotted names, as a person would write them: `search.step_size.initial`."""
    if not isinstance(value, dict):
        yield name, value
        return
    if "class" in value:
        yield name, value["class"]
    parts: Any = value.get("fields", value)
    for kind in ("tuple", "list"):
        if kind in value:
            parts = {str(i): part for i, part in enumerate(value[kind])}
    if not value.keys().isdisjoint(("enum", "estimator", "function")):
        yield name, " ".join(str(value[key]) for key in ("estimator", "function", "value", "code") if key in value)
        return
    for key, part in parts.items():
        yield from _flat(f"{name}.{key}".lstrip("."), part)


def _code(function: Callable[..., object]) -> str:
    """What tells functions of one name apart: a digest of the source, and of the numbers that it closes over.

    Where there is no source it is that of the compiled code.
    """
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        text = "" if code is None else " ".join(_instructions(code))
    closure = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    numbers = [repr(value) for value in closure if isinstance(value, bool | int | float | str)]
    return hashlib.blake2b(" ".join([text, *numbers]).encode(), digest_size=8).hexdigest()


def _instructions(code: CodeType) -> Iterator[str]:
    """Of a function and of those within it."""
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


VALUATIONS = ("valuation", "choosing", "failures", "systematic")  # the modules of inference that have one


@cache
def _own_classes() -> dict[str, type]:
    """The classes that methods and estimands are made of: a file can name these, and no others."""
    names = [
        found.name
        for room in (search, control_variates)
        for found in pkgutil.iter_modules(room.__path__, room.__name__ + ".")
    ]
    modules = [
        *map(importlib.import_module, names),
        *(importlib.import_module(f"{inference.__name__}.{name}") for name in VALUATIONS),
        methods,
        estimands,
    ]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }


def _own_class(name: str) -> type:
    found = _own_classes().get(name)
    if found is None or not (dataclasses.is_dataclass(found) or issubclass(found, Enum)):
        raise StoreError(
            f"the study uses {show(name)!r}, which is not a class of bpsearch's searches: open the study from Python "
            f"with Study(policy, method, store=...)"
        )
    return found


def known_counts(stored: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """What a store knows of the episodes that a run wanted, and of further starts; None what it does not know."""
    tightest, resets = stored.get("tightest"), stored.get("resets")
    return (
        None if tightest is None else check_integer("tightest", tightest),
        None if resets is None else check_integer("resets", resets, at_least=0),
    )
