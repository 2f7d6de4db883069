"""The command, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bpsearch.errors import InvalidArgumentError

PROGRAM = Path(sys.executable).parent / "bpsearch"


def bpsearch(*arguments, cwd):
    return subprocess.run([str(PROGRAM), *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_demo_shows_that_the_search_beats_monte_carlo(tmp_path):
    done = bpsearch("demo", "--episodes", "3000", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    methods = result["methods"]
    assert methods["BPG"]["mean_squared_error"] < methods["Monte Carlo"]["mean_squared_error"]
    assert methods["BPG"]["savings"] > 1.2
    assert methods["BPG"]["episodes"] == methods["Monte Carlo"]["episodes"] == 3000
    assert (tmp_path / result["figure"]).stat().st_size > 10_000


AGENT = Path(__file__).parent / "agents" / "ppo-cartpole-v1.zip"


def test_evaluate_writes_a_page_and_a_result(tmp_path):
    done = bpsearch(
        "evaluate", "--env", "CartPole-v1", "--policy", str(AGENT), "--episodes", "60", "--batch-size", "30",
        "--horizon", "50", "--num-envs", "4", "--out", "found", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "95% interval" in done.stdout
    assert "\x1b" not in done.stdout, "quiet where there is no terminal"
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    assert result["episodes"] == 60
    assert result["settings"]["horizon"] == 50
    assert "<svg" in (tmp_path / "found" / "report.html").read_text()


def test_evaluate_prints_json_for_the_packages_own_environments(tmp_path):
    arguments = ("--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", "--episodes", "200", "--json")
    done = bpsearch("evaluate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["settings"]["env"] == "bpsearch/Gridworld-v0"


def test_plan_answers_people_and_machines(in_process, tmp_path):
    arguments = ("--env", "CartPole-v1", "--policy", str(AGENT), "--pilot", "60", "--horizon", "50", "--halfwidth", "1")
    done = bpsearch("plan", *arguments, cwd=tmp_path)
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


@pytest.mark.parametrize("command", ["demo", "evaluate", "plan", "reproduce", "study", "train"])
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
