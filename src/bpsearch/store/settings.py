"""Settings as JSON, so that a stored study can be opened again, and refused if it was made with others."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from bpsearch import estimators, models, search
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
        return {"estimator": value.name}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [describe(part, f"{name}.{i}") for i, part in enumerate(value)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        described = {field: describe(getattr(value, field), f"{name}.{field}") for field in fields}
        return {"class": type(value).__name__, "fields": described}
    raise InvalidArgumentError(
        f"{name} cannot be stored: expected numbers, texts, estimators and dataclasses of these, got {value!r}"
    )


def build(description: Any) -> Any:
    """The setting that `describe` wrote down, of bpsearch's own classes and estimators.

    Raises:
        StoreError: a class or an estimator is not bpsearch's own: who wrote it must give it.
    """
    if not isinstance(description, dict):
        return description
    if "enum" in description:
        return _own_class(description["enum"])(build(description["value"]))
    if "estimator" in description:
        found = getattr(estimators, description["estimator"], None)
        if not isinstance(found, Estimator):
            raise StoreError(
                f"the study uses the estimator {description['estimator']!r}, which is not one of bpsearch: open the "
                f"study from Python with Study(policy, search, store=...)"
            )
        return found
    if "tuple" in description:
        return tuple(build(part) for part in description["tuple"])
    if "list" in description:
        return [build(part) for part in description["list"]]
    return _own_class(description["class"])(**{name: build(part) for name, part in description["fields"].items()})


def check_same(stored: dict[str, Any], given: dict[str, Any], where: str) -> None:
    """Refuse settings of which one differs, naming it and both values.

    Raises:
        SettingsMismatchError: one differs.
    """
    old, new = dict(_flat("", stored)), dict(_flat("", given))
    differ = [name for name in {**old, **new} if not _equal(old.get(name), new.get(name))]
    # Where the class is another, its fields say nothing more.
    roots = [name for name in differ if not any(name.startswith(f"{other}.") for other in differ)]
    changed = [f"{name} (stored {old.get(name)!r}, given {new.get(name)!r})" for name in roots]
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
    if "enum" in value or "estimator" in value:
        yield name, value.get("estimator", value.get("value"))
        return
    for key, part in parts.items():
        yield from _flat(f"{name}.{key}".lstrip("."), part)


@cache
def _own_classes() -> dict[str, type]:
    """The classes that searches and models are made of: a file can name these, and no others."""
    found: dict[str, type] = {}
    for package in (search, models):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            loaded = importlib.import_module(module.name)
            found |= {
                name: value
                for name, value in vars(loaded).items()
                if isinstance(value, type) and value.__module__ == module.name
            }
    return found


def _own_class(name: str) -> type:
    found = _own_classes().get(name)
    if found is None or not (dataclasses.is_dataclass(found) or issubclass(found, Enum)):
        raise StoreError(
            f"the study uses {name!r}, which is not a class of bpsearch's searches: open the study from Python with "
            f"Study(policy, search, store=...)"
        )
    return found
