"""Folders as rl_zoo3 leaves them: `logs/ppo/CartPole-v1_1/` with a model, its best version, and its settings."""

import re
from pathlib import Path

from bpsearch.errors import InvalidArgumentError, PolicyFileError

_BEST, _CHECKPOINT = "best_model", re.compile(r".*_\d+_steps")


def model_in(folder: Path) -> Path:
    """The last model of a run, as rl_zoo3's own `enjoy` takes it; the best one if there is no last.

    Raises:
        PolicyFileError: there is none, or nothing tells which.
        InvalidArgumentError: the run had wrappers without which the policy means something else.
    """
    files = sorted(folder.glob("*.zip"))
    last = [file for file in files if file.stem != _BEST and not _CHECKPOINT.fullmatch(file.stem)]
    best = [file for file in files if file.stem == _BEST]
    named = [file for file in last if (folder / file.stem).is_dir()]  # <env>.zip beside <env>/config.yml
    found = named if len(named) == 1 else last or best
    if len(found) != 1:
        held = ", ".join(file.name for file in files) or "no .zip"
        raise PolicyFileError(f"the folder {str(folder)!r} must hold one model, it holds {held}; give the file itself")
    for config in (folder / found[0].stem / "config.yml", folder / "config.yml"):
        if config.is_file():
            _check_wrappers(config)
    return found[0]


def _check_wrappers(config: Path) -> None:
    """Refuse to guess what the environment was wrapped in; the file is read as text, since YAML may name classes."""
    lines = [line.strip().lstrip("- ").strip("'\"") for line in config.read_text(encoding="utf-8").splitlines()]
    for name in ("env_wrapper", "vec_env_wrapper"):
        for at, line in enumerate(lines):
            value = line.removeprefix(f"{name}:").strip() if line.startswith(f"{name}:") else ""
            if line == name:  # a pair, as rl_zoo3 writes it
                value = lines[at + 1] if at + 1 < len(lines) else ""
            if value and value not in ("null", "None", "''"):
                raise InvalidArgumentError(
                    f"{config} says that the policy was trained with {name} {value}: give the environment with that "
                    "wrapper, and the model's .zip rather than the folder"
                )
