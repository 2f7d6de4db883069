"""Changed files of episodes, told by the command to a copy of a study."""

import io
import random
import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.fuzz.mutations import flip_bytes, mutate, npz
from benchmarks.fuzz.tally import Tally, command, is_one_line
from bpsearch.policies.files import save_policy
from bpsearch.sampling.packing import pack

EPISODES = 8


def problem() -> tuple[bps.TabularMDP, bps.SoftmaxTable]:
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    mdp = bps.TabularMDP(transitions, rng.normal(size=(3, 2, 3)), [0.5, 0.5, 0.0], [False, False, True], 4)
    return mdp, bps.SoftmaxTable(rng.normal(size=(3, 2)))


def prepare(folder: Path) -> dict[str, Any]:
    """A study with an open request, and its episodes as arrays."""
    mdp, policy = problem()
    save_policy(policy, folder / "policy.npz")
    made = command("study", "create", folder / "base.db", "--policy", folder / "policy.npz", "--method", "mc")
    asked = command("study", "ask", folder / "base.db", "--out", folder / "behavior.npz")
    assert (made.code, asked.code) == (0, 0), (made, asked)
    with bps.Study.open(folder / "base.db", read_only=True) as study:
        identity = study.outstanding[0].identity
    batch = bps.sample(mdp, policy, EPISODES, seed=1)
    return {"format": "bpsearch trajectories 1", "request": identity, **pack(batch)}


def mean_return(data: bytes) -> float:
    """By another route: NumPy's own reader, and a loop."""
    with np.load(io.BytesIO(data)) as arrays:
        lengths, rewards = arrays["lengths"].tolist(), arrays["rewards"].tolist()
    ends = np.cumsum([0, *lengths]).tolist()
    return float(np.mean([sum(rewards[a:b]) for a, b in pairwise(ends)]))


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    warnings.simplefilter("ignore")  # what NumPy says of our changes
    arrays = prepare(folder)
    before = (folder / "base.db").read_bytes()
    study, file = folder / "s.db", folder / "e.npz"
    for number in range(runs):
        rng = random.Random(f"{seed} {number}")
        changed, how = mutate(arrays, rng) if rng.random() < 0.8 else (arrays, "bytes")
        data = npz(changed, rng)
        if how == "bytes":
            data = flip_bytes(data, rng)
        file.write_bytes(data)
        for old in folder.glob("s.db*"):
            old.unlink()
        shutil.copyfile(folder / "base.db", study)
        how = f"run {number} ({how})"
        told = command("study", "tell", study, 0, file)
        if told.code == 0:
            tally.count("counted")
            with bps.Study.open(study, read_only=True) as opened:
                value = opened.estimate().value
            expected = mean_return(data)
            if not np.isclose(value, expected, rtol=1e-9, atol=1e-12):
                tally.complain(f"the value is {value}, expected {expected}", how)
        elif is_one_line(told):
            tally.count("refused")
            if study.read_bytes() != before:
                tally.complain("the study has changed after a refusal", how)
        else:
            tally.complain(f"exit code {told.code}: {told.err!r:.300}", how)
