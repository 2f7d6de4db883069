"""What the commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option(help="Directory for what is written.")]
Defensive = Annotated[
    float, typer.Option(help="Share of episodes that the policy itself runs; bounds the importance weights.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same numbers.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def prepare_jax() -> None:
    """Let JAX use all cores and remember what it compiled. Before anything touches its devices.

    XLA by itself runs such programs on a single core: one device per core lets trials run side by side.
    """
    import os

    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bpsearch" / "compiled"
    # The last level of optimization takes a third of the time to compile and makes these programs no faster. Programs
    # are compiled side by side; to split each of them into parts for several threads as well takes a fifth more.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=2 --xla_cpu_parallel_codegen_split_count=1")
    settings = {
        "jax_num_cpu_devices": len(os.sched_getaffinity(0)),
        "jax_compilation_cache_dir": str(cache),
        "jax_persistent_cache_min_compile_time_secs": 0.5,
    }
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value))
