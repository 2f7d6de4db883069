"""`bpsearch study`: a study in a file, for people who run the episodes themselves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bpsearch.cli.evaluate import print_estimate, with_defense
from bpsearch.cli.shared import AsJson, Defensive, Seed, Trust, prepare_jax, print_json, say
from bpsearch.errors import BPSearchError, InvalidArgumentError, InvalidTrajectoriesError, StoreError

if TYPE_CHECKING:
    from bpsearch.study import SQLiteJournal, Study

study = typer.Typer(
    name="study",
    help="A study in a file: ask for a behavior policy, run it wherever you like, tell what happened.",
    epilog="Example: bpsearch study create study.db --policy policy.npz",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(help="The study's file.")]
Number = Annotated[int, typer.Argument(help="The number of the request.", min=0)]


@study.command(epilog="Example: bpsearch study create study.db --policy policy.npz --method bpg")
def create(
    file: File,
    policy: Annotated[
        str, typer.Option(help="An .npz of bpsearch, the name of a shipped policy, or a .zip of Stable-Baselines3.")
    ],
    method: Annotated[str, typer.Option(help="mc, bpg, pdis-bpg; on tabular environments as, dr-bpg.")] = "bpg",
    env: Annotated[
        str | None, typer.Option(help="Gymnasium id; needed for a .zip and for the methods as and dr-bpg.")
    ] = None,
    discount: Annotated[float, typer.Option(help="The discount.")] = 1.0,
    defensive: Defensive = 0.0,
    seed: Seed = None,
    trust: Trust = False,
) -> None:
    """Make a new study."""
    prepare_jax()
    from bpsearch.estimands import Return
    from bpsearch.methods import find_method
    from bpsearch.policies.resolve import load
    from bpsearch.runners.in_process import compiled_env, plugged_env
    from bpsearch.study import Study

    if policy.endswith(".zip") and env is None:
        raise InvalidArgumentError("--env is needed for a policy of Stable-Baselines3, whose file does not name it")
    place = None if env is None else compiled_env(plugged_env(env))
    loaded = load(policy, place or env, trust=trust)  # type: ignore[arg-type]
    chosen = find_method(method, place)
    if defensive:
        chosen = with_defense(chosen, defensive)
    with Study(loaded, chosen, estimand=Return(discount), seed=seed, store=_new_journal(file)) as made:
        made.fix({"source": policy, "env": env})
        say(f"{file}: study {made.identity}, {made.method.name}")


@study.command(epilog="Example: bpsearch study status study.db")
def status(file: File, as_json: AsJson = False) -> None:
    """Show what a study has asked and been told; also while another process is at it."""
    from bpsearch.study import SQLiteJournal
    from bpsearch.study.recorder import Recorder
    from bpsearch.study.requests import Status

    with SQLiteJournal(file, read_only=True) as journal:
        history = Recorder(journal).read()
        entries, facts, settings = history.entries, history.facts, history.settings
        told = [entry.number for entry in entries if entry.status is Status.TOLD]
        episodes = sum(len(journal.event(history.told_at[number]).arrays["lengths"]) for number in told)
    waiting = [entry for entry in entries if entry.status is Status.OPEN]
    given_up = [entry for entry in entries if entry.status is Status.ABANDONED]
    if as_json:
        rows = [{"number": e.number, "identity": e.identity, "asked": e.asked} for e in waiting]
        abandoned = [{"number": e.number, "reason": e.reason, "since": e.settled} for e in given_up]
        print_json(
            {**facts, "settings": settings, "episodes": episodes, "told": told, "open": rows, "abandoned": abandoned}
        )
        return
    say(f"study {facts['identity']}, made {facts['created']} with bpsearch {_version(facts)}")
    say(f"{episodes} episodes in {len(told)} batches told, {len(waiting)} open, {len(given_up)} abandoned")
    for entry in waiting:
        say(f"request {entry.number} ({entry.identity}) waits since {entry.asked}")
    for entry in given_up:
        say(f"request {entry.number} was abandoned {entry.settled}{f': {entry.reason}' if entry.reason else ''}")


@study.command(epilog="Example: bpsearch study ask study.db --out behavior.npz")
def ask(
    file: File,
    out: Annotated[Path, typer.Option(help="File for the behavior policy.")],
    again: Annotated[
        int | None, typer.Option(help="Write the behavior of this open request once more, and ask nothing new.", min=0)
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Ask for a behavior policy, which is written to a file; its identity must come back with the episodes."""
    prepare_jax()
    from bpsearch.policies.files import save_policy

    if out.is_dir() or not out.parent.is_dir():
        raise InvalidArgumentError(f"--out must be a file in a directory that exists, got {out}")
    # The file appears whole, or not at all; a request whose file was lost is written by --again.
    part = out.with_name(out.name + ".part")
    with _open(file, trust=trust) as opened:
        source = opened.settings.get("source")
        how = f"The study was made with {source}: bpsearch.policies.resolve.load({source!r}, env) loads it."
        part.write_bytes(b"")  # if it cannot be written, nothing is asked
        try:
            request = opened.ask() if again is None else opened.request(again)
            save_policy(request.behavior, part, request=request.identity, how=how)
            part.replace(out)
        except OSError as error:
            raise InvalidArgumentError(
                f"cannot write {out}: {error.strerror or error}; request {request.number} is open: "
                f"`bpsearch study ask {file} --again {request.number} --out ...` writes its behavior again"
            ) from error
        finally:
            part.unlink(missing_ok=True)
    if as_json:
        print_json({"number": request.number, "identity": request.identity, "policy": str(out)})
        return
    say(f"request {request.number} ({request.identity}): run the policy in {out}")


@study.command(epilog="Example: bpsearch study tell study.db 0 episodes.npz")
def tell(
    file: File,
    number: Number,
    episodes: Annotated[Path, typer.Argument(help="The episodes: an .npz, or the directory of a Minari dataset.")],
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Tell the episodes of a request."""
    prepare_jax()
    from bpsearch.integrations import load_minari
    from bpsearch.sampling.npz import load_npz

    delivery = load_minari(episodes) if episodes.is_dir() else load_npz(episodes)
    if not delivery.request:
        raise InvalidTrajectoriesError(
            f"{episodes} does not say which request it answers; the identity in the policy's file must come back as "
            f"'request'"
        )
    with _open(file, trust=trust) as opened:
        opened.tell(number, delivery.trajectories, request=delivery.request)
        total = opened.episodes
    if as_json:
        print_json({"number": number, "episodes": len(delivery.trajectories), "total": total})
        return
    say(f"request {number} has {len(delivery.trajectories)} episodes; the study has {total}")


@study.command(epilog="Example: bpsearch study abandon study.db 3 --reason 'power cut'")
def abandon(
    file: File,
    number: Number,
    reason: Annotated[str, typer.Option(help="Why; every estimate will name the request.")] = "",
    trust: Trust = False,
) -> None:
    """Wait no longer for a request. The estimate is biased if the reason lies in what happened in its episodes."""
    prepare_jax()
    with _open(file, trust=trust) as opened:
        opened.abandon(number, reason)
    say(f"request {number} is abandoned")


@study.command(epilog="Example: bpsearch study estimate study.db --json")
def estimate(file: File, trust: Trust = False, as_json: AsJson = False) -> None:
    """The estimate from everything told so far; also while another process is at it."""
    prepare_jax()
    with _open(file, trust=trust, read_only=True) as opened:
        found = opened.estimate()
    if as_json:
        print_json(found.to_json())
        return
    print_estimate(found)


@study.command(epilog="Example: bpsearch study report study.db --out report.html")
def report(
    file: File,
    out: Annotated[Path, typer.Option(help="File for the page.")] = Path("report.html"),
    trust: Trust = False,
) -> None:
    """Write a page that shows and explains the estimate."""
    prepare_jax()
    with _open(file, trust=trust, read_only=True) as opened:
        say(f"wrote {opened.estimate().report(out)}")


@study.command(epilog="Example: bpsearch study verify study.db")
def verify(file: File, trust: Trust = False) -> None:
    """Check every record of a study, and that its episodes lead to its numbers; exit code 1 if not."""
    prepare_jax()
    from bpsearch.study import SQLiteJournal

    with SQLiteJournal(file, read_only=True) as journal:
        found = journal.damages()
    if not found:
        with _open(file, trust=trust, read_only=True) as opened:
            found = opened.verify()
    for line in found:
        say(line)
    if found:
        say(f"{file} is damaged; `bpsearch study export` writes the batches that are intact")
        raise typer.Exit(1)
    say(f"{file} is as it was written, and its episodes lead to its numbers")


@study.command(epilog="Example: bpsearch study export study.db --out episodes")
def export(
    file: File,
    out: Annotated[Path, typer.Option(help="Directory for the episodes, one file for each batch.")],
    to: Annotated[str, typer.Option("--format", help="npz or minari.")] = "npz",
    trust: Trust = False,
) -> None:
    """Write the episodes of all told batches; of a damaged study those that are intact. Exit code 1 if one is not."""
    prepare_jax()
    from bpsearch._core.checks import check_integer, check_type
    from bpsearch.integrations import save_minari
    from bpsearch.sampling.npz import save_npz
    from bpsearch.study import SQLiteJournal
    from bpsearch.study.recorder import Recorder

    if to not in ("npz", "minari"):
        raise InvalidArgumentError(f"--format must be npz or minari, got {to!r}")
    policy: Any = None
    if to == "minari":
        with _open(file, trust=trust, read_only=True) as opened:
            policy = opened.policy
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    with SQLiteJournal(file, read_only=True) as journal:
        recorder = Recorder(journal)
        damaged = journal.damages()
        for position in journal.intact():
            kind, facts = journal.facts(position)
            if kind != "told":
                continue
            try:
                # The name of a file is made of the number, and must not lead elsewhere.
                number = check_integer("its number", facts.get("number"), at_least=0)
                identity = check_type("its identity", facts.get("identity"), str, "a text")
                batch, _ = recorder.episodes(position)
            except (BPSearchError, ValueError) as error:
                damaged.append(f"event {position} holds no batch of this program: {error}")
                continue
            if policy is None:
                save_npz(out / f"batch-{number}.npz", batch, request=identity)
            else:
                spaces = (policy.observation_space, policy.action_space)
                save_minari(out / f"batch-{number}", batch, *spaces, request=identity)
            written += 1
    say(f"wrote {written} batches to {out}")
    for line in damaged:
        say(f"not written: {line}" if line.startswith("event") else line)
    if damaged:
        raise typer.Exit(1)


def _version(facts: dict[str, Any]) -> str:
    versions = facts["versions"]
    return str(versions.get("bpsearch", "of unknown version") if isinstance(versions, dict) else versions)


def _new_journal(file: Path) -> "SQLiteJournal":
    """The journal of a new study; one that a killed `create` has left behind is taken up.

    Raises:
        StoreError: there is a study in the file, or something else.
    """
    from bpsearch.study import SQLiteJournal
    from bpsearch.study.recorder import Recorder

    journal = SQLiteJournal(file)
    try:
        recorder = Recorder(journal)
        if not recorder.is_empty and "source" in recorder.read().settings:
            raise StoreError(f"{file} exists already, with a study in it; a new study needs a new file")
    except BaseException:
        journal.close()
        raise
    return journal


def _open(file: Path, *, trust: bool, read_only: bool = False) -> "Study":
    """The study in `file`, with its policy, which for Stable-Baselines3 comes from the file that it was made with."""
    from bpsearch.envs.resolve import check_imports_nothing
    from bpsearch.policies.files import is_complete
    from bpsearch.policies.resolve import load
    from bpsearch.study import SQLiteJournal, Study
    from bpsearch.study.policies import policy_kind
    from bpsearch.study.recorder import Recorder

    if not file.exists():
        raise StoreError(f"there is no journal {file}")
    journal = SQLiteJournal(file, read_only=read_only)
    try:
        settings = Recorder(journal).read().settings
        policy, source, env = None, settings.get("source"), settings.get("env")
        # A policy that was given as an object has no name by which it could be found: the study says what to do.
        if isinstance(source, str) and env and not source.startswith("<") and not is_complete(policy_kind(settings)):
            if not trust:
                check_imports_nothing(env)
            policy = load(source, env, trust=trust)
        return Study.open(journal, policy=policy)
    except BaseException:
        journal.close()
        raise
