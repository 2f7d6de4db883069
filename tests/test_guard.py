"""Files that were made to do harm, commands that were killed, and what must not be lost or let in."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, RequestError, StoreError
from bpsearch.policies.files import request_of
from bpsearch.study.codec import decode_facts, encode_facts
from bpsearch.study.recorder import Recorder
from bpsearch.study.rows import event_name

POLICY = bps.SoftmaxTable(np.zeros((3, 2)))


@pytest.fixture
def command(in_process, monkeypatch, tmp_path):
    """`bpsearch study`: standard output, or, of a mistake, standard error, which has one line."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        done = in_process("study", *arguments)
        assert done.returncode == code, done
        if code == 2:
            assert done.stderr.count("\n") == 1, done.stderr
        return done.stdout if code != 2 else done.stderr

    return run


def forge(path, change):
    """Change the facts of the first event, with a checksum that fits."""
    with bps.SQLiteJournal(path) as journal, journal._writing() as database:
        row = database.execute("SELECT facts FROM journal WHERE position = 0").fetchone()
        kind, facts = decode_facts(row[0], event_name(0))
        change(facts)
        data = encode_facts(kind, facts, event_name(0))
        database.execute("UPDATE journal SET facts = ? WHERE position = 0", (data,))


def created(path):
    with bps.Study(POLICY, "mc", seed=1, store=path) as study:
        study.fix({"source": "gridworld-early", "env": None})


def test_a_study_file_cannot_choose_what_is_imported(command, tmp_path):
    """Gymnasium imports the module of an id like module:Id-v0; a crafted file named one."""
    (tmp_path / "evil.py").write_text("from pathlib import Path; Path('pwned').write_text('x')")
    bps.Study(POLICY, "mc", seed=1, store="s.db").close()

    def name_module(facts):
        facts["settings"]["policy"]["kind"] = "TorchPolicy"
        facts["settings"] |= {"source": "agent.zip", "env": "evil:Id-v0"}

    forge("s.db", name_module)
    sys.path.insert(0, str(tmp_path))
    try:
        for arguments in (["estimate", "s.db"], ["ask", "s.db", "--out", "p.npz"], ["verify", "s.db"]):
            assert "would import that module: if you trust" in command(*arguments, code=2)
        assert not Path("pwned").exists()
        command("estimate", "s.db", "--trust", code=2)  # the module knows no such environment
        assert Path("pwned").exists()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("evil", None)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["settings"].pop("method"),
        lambda facts: facts["settings"].pop("policy"),
        lambda facts: facts["settings"].pop("seed"),
        lambda facts: facts["settings"].update(seed=2**63),
        lambda facts: facts["settings"].update(policy={"kind": 5}),
        lambda facts: facts["settings"].update(method={"class": ["x"], "fields": {}}),
        lambda facts: facts["settings"].update(method={"class": "Method", "fields": {"evil": 1}}),
        lambda facts: facts["settings"].update(estimand={"class": "Return", "fields": {"discount": "high"}}),
        lambda facts: facts.update(settings=5),
        lambda facts: facts.pop("identity"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(command, change):
    created("s.db")
    forge("s.db", change)
    for arguments in (["estimate", "s.db"], ["ask", "s.db", "--out", "p.npz"]):
        assert command(*arguments, code=2).startswith("bpsearch: ")
    assert not Path("p.npz").exists()


def test_names_in_files_do_nothing_to_a_terminal(command):
    """ESC ]0; sets the title of a terminal, and others have done worse."""
    escape = "\x1b]0;owned\x07"
    created("s.db")
    forge("s.db", lambda facts: facts.update(created=escape, versions={"bpsearch": escape}))
    assert r"\x1b]0;owned\x07" in command("status", "s.db")
    command("ask", "s.db", "--out", "p.npz")
    command("abandon", "s.db", "0", "--reason", escape)
    assert "\x1b" not in command("status", "s.db")
    np.savez("e.npz", format=escape)
    assert "\x1b" not in command("tell", "s.db", "0", "e.npz", code=2)
    np.savez("e.npz", **{"format": "bpsearch trajectories 1", escape: np.zeros(2)})
    assert "\x1b" not in command("tell", "s.db", "0", "e.npz", code=2)
    forge("s.db", lambda facts: facts["settings"].update(method={"class": escape, "fields": {}}))
    assert "\x1b" not in command("estimate", "s.db", code=2)


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**30, -1, 1.5, True, "7"])
def test_seeds_beyond_64_bit_are_refused(seed):
    for use in (
        lambda: bps.Study(POLICY, "mc", seed=seed),
        lambda: bps.sample(bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), 2, seed=seed),
        lambda: bps.sample("CartPole-v1", _left(), 2, seed=seed),
        lambda: bps.evaluate("gridworld-early", bps.envs.gridworld(), 10, seed=seed),
    ):
        with pytest.raises(InvalidArgumentError, match="seed must be a whole number from 0 to"):
            use()


def _left():
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    return bps.FunctionPolicy(lambda observation: 0, (env.observation_space, env.action_space))


def test_the_largest_seed_works():
    batch = bps.sample("CartPole-v1", _left(), 2, seed=2**63 - 1)
    assert batch.seed.tolist() == [2**63 - 1, 0]
    batch = bps.sample(bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), 2, seed=2**63 - 1)
    assert batch.seed.tolist() == [2**63 - 1, 0]


def test_an_export_writes_nowhere_else(command, tmp_path):
    """The number of a batch makes the name of its file: a crafted one would lead out of the directory."""
    mdp = bps.TabularMDP(np.full((3, 2, 3), 1 / 3), np.ones((3, 2, 3)), [1, 0, 0], [False] * 3, 2)
    with bps.Study(POLICY, "mc", seed=1, store="s.db") as study:
        study.tell(study.ask().number, bps.sample(mdp, POLICY, 4))
    told = 2
    with bps.SQLiteJournal("s.db") as journal, journal._writing() as database:
        row = database.execute("SELECT facts FROM journal WHERE position = ?", (told,)).fetchone()
        kind, facts = decode_facts(row[0], event_name(told))
        data = encode_facts(kind, facts | {"number": "/../../elsewhere"}, event_name(told))
        database.execute("UPDATE journal SET facts = ? WHERE position = ?", (data, told))
    assert "event 2 holds no batch of this program" in command("export", "s.db", "--out", "episodes", code=1)
    assert [path.name for path in tmp_path.rglob("*.npz")] == []


# What was killed.


def test_an_open_request_can_be_written_again(command):
    created("s.db")
    first = json.loads(command("ask", "s.db", "--out", "p.npz", "--json"))
    Path("p.npz").unlink()
    again = json.loads(command("ask", "s.db", "--again", "0", "--out", "q.npz", "--json"))
    assert (again["number"], again["identity"]) == (0, first["identity"])
    assert request_of("q.npz") == first["identity"]
    assert "was never asked" in command("ask", "s.db", "--again", "1", "--out", "q.npz", code=2)
    command("abandon", "s.db", "0")
    assert "abandoned already" in command("ask", "s.db", "--again", "0", "--out", "r.npz", code=2)
    assert not Path("r.npz").exists()
    assert json.loads(command("status", "s.db", "--json"))["open"] == []


def test_a_file_that_cannot_be_written_asks_nothing(command, tmp_path):
    created("s.db")
    (tmp_path / "directory").mkdir()
    for out in ("nowhere/p.npz", "directory", "s.db/p.npz"):
        command("ask", "s.db", "--out", out, code=2)
    assert json.loads(command("status", "s.db", "--json"))["open"] == []


def test_a_write_that_fails_names_the_way_back(command, monkeypatch):
    created("s.db")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bpsearch.policies.files.save_policy", fail)
        said = command("ask", "s.db", "--out", "p.npz", code=2)
    assert "`bpsearch study ask s.db --again 0 --out ...` writes its behavior again" in said
    assert not list(Path().glob("p.npz*"))
    command("ask", "s.db", "--again", "0", "--out", "p.npz")
    assert request_of("p.npz")


CREATE = """
import os, signal, sys
import bpsearch.cli, bpsearch.study.sqlite as sqlite
original, seen, point = sqlite.SQLiteJournal.__init__, [], int(sys.argv[1])

def reach(name):
    seen.append(name)
    if len(seen) == point:
        os.kill(os.getpid(), signal.SIGKILL)

def init(self, path, *, read_only=False, on_write=None):
    original(self, path, read_only=read_only, on_write=reach)

sqlite.SQLiteJournal.__init__ = init
sys.argv[1:] = ["study", "create", sys.argv[2], "--policy", "gridworld-early", "--method", "mc", "--seed", "1"]
bpsearch.cli.main()
"""


@pytest.mark.slow
def test_a_create_that_was_killed_is_taken_up(command):
    """At every point of its writes: the same command ends it, and only a whole study exists already."""
    for point in (1, 3, 7, 11):
        file = f"{point}.db"
        killed = subprocess.run([sys.executable, "-c", CREATE, str(point), file], capture_output=True, timeout=100)
        whole = killed.returncode == 0
        assert whole or killed.returncode == -signal.SIGKILL, killed
        arguments = ("create", file, "--policy", "gridworld-early", "--method", "mc", "--seed", "1")
        if whole:
            assert "exists already" in command(*arguments, code=2)
            continue
        before = Recorder(bps.SQLiteJournal(file, read_only=True)) if _has_study(file) else None
        settings = None if before is None else before.read().settings
        if settings is None or "source" not in settings:
            command(*arguments)
        command("verify", file)
        assert "exists already" in command(*arguments, code=2)


def _has_study(file):
    try:
        with bps.SQLiteJournal(file, read_only=True) as journal:
            return len(journal) > 0
    except StoreError:
        return False


def test_another_study_does_not_take_up_what_was_left(command):
    with bps.Study(POLICY, "mc", seed=1, store="s.db"):
        pass  # as a create that was killed before it wrote the source
    assert "other settings" in command("create", "s.db", "--policy", "gridworld-early", code=2)
    Path("text.db").write_text("not a journal at all")
    assert "is not a journal of bpsearch" in command("create", "text.db", "--policy", "gridworld-early", code=2)
    assert Path("text.db").read_text() == "not a journal at all"


def test_a_request_once_more_in_python():
    study = bps.Study(POLICY, "mc", seed=1)
    asked = study.ask()
    assert study.request(0).identity == asked.identity
    with pytest.raises(RequestError, match="was never asked"):
        study.request(1)
