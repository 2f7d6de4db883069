"""The page about an estimate, and the lines that repeat it."""

import dataclasses
import datetime
import json
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.inference.stopping import Ended, Target
from bpsearch.report import words
from bpsearch.report.page import render
from bpsearch.report.repeat import repeat_lines
from test_words import estimate_of, events, plain_returns, weighted

ENV, POLICY = "bpsearch/Gridworld-v0", "gridworld-early"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "br", "img", "hr", "input"}


SETTINGS = {"policy": POLICY, "env": ENV, "episodes": 400, "method": "bpg", "seed": 0}


@pytest.fixture(scope="module")
def result():
    return weighted(return_range=(0.0, 2.0), weight_bound=4.0, method="bpg", settings=SETTINGS)


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("report") / "deep" / "report.html")


class Structure(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_file_without_network(page, result):
    assert page.parts[-2:] == ("deep", "report.html")
    text = page.read_text(encoding="utf-8")
    structure = Structure()
    structure.feed(text)
    assert not structure.open
    assert structure.seen.count("svg") == 5
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"(src|href)=\"(?!#)", without_names)
    assert "http" not in re.sub(r"<metadata>.*?</metadata>", "", without_names, flags=re.S)
    for part in ("95% interval", "prefers-color-scheme: dark", "@media print", "bps.evaluate(", "jax", "method"):
        assert part in text
    assert f'<div class="value">{words.value_text(result)}</div>' in text
    assert datetime.date.today().isoformat() in text
    assert page.stat().st_size < 400_000


def titles(page):
    return re.findall("<h3>(.*?)</h3>", page)


def test_the_page_shows_what_the_method_has_to_show(page):
    """Weights that are all 1, and variances that differ by luck alone, have no figure."""
    settled, batches = "The estimate as it settled", "Variance, batch by batch"
    returns = plain_returns()
    corrected = render(estimate_of(0.1 * returns - 26.4, returns=returns))
    assert titles(corrected) == [settled, batches, "Returns, and what is left of them"]
    assert "effective sample size" not in corrected
    assert "importance weighting" not in corrected
    assert titles(render(estimate_of(returns))) == [settled, "Returns"]
    differs = "How the behavior differs from the policy"
    assert titles(page.read_text()) == [settled, batches, "Importance weights", "Returns", differs]
    assert "effective sample size" in page.read_text()
    failure = render(events(3, 100))
    assert titles(failure) == [settled]
    assert '<p class="sentence">Probability of return &lt; -80: ' in failure


def test_the_page_shows_three_intervals_each_with_its_promise(page, result):
    text = page.read_text()
    for promise in words.promises(result):
        assert f'<strong>{promise.name}</strong><br><span class="ends">{promise.shown}</span>' in text
        assert f">{promise.kind[0].upper()}{promise.kind[1:]}.</p>" in text
    assert text.count('<div class="scale">') == 3
    unbounded = render(estimate_of(plain_returns()))
    assert unbounded.count('<div class="scale">') == 2
    assert "Unknown, because it needs bounded returns (<code>return_range</code>).</p>" in unbounded
    assert "central limit" not in text
    assert "Bernstein" not in text


def test_the_bars_of_the_intervals_are_to_scale(page, result):
    bars = re.findall(r'<i style="left: ([\d.]+)%; width: ([\d.]+)%"></i><b style="left: ([\d.]+)%">', page.read_text())
    low, high = result.certified_interval()
    for promise, bar in zip(words.promises(result), bars, strict=True):
        start, end = promise.interval
        expected = [start - low, end - start, result.value - low]
        np.testing.assert_allclose([float(part) for part in bar], 100.0 * np.array(expected) / (high - low), atol=0.01)


def test_names_in_the_page_are_escaped():
    evil = "<script>alert(1)</script>"
    settings = SETTINGS | {"policy": evil, "more": evil}
    assert "<script>" not in render(estimate_of(plain_returns(), settings=settings, method=evil, no_help=f"`{evil}`"))


def test_short_and_degenerate_studies_have_a_page():
    for values in ([2.0], [2.0, 3.0], [2.0, 2.0, 2.0]):
        assert "Expected return of the policy</h1>" in render(estimate_of(values))
    assert "Return &lt; -80 in none of 100 episodes" in render(events(0, 100))
    assert "<pre>" not in render(events(0, 100))


def run(lines):
    """What the lines would print."""
    printed = []
    exec(lines, {"print": printed.append})
    return printed


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"failure": "return < -80"},
        {"target": 12.0},
        {"target": Target(halfwidth=40.0, kind="certified")},
        {"estimand": bps.Return(discount=1.0, return_range=(-550.0, 101.0))},
        {"store": "study.db"},
    ],
    ids=lambda arguments: next(iter(arguments), "nothing else"),
)
def test_the_lines_that_repeat_it_run(arguments, tmp_path, monkeypatch):
    """Those of the page, and a store does not spare the episodes."""
    monkeypatch.chdir(tmp_path)
    found = bps.evaluate(POLICY, ENV, 200, "mc", **arguments)
    shown = re.search("<pre>(.*?)</pre>", render(found), flags=re.S).group(1)
    lines = repeat_lines(found)
    assert shown == lines.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")
    monkeypatch.chdir(tmp_path.parent)
    (again,) = run(lines)
    assert (again.value, again.episodes, again.ended) == (found.value, found.episodes, found.ended)
    assert again.anytime_interval() == found.anytime_interval()


@pytest.mark.parametrize("ended", [Ended.INTERRUPTED, Ended.TIME_LIMIT])
def test_what_was_cut_short_is_repeated_with_as_many_episodes(ended):
    found = bps.evaluate(POLICY, ENV, 200, "mc", seed=3)
    cut = dataclasses.replace(
        found, ended=ended, settings=found.settings | {"episodes": 9000, "target": {"seconds": 9}}
    )
    lines = repeat_lines(cut)
    assert "after 200 episodes" in lines
    assert run(lines)[0].value == found.value


def test_settings_of_the_environment_are_repeated_with_it():
    """The names are those of the command's options."""
    cut = bps.environment(ENV, horizon=5, discount=0.9)
    found = bps.evaluate(POLICY, cut, 100, "mc", seed=0)
    named = dataclasses.replace(found, settings=found.settings | {"env": ENV, "horizon": 5, "discount": 0.9})
    assert "bps.environment('bpsearch/Gridworld-v0', horizon=5, discount=0.9)" in repeat_lines(named)
    assert run(repeat_lines(named))[0].value == found.value
    settings = {"policy": "model.zip", "env": "CartPole-v1", "episodes": 100, "discount": 0.9, "env_kwargs": {"a": 1}}
    lines = repeat_lines(dataclasses.replace(found, settings=settings))
    assert lines.endswith(
        "print(bps.evaluate('model.zip', bps.environment('CartPole-v1', env_kwargs={'a': 1}), episodes=100, "
        "estimand=bps.Return(0.9)))"
    )
    settings |= {"failure": "return < 9", "env_kwargs": None}
    lines = repeat_lines(dataclasses.replace(found, settings=settings))
    assert lines.endswith(
        "print(bps.evaluate('model.zip', 'CartPole-v1', episodes=100, estimand=bps.Failure('return < 9', 0.9)))"
    )
    assert bps.Failure("return < 9", 0.9).of_discount == 0.9


def test_objects_are_not_repeated_by_a_line_that_cannot_run(result):
    for policy, env in ((bps.shipped_policy(POLICY), bps.envs.gridworld()), ("<SoftmaxTable>", "<TabularMDP>")):
        objects = {"policy": policy, "env": env, "horizon": 9, "discount": 0.9}
        made = dataclasses.replace(result, settings=result.settings | objects)
        lines = repeat_lines(made).splitlines()
        assert all(line.startswith("# ") for line in lines)
        assert "policy (SoftmaxTable) and env (TabularMDP)" in lines[0]
        assert lines[-1] == "# print(bps.evaluate(policy, env, episodes=400, method='bpg', seed=0))"
    outcome = dataclasses.replace(result, settings=result.settings | {"estimand": f"Outcome(function={render})"})
    assert "estimand (Outcome)" in repeat_lines(outcome)
    assert repeat_lines(dataclasses.replace(result, settings={})) == ""


def test_an_evaluation_of_objects_says_so():
    found = bps.evaluate(bps.shipped_policy(POLICY), bps.envs.gridworld(), 100, bps.OnPolicy(), seed=0)
    assert repeat_lines(found).startswith("# ")
    for name in ("policy (SoftmaxTable)", "env (TabularMDP)", "method"):
        assert name in repeat_lines(found)


def test_where_actions_make_no_variance_the_estimate_says_so():
    transitions, rewards = np.zeros((3, 2, 3)), np.zeros((3, 2, 3))
    transitions[0, :, 1:] = 0.5
    rewards[0, :, 1] = 1.0
    coin = bps.TabularMDP(transitions, rewards, [1.0, 0, 0], [False, True, True], horizon=1)
    result = bps.evaluate(bps.SoftmaxTable.uniform(3, 2), coin, 500, seed=0)
    assert "behavior search cannot help here, because the policy's action noise" in str(result)
    assert result.explained < 0.03


def chromium(directory, *arguments):
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=2000"
    )
    done = subprocess.run(
        [CHROMIUM, *flags.split(), f"--user-data-dir={directory / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout


def probed(page, directory, expression, *arguments):
    """What a script finds in the page as the browser shows it."""
    probe = directory / "probe.html"
    script = (
        f"<script>addEventListener('load', () => {{ document.title = [{expression}].join(' '); }});</script></head>"
    )
    probe.write_text(page.replace("</head>", script))
    return re.search("<title>(.*?)</title>", chromium(directory, *arguments, "--dump-dom", str(probe))).group(1)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_in_a_browser(page, tmp_path, width):
    """It renders, and nothing is wider than the window."""
    found = (
        "document.documentElement.scrollWidth <= innerWidth, document.querySelectorAll('figure svg').length,"
        "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 100)"
    )
    assert probed(page.read_text(), tmp_path, found, f"--window-size={width},2000") == "true 5 true"


DARK = "--blink-settings=preferredColorScheme=0"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_is_dark_on_a_dark_screen_and_light_in_print(page, tmp_path):
    colors = "getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color"
    assert probed(page.read_text(), tmp_path, colors, DARK) == "rgb(15, 20, 25) rgb(230, 237, 243)"
    as_printed = page.read_text().replace("@media print", "@media all")
    assert probed(as_printed, tmp_path, colors, DARK) == "rgb(255, 255, 255) rgb(0, 0, 0)"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_in_print(page, tmp_path):
    """A few sheets of paper, none of them for a few lines that something unbreakable has pushed over."""
    chromium(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer", str(page))
    assert len(re.findall(rb"/Type */Page\b", (tmp_path / "page.pdf").read_bytes())) in (2, 3)


def test_options_that_only_the_command_has_are_repeated_by_the_command(in_process):
    result = bps.evaluate(POLICY, ENV, 200, "bpg", seed=3)
    settings = result.settings | {"batch_size": 50, "target": {"seconds": 60.0, "level": 0.95}}
    line = repeat_lines(dataclasses.replace(result, settings=settings))
    words_ = shlex.split(line)
    assert words_[:2] == ["bpsearch", "evaluate"]
    assert words_[words_.index("--batch-size") + 1] == "50"
    assert words_[words_.index("--time-limit") + 1] == "60.0"
    done = in_process(*words_[1:], "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 200
