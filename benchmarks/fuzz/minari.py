"""Changed Minari datasets."""

import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.fuzz.mutations import NUMBERS, TYPES, flip_bytes
from benchmarks.fuzz.tally import Tally
from benchmarks.fuzz.tell import problem
from bpsearch.integrations import load_minari, save_minari


def change(path: Path, rng: random.Random) -> str:
    """Bytes of a file, an entry of the metadata, or a dataset of an episode."""
    import h5py

    files = sorted(file for file in path.rglob("*") if file.is_file())
    how = rng.choice(("bytes", "metadata", "type", "number", "shape", "missing", "claim", "link"))
    if how == "bytes":
        file = rng.choice(files)
        file.write_bytes(flip_bytes(file.read_bytes(), rng))
        return f"bytes of {file.name}"
    if how == "metadata":
        file = path / "metadata.json"
        metadata = json.loads(file.read_text())
        key = rng.choice(sorted(metadata))
        metadata[key] = rng.choice([None, -1, 10**12, "x", [], {}, "\x1b[31m", "arrow", "../../x"])
        file.write_text(json.dumps(metadata))
        return f"metadata {key}"
    with h5py.File(path / "main_data.hdf5", "r+") as file:
        group: Any = file[rng.choice(sorted(file))]
        key = rng.choice(["observations", "actions", "rewards", "infos/log_prob"])
        array = np.array(group[key])
        del group[key]
        if how == "type":
            with np.errstate(all="ignore"):
                code = rng.choice([code for code in TYPES if code[0] not in "UM"])
                group[key] = array.astype(code)
        elif how == "number":
            array = array.astype(float)
            array.reshape(-1)[0] = rng.choice(NUMBERS)
            group[key] = array
        elif how == "shape":
            group[key] = rng.choice([array[:-1], array[None], np.concatenate([array, array]), array[:0]])
        elif how == "claim":
            group.create_dataset(key, (10**11,), "f8", chunks=(10**6,))
        elif how == "link":
            group[key] = rng.choice([h5py.ExternalLink("/etc/passwd", "x"), h5py.SoftLink("/")])
    return f"{how} {key}"


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    warnings.simplefilter("ignore")
    mdp, policy = problem()
    batch = bps.sample(mdp, policy, 4, seed=1)
    spaces = (policy.observation_space, policy.action_space)
    save_minari(folder / "base", batch, *spaces, request="abc")
    for number in range(runs):
        rng = random.Random(f"{seed} {number}")
        shutil.rmtree(folder / "d", ignore_errors=True)
        shutil.copytree(folder / "base", folder / "d")
        how = f"run {number} ({change(folder / 'd', rng)})"
        found = tally.attempt(lambda: load_minari(folder / "d"), how)
        if found is not None and not np.isfinite(found.trajectories.returns()).all():
            tally.complain("returns that are not finite", how)
