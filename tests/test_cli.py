"""The command, as a user runs it."""

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError
from bpsearch.methods import find_method

PROGRAM = Path(sys.executable).parent / "bpsearch"


def bpsearch(*arguments, cwd):
    return subprocess.run([str(PROGRAM), *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_demo_shows_that_search_and_default_beat_monte_carlo(tmp_path):
    done = bpsearch("demo", "--episodes", "2000", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    plain, paper, default = result["methods"].values()
    assert default["mean_squared_error"] < paper["mean_squared_error"] < plain["mean_squared_error"]
    assert default["savings"] > paper["savings"] > 1.0
    assert plain["episodes"] == paper["episodes"] == default["episodes"] == 2000
    assert (tmp_path / result["figure"]).stat().st_size > 10_000


AGENT = Path(__file__).parent / "agents" / "ppo-cartpole-v1.zip"


def test_evaluate_writes_a_page_and_a_result(in_process, tmp_path):
    done = in_process(
        "evaluate", "--env", "CartPole-v1", "--policy", str(AGENT), "--episodes", "60", "--batch-size", "30",
        "--horizon", "50", "--num-envs", "4", "--out", tmp_path / "found",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "95% interval" in done.stdout
    assert "\x1b" not in done.stdout, "quiet where there is no terminal"
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    assert result["episodes"] == 60
    settings = {"env": "CartPole-v1", "policy": str(AGENT), "horizon": 50, "num_envs": 4, "batch_size": 30}
    assert result["settings"].items() >= settings.items()
    assert f"\nseed {result['settings']['seed']}\n" in done.stdout
    assert "<svg" in (tmp_path / "found" / "report.html").read_text()


@pytest.mark.slow
def test_evaluate_prints_json_for_the_packages_own_environments(tmp_path):
    arguments = ("--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", "--episodes", "200", "--json")
    done = bpsearch("evaluate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["settings"]["env"] == "bpsearch/Gridworld-v0"


CARTPOLE = ("evaluate", "--env", "CartPole-v1", "--policy", AGENT, "--horizon", "20")
GRIDWORLD = ("evaluate", "--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", "--seed", "0", "--json")


def test_a_stored_evaluation_goes_on_and_can_be_opened(in_process, tmp_path):
    """The file holds the names by which policy and environment can be found again."""
    arguments = (*CARTPOLE, "--method", "mc", "--store", tmp_path / "s.db", "--json")
    first = json.loads(in_process(*arguments, "--episodes", "10").stdout)
    whole = json.loads(in_process(*arguments, "--episodes", "20").stdout)
    assert (first["episodes"], whole["episodes"]) == (10, 20)
    assert first["settings"]["seed"] == whole["settings"]["seed"]
    status = json.loads(in_process("study", "status", tmp_path / "s.db", "--json").stdout)
    named = {"source": str(AGENT), "env": "CartPole-v1", "horizon": 20}
    assert status["settings"].items() >= named.items()
    again = json.loads(in_process("study", "estimate", tmp_path / "s.db", "--json").stdout)
    assert (again["value"], again["episodes"]) == (whole["value"], 20)
    for changed, message in (
        ({"--horizon": "30"}, "horizon (stored 20, given 30)"),
        ({"--env-kwargs": '{"sutton_barto_reward": true}'}, "env_kwargs (stored None, given"),
        ({"--batch-size": "5"}, "method.batch_size (stored 100, given 5)"),
        ({"--discount": "0.9"}, "estimand.discount (stored 1.0, given 0.9)"),
    ):
        done = in_process(*arguments, "--episodes", "30", *(part for pair in changed.items() for part in pair))
        assert done.returncode == 2
        assert message in done.stderr


def test_a_study_of_an_object_says_how_to_open_it(in_process, tmp_path):
    policy = bps.load_sb3(AGENT, "CartPole-v1", adapt="last")
    bps.evaluate(policy, "CartPole-v1", 4, "mc", store=tmp_path / "s.db")
    done = in_process("study", "estimate", tmp_path / "s.db")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the study's policy must be given to open it" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "method", "settings"),
    [
        ([], "auto", {}),
        (["--batch-size", "50"], "auto", {"batch_size": 50}),
        (["--failure", "return < -80"], "failures", {"failure": "return < -80"}),
        (["--failure", "return < -80", "--batch-size", "50"], "failures", {"batch_size": 50}),
        (["--defensive", "0.1"], "bpg", {"defensive": 0.1}),
        (["--method", "pdis-bpg", "--defensive", "0.1"], "pdis-bpg", {"defensive": 0.1}),
        (["--method", "bpg", "--batch-size", "50", "--lag", "1"], "bpg", {"batch_size": 50, "lag": 1}),
        (["--target", "100"], "auto", {"target": 100.0}),
        (["--relative-target", "9", "--time-limit", "60"], "auto", {"target": {"relative": 9.0, "seconds": 60.0}}),
        (["--return-range", "-550", "101"], "auto", {"estimand": "Return(discount=1.0, return_range=(-550.0, 101.0))"}),
        (["--horizon", "5", "--discount", "0.5"], "auto", {"horizon": 5, "discount": 0.5}),
    ],
)
def test_options_mean_what_they_mean_in_python(options, method, settings, in_process):
    done = in_process(*GRIDWORLD, "--episodes", "200", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["method"] == found["settings"]["method"] == method
    assert found["settings"].items() >= settings.items()
    arguments = {"episodes": 200, "seed": 0, "failure": found["settings"].get("failure")}
    place = bps.environment("bpsearch/Gridworld-v0", horizon=settings.get("horizon"), discount=settings.get("discount"))
    chosen = find_method(method, place)
    search = dataclasses.replace(chosen.search, **{k: v for k, v in settings.items() if k == "defensive"})
    chosen = dataclasses.replace(
        chosen, search=search, batch_size=settings.get("batch_size", 100), lag=settings.get("lag", 0)
    )
    if "target" in settings:
        target = settings["target"]
        arguments["target"] = bps.Target(**target) if isinstance(target, dict) else target
    expected = bps.evaluate("gridworld-early", place, method=chosen, **arguments)
    assert (found["value"], found["episodes"], found["ended"]) == (expected.value, expected.episodes, expected.ended)
    assert found["interval"] == pytest.approx(list(expected.interval()))


def test_a_policy_without_action_noise_says_why(in_process, tmp_path):
    from stable_baselines3 import DQN

    DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10, seed=0).save(tmp_path / "dqn.zip")
    arguments = ("evaluate", "--env", "CartPole-v1", "--policy", tmp_path / "dqn.zip", "--episodes", "4")
    for options in ([], ["--batch-size", "2"], ["--defensive", "0.1"], ["--failure", "length < 5"]):
        done = in_process(*arguments, *options)
        assert done.returncode == 0, done.stderr
        assert "method: auto" in done.stdout
        assert "Behavior search cannot help here, because the policy is deterministic" in done.stdout


def test_plan_answers_people_and_machines(in_process):
    arguments = ["--env", "CartPole-v1", "--policy", str(AGENT), "--pilot", "60", "--horizon", "50", "--halfwidth", "1"]
    arguments += ["--seed", "0"]
    done = in_process("plan", *arguments)
    assert done.returncode == 0, done.stderr
    for expected in ("A pilot of 60 episodes", "from the policy's actions", "for a 95% interval of ± 1"):
        assert expected in done.stdout.replace("For a", "for a")
    found = json.loads(in_process("plan", *arguments, "--json").stdout)
    assert found["settings"]["horizon"] == 50
    assert 0.0 <= found["action_share"]["low"] <= found["action_share"]["estimate"] <= 1.0
    assert found["monte_carlo_episodes"]["estimate"] >= 2
    assert f"{found['monte_carlo_episodes']['estimate']:.0f}" in done.stdout


@pytest.mark.parametrize(
    ("command", "changed", "message"),
    [
        ("evaluate", {"--policy": "nobody.zip"}, "nobody.zip"),
        ("evaluate", {"--env": "Nowhere-v0"}, "cannot make the environment 'Nowhere-v0'"),
        ("evaluate", {"--env": "Pendulum-v1"}, "space"),
        ("evaluate", {"--method": "magic"}, "method must be one of"),
        ("evaluate", {"--episodes": "0"}, "episodes must be a whole number of at least 1, got 0"),
        ("evaluate", {"--discount": "1.5"}, "discount must be"),
        ("evaluate", {"--env-kwargs": "[1]"}, "must be a JSON object"),
        ("evaluate", {"--env-kwargs": '{"no_such": 1}'}, "no_such"),
        ("evaluate", {"--env": "no_such_module:Nowhere-v0"}, "no_such_module"),
        ("evaluate", {"--target": "0"}, "halfwidth must be a finite number greater than 0"),
        ("evaluate", {"--time-limit": "-1"}, "seconds must be a finite number greater than 0"),
        ("evaluate", {"--batch-size": "0"}, "batch_size must be a whole number of at least 1, got 0"),
        ("evaluate", {"--method": "mc", "--defensive": "0.1"}, "defensive has no meaning for method 'mc'"),
        ("evaluate", {"--method": "mc", "--lag": "1"}, "lag has no meaning for method 'mc'"),
        ("evaluate", {"--lag": "-1"}, "lag must be a whole number of at least 0, got -1"),
        ("evaluate", {"--failure": "crash"}, "failure must compare 'return' or 'length'"),
        ("evaluate", {"--vectorization": "parallel"}, "vectorization must be 'sync' or 'async'"),
        ("plan", {"--policy": "nobody.zip"}, "nobody.zip"),
        ("plan", {"--env": "Pendulum-v1"}, "space"),
        ("plan", {"--pilot": "15"}, "pilot must be a whole number of at least 20, got 15"),
        ("plan", {"--halfwidth": "-1"}, "halfwidth must be a finite number greater than 0"),
        ("plan", {"--env-kwargs": "[1]"}, "must be a JSON object"),
    ],
)
def test_a_command_names_a_mistake_in_one_line(command, changed, message, in_process):
    options = {"--env": "CartPole-v1", "--policy": AGENT} | changed
    done = in_process(command, *(part for pair in options.items() for part in pair))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_has_the_names_and_defaults_of_the_python_call():
    from bpsearch.cli import shared
    from bpsearch.cli.compare import compare
    from bpsearch.cli.evaluate import evaluate
    from bpsearch.cli.plan import plan
    from bpsearch.methods import METHODS

    assert tuple(METHODS) == shared.METHODS
    own = {"on_batch", "on_round", "estimand", "progress", "proxy"}  # objects of Python alone
    renamed = {"relative": "relative_target", "seconds": "time_limit"}  # of a `Target`
    for command, calls in (
        (evaluate, (bps.evaluate, bps.environment)),
        (plan, (bps.plan, bps.environment)),
        (compare, (bps.compare, bps.environment)),
    ):
        options = inspect.signature(command).parameters
        for call in calls:
            for name, parameter in inspect.signature(call).parameters.items():
                if name not in own and (call, name) != (bps.evaluate, "level"):
                    assert options[name].default == parameter.default, (command, name)
    options = inspect.signature(evaluate).parameters
    assert options["batch_size"].default == inspect.signature(bps.Method).parameters["batch_size"].default
    assert options["lag"].default == inspect.signature(bps.Method).parameters["lag"].default
    for name, parameter in inspect.signature(bps.Target).parameters.items():
        if name in renamed:
            assert options[renamed[name]].default == parameter.default
    for name in ("return_range", "normalize", "trust", "defensive"):
        assert name in options


def test_the_version_and_the_module():
    done = subprocess.run([sys.executable, "-m", "bpsearch", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"bpsearch {bps.__version__}\n"), done.stderr


@pytest.mark.parametrize("command", ["compare", "demo", "evaluate", "plan", "reproduce", "study", "train"])
def test_help_has_an_example(command, in_process):
    assert "Example: bpsearch" in in_process(command, "--help").stdout


def test_every_command_of_a_study_has_an_example():
    from bpsearch.cli.study import study

    names = [command.callback.__name__ for command in study.registered_commands]
    assert names == ["create", "status", "ask", "tell", "abandon", "estimate", "report", "verify", "export"]
    for name, command in zip(names, study.registered_commands, strict=True):
        assert command.epilog.startswith(f"Example: bpsearch study {name} ")


def test_a_mistake_gives_one_line_and_a_non_zero_exit(in_process):
    done = in_process("train", "nobody")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "policy must be one of" in done.stderr
    with pytest.raises(InvalidArgumentError, match="policy must be one of"):
        in_process("--debug", "train", "nobody")
