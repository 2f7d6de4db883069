"""What the commands share."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bpsearch._core.texts import printable
from bpsearch.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bpsearch.calls.task import Task
    from bpsearch.study.resets import Resets

METHODS = (
    "auto",
    "mc",
    "bpg",
    "levels",
    "levels-starts",
    "failures",
    "starts",
    "systematic",
    "pdis-bpg",
    "closed-form",
    "as",
    "dr-bpg",
)  # of `bpsearch.methods`, which takes long to import
EnvId = Annotated[str, typer.Option(help="Gymnasium id; bpsearch/Gridworld-v0 and the like run compiled.")]
PolicyFile = Annotated[
    str,
    typer.Option(
        help="A .zip of Stable-Baselines3, a folder of rl_zoo3, hf://owner/name, an .npz of bpsearch, or the name of a "
        "shipped policy."
    ),
]
MethodName = Annotated[
    str,
    typer.Option(
        help="auto, mc, bpg, pdis-bpg, systematic; of a failure failures, levels, starts, levels-starts; on tables "
        "closed-form; on tabular MDPs as, dr-bpg.",
        autocompletion=lambda incomplete: [name for name in METHODS if name.startswith(incomplete)],
    ),
]
Horizon = Annotated[int | None, typer.Option(help="Cut episodes after this many steps.")]
Discount = Annotated[float | None, typer.Option(help="By default the environment's own, 1 for Gymnasium.")]
EnvKwargs = Annotated[str | None, typer.Option(help="JSON object of arguments of the environment.")]
NumEnvs = Annotated[int | None, typer.Option(help="Environments that run side by side.")]
Vectorization = Annotated[str | None, typer.Option(help="sync, or async: a process for each environment.")]
WorkersOption = Annotated[
    str | None, typer.Option("--workers", help="Processes that run the episodes, or ray, or the address of a cluster.")
]
ResetsOption = Annotated[
    str, typer.Option("--resets", help="Further starts to learn from for each episode: auto, never, or a number.")
]
EpisodeTimeout = Annotated[float | None, typer.Option(help="With workers: seconds that an episode may take.")]
Normalize = Annotated[
    str | None, typer.Option(help="File of the policy's VecNormalize statistics, or none; found beside it by default.")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Take the most likely actions, as SB3's evaluate_policy does.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Let code in the policy's file run.")]
Out = Annotated[Path, typer.Option(help="Directory for what is written.")]
Defensive = Annotated[
    float, typer.Option(help="Share of episodes that the policy itself runs; bounds the importance weights.")
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same numbers; drawn if not given.", min=0)]
FixedSeed = Annotated[int, typer.Option(help="The same seed gives the same numbers.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def prepare_jax(*, tables: bool = False) -> None:
    """Let JAX use all cores and remember what it compiled. Before anything touches its devices.

    XLA by itself runs such programs on a single core: one device per core lets trials run side by side. `tables` says
    that all programs will be of tables, which are compiled in half the time.
    """
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bpsearch" / "compiled"
    # The last level of optimization takes a third of the time to compile and makes these programs no faster. Programs
    # are compiled side by side; to split each of them into parts for several threads as well takes a fifth more.
    flags = ["--xla_backend_optimization_level=2", "--xla_cpu_parallel_codegen_split_count=1"]
    if tables:
        # The newer emitters of loops gain nothing where all is looked up or drawn, while networks and physics are twice
        # as fast with them. The older ones must keep a loop whole: its parts would wait for each other's threads.
        flags.append("--xla_cpu_use_fusion_emitters=false")
        flags.append("--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000")
    os.environ.setdefault("XLA_FLAGS", " ".join(flags))
    settings = {
        "jax_num_cpu_devices": _cores(),
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.5,
    }
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


def _cores() -> int:
    """How many cores this process may use; Linux knows, others tell how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def say(text: str) -> None:
    """Lines on standard output. Names that come from files must not reach a terminal as commands to it."""
    typer.echo("\n".join(printable(line) for line in text.split("\n")))


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value))


def parse_kwargs(text: str | None) -> dict[str, Any] | None:
    """The arguments of the environment that `--env-kwargs` gives."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"--env-kwargs must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"--env-kwargs must be a JSON object, got {text!r}")
    return value


def read_resets(given: str) -> "int | Resets":
    """What `--resets` means."""
    if given.isdecimal():
        return int(given)
    if given != "auto" and given != "never":
        raise InvalidArgumentError(f"resets must be 'auto', 'never' or a number, got {given!r}")
    return "auto" if given == "auto" else "never"


def read_workers(given: str | None) -> int | str | None:
    """What `--workers` means: a number of processes, or a cluster."""
    return int(given) if given is not None and given.lstrip("-").isdigit() else given


@contextlib.contextmanager
def open_task(
    env: str,
    policy: str,
    *,
    horizon: int | None,
    discount: float | None,
    env_kwargs: str | None,
    num_envs: int | None,
    vectorization: str | None,
    normalize: str | None,
    trust: bool,
    deterministic: bool = False,
    workers: str | None = None,
    episode_timeout: float | None = None,
) -> "Iterator[Task]":
    """Policy and environment of a command's options, under the names that they were given."""
    from bpsearch.calls.task import Task, environment
    from bpsearch.envs.base import CompiledEnv
    from bpsearch.policies.resolve import load
    from bpsearch.runners import Runner
    from bpsearch.sampling import GymnasiumSampler

    _one_torch_thread()
    options: dict[str, Any] = {"env_kwargs": parse_kwargs(env_kwargs), "horizon": horizon}
    speed: dict[str, Any] = {"num_envs": num_envs, "vectorization": vectorization}
    place: Any = environment(env, **options, **speed)
    with contextlib.ExitStack() as stack:
        if isinstance(place, GymnasiumSampler | Runner):
            stack.enter_context(place)
        if isinstance(place, CompiledEnv):
            place = environment(place, discount=discount)
        loaded = load(policy, place, normalize=False if normalize == "none" else normalize, trust=trust)
        loaded = loaded.mode() if deterministic else loaded
        further = {
            "discount": discount,
            "normalize": normalize,
            "trust": trust or None,
            "deterministic": deterministic or None,
        }
        given = {name: value for name, value in {**options, **speed, **further}.items() if value is not None}
        crew = read_workers(workers)
        yield Task(loaded, place, {"policy": policy, "env": env, **given}, crew, episode_timeout)


def _one_torch_thread() -> None:
    """The usual policy networks are slower on several threads."""
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        torch.set_num_threads(1)
