"""Asking and telling across processes and out of order: unbiasedness by enumeration, and the command."""

import dataclasses
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

import bpsearch as bps
from bpsearch.control_variates import TabularModel
from bpsearch.errors import PolicyFileError, SettingsMismatchError
from bpsearch.estimators import doubly_robust
from bpsearch.methods import find_method
from bpsearch.policies.files import request_of
from bpsearch.sampling.npz import load_npz, save_npz
from enumeration import enumerate_trajectories, random_mdp, random_policy

AGENT = Path(__file__).parent / "agents" / "ppo-cartpole-v1.zip"


def test_a_study_told_out_of_order_is_unbiased_even_if_the_order_depends_on_the_episodes():
    """Every three episodes of a small MDP, each weighed by its probability.

    Requests 0 and 1 are asked at once. Which is told first hangs on the return of request 0's episode, as if a bad
    episode took longer. Request 2 is asked after the first of them, told after both. The model of the doubly robust
    estimator learns from every batch, so that it matters which of them an episode is valued with.
    """
    mdp = random_mdp(5, (2, 2, 1), 1.0)
    evaluation = random_policy(1, mdp)
    model = TabularModel.like(mdp)
    method = bps.Method(bps.BPG(0.3, doubly_robust, model=model), bps.Valuation(doubly_robust, model))
    everything = enumerate_trajectories(mdp)
    returns = everything.batch.returns()
    late = returns < np.median(returns)

    def collected(behavior, index):
        batch = everything.under(behavior)
        fields = ("observations", "actions", "rewards", "log_probs", "mask", "final_observations")
        one = bps.Trajectories(**{name: getattr(batch, name)[index : index + 1] for name in fields})
        return one, everything.env_probs[index] * np.exp(one.log_probs.sum())

    def value(states, one):
        return method.valuation.value(states.valuation, one, method.search.shift(states.search)).values[0]

    total = np.zeros(2)
    moved = 0.0
    for first in range(len(returns)):
        for second in range(len(returns)):
            study = bps.Study(evaluation, method)
            requests = [study.ask(), study.ask()]
            told = [collected(evaluation, index) for index in (first, second)]
            order = (1, 0) if late[first] else (0, 1)
            at_tell = {}
            for turn, number in enumerate(order):
                if turn == 1:
                    requests.append(study.ask())
                at_tell[number] = value(study._progress.states, told[number][0])
                study.tell(number, told[number][0])
            probability = told[0][1] * told[1][1]
            values = study.estimate().data.values
            asked = study._progress.asked[2]
            third = [collected(requests[2].behavior, index) for index in range(len(returns))]
            expected = sum(p * value(asked, one) for one, p in third)
            total += probability * np.array([(values.sum() + expected) / 3, np.mean([at_tell[0], at_tell[1]])])
            moved = max(moved, np.abs(requests[2].behavior.logits - evaluation.logits).max())
            # What the study itself does with the third, for one of its outcomes.
            outcome = third[(first + second) % len(returns)][0]
            study.tell(2, outcome)
            assert study.estimate().data.values[2] == value(asked, outcome)
    truth = bps.oracle.value(mdp, evaluation)
    assert abs(total[0] - truth) < 1e-10
    assert abs(total[1] - truth) > 1e-3, "valued when they are told, the order would have had its say"
    assert moved > 1e-3


@pytest.fixture
def command(in_process, monkeypatch, tmp_path):
    """`bpsearch study`, which gives what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        done = in_process("study", *arguments)
        assert done.returncode == code, done
        return done.stdout if code != 2 else done.stderr

    return run


def robot(policy_file, episodes_file, batch):
    trajectories = bps.sample(bps.envs.gridworld(), bps.load_policy(policy_file), 20, batch=batch)
    save_npz(episodes_file, trajectories, request=request_of(policy_file))


def test_the_command_from_the_first_request_to_the_report(command, tmp_path):
    assert "bpg" in command("create", "s.db", "--policy", "gridworld-early")
    assert "exists already" in command("create", "s.db", "--policy", "gridworld-early", code=2)
    asked = [json.loads(command("ask", "s.db", "--out", f"p{i}.npz", "--json")) for i in range(3)]
    assert [request["number"] for request in asked] == [0, 1, 2]
    for i in range(2):
        robot(f"p{i}.npz", f"e{i}.npz", i)
    assert "answer another request" in command("tell", "s.db", 0, "e1.npz", code=2)
    assert "the study has 20" in command("tell", "s.db", 1, "e1.npz")
    assert "request 1 is told already" in command("tell", "s.db", 1, "e1.npz", code=2)
    assert "was never asked" in command("tell", "s.db", 9, "e1.npz", code=2)
    save_npz("nameless.npz", load_npz("e0.npz").trajectories)
    assert "does not say which request it answers" in command("tell", "s.db", 0, "nameless.npz", code=2)
    assert json.loads(command("tell", "s.db", 0, "e0.npz", "--json"))["total"] == 40
    assert "waits since" in command("status", "s.db")
    command("abandon", "s.db", 2, "--reason", "power cut")
    status = json.loads(command("status", "s.db", "--json"))
    assert (status["episodes"], status["told"], status["open"]) == (40, [0, 1], [])
    assert status["abandoned"][0]["reason"] == "power cut"
    assert "power cut" in command("status", "s.db")
    estimate = json.loads(command("estimate", "s.db", "--json"))
    assert (estimate["episodes"], estimate["abandoned"]) == (40, [2])
    assert "Requests left out: 1 abandoned (2)" in command("estimate", "s.db")
    command("report", "s.db", "--out", "page.html")
    assert "abandoned (2)" in Path("page.html").read_text()
    assert "as it was written" in command("verify", "s.db")
    assert "wrote 2 batches" in command("export", "s.db", "--out", "episodes")
    exported = load_npz("episodes/batch-1.npz")
    assert exported.request == asked[1]["identity"]
    np.testing.assert_array_equal(exported.trajectories.log_probs, load_npz("e1.npz").trajectories.log_probs)


def test_a_robot_that_runs_a_defensive_mixture_needs_its_file_only(command):
    """Its log-probabilities by the formula of docs/studies.md, in plain NumPy, are those that the study expects."""
    assert "has no meaning for method 'mc'" in command(
        "create", "s.db", "--policy", "gridworld-early", "--method", "mc", "--defensive", 0.2, code=2
    )
    command("create", "s.db", "--policy", "gridworld-early", "--defensive", 0.2)
    for number in range(3):
        request = json.loads(command("ask", "s.db", "--out", "behavior.npz", "--json"))
        robot("behavior.npz", "episodes.npz", number)
        episodes = load_npz("episodes.npz").trajectories
        kept = dict(np.load("behavior.npz"))
        steps = [
            np.where(
                episodes.mask, log_softmax(kept[f"{name}.logits"], axis=1)[episodes.observations, episodes.actions], 0.0
            )
            for name in ("evaluation", "component")
        ]
        evaluation, component = (np.cumsum(part, axis=1) for part in steps)
        share = kept["share"]
        together = np.logaddexp(np.log(share) + evaluation, np.log1p(-share) + component)
        log_probs = np.diff(together, axis=1, prepend=0.0) * episodes.mask
        np.testing.assert_allclose(episodes.log_probs, log_probs, atol=1e-9)
        wrong = dataclasses.replace(episodes, log_probs=steps[1])
        save_npz("wrong.npz", wrong, request=request["identity"])
        if number:  # at first both policies are the same
            assert "log-probability of episode" in command("tell", "s.db", number, "wrong.npz", code=2)
        command("tell", "s.db", number, "episodes.npz")
    with bps.Study.open("s.db", read_only=True) as study:
        weights = np.exp(study.estimate().data.log_weights)
    assert weights.max() <= (1.0 + 1e-9) / 0.2
    assert weights[40:].std() > 0.0


def test_a_damaged_study_is_named_and_what_is_intact_can_be_had(command, tmp_path):
    policy = bps.shipped_policy("gridworld-early")
    method = dataclasses.replace(find_method("mc"), batch_size=200)
    with bps.Study(policy, method, seed=0, store="s.db") as study:
        study.run(bps.envs.gridworld(), total=600)
        position = study._progress._told_at[1]
    database = sqlite3.connect("s.db")
    (data,) = database.execute("SELECT arrays FROM journal WHERE position = ?", (position,)).fetchone()
    database.close()
    content = bytearray(Path("s.db").read_bytes())
    needle = next(data[i : i + 40] for i in range(1000, len(data)) if content.count(data[i : i + 40]) == 1)
    content[content.index(needle)] ^= 1
    Path("s.db").write_bytes(content)
    assert f"event {position} is damaged: its arrays cannot be read: their checksum does not fit" in command(
        "verify", "s.db", code=1
    )
    said = command("export", "s.db", "--out", "episodes", code=1)
    assert "wrote 2 batches" in said
    assert f"not written: event {position} is damaged" in said
    assert sorted(path.name for path in Path("episodes").iterdir()) == ["batch-0.npz", "batch-2.npz"]
    Path("cut.db").write_bytes(content[: 9 * len(content) // 10])
    assert "bytes of the file are missing" in command("verify", "cut.db", code=1)
    assert "bytes of the file are missing" in command("ask", "cut.db", "--out", "p.npz", code=2)
    command("export", "cut.db", "--out", "rest", code=1)
    assert [path.name for path in Path("rest").iterdir()] == ["batch-0.npz"], "the second is damaged, the third cut"
    Path("a.db").write_text("nonsense")
    assert "not a journal of bpsearch" in command("status", "a.db", code=2)
    assert "there is no journal" in command("estimate", "nowhere.db", code=2)


def test_of_a_torch_policy_the_parameters_are_handed_out(command):
    pytest.importorskip("stable_baselines3")
    assert "--env is needed" in command("create", "s.db", "--policy", AGENT, code=2)
    command("create", "s.db", "--policy", AGENT, "--env", "CartPole-v1", "--method", "mc")
    command("ask", "s.db", "--out", "p.npz")
    with pytest.raises(PolicyFileError, match=r"only the parameters of a TorchPolicy are kept.*load\('.*zip', env"):
        bps.load_policy("p.npz")
    own = bps.load_sb3(AGENT, "CartPole-v1", adapt="last")
    given = own.with_flat(np.load("p.npz")["parameters"])
    np.testing.assert_array_equal(given.flat, own.flat)
    trajectories = bps.sample("CartPole-v1", given, 3, horizon=10)
    save_npz("e.npz", trajectories, request=request_of("p.npz"))
    assert "the study has 3" in command("tell", "s.db", 0, "e.npz")
    assert json.loads(command("estimate", "s.db", "--json"))["episodes"] == 3


def test_evaluate_goes_on_from_its_store(tmp_path):
    arguments = {"method": dataclasses.replace(find_method("mc"), batch_size=50), "seed": 2}
    policy, env = bps.shipped_policy("gridworld-early"), "bpsearch/Gridworld-v0"
    whole = bps.evaluate(policy, env, 200, **arguments)
    for episodes in (100, 200, 200):
        parts = bps.evaluate(policy, env, episodes, **arguments, store=tmp_path / "s.db")
    assert (parts.value, parts.episodes) == (whole.value, 200)
    with pytest.raises(SettingsMismatchError, match=r"horizon \(stored 100, given 7\)"):
        bps.evaluate(policy, bps.environment(env, horizon=7), 200, **arguments, store=tmp_path / "s.db")
