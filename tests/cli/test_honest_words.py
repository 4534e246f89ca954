"""What a trial alone says: promising or not, whatever looks at it. Faster, slower and the like are said of proofs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.records import AblationResult, FinalistResult, TrialResult, TrialStatus
from autotune.results.api import compare, load
from autotune.results.effects import study_tables
from autotune.results.tables import trial_rows
from autotune.rundir.store import RECORDS, Store
from autotune.stats.estimates import Outlook, Verdict, judge
from autotune.study.confirm import worth_proving
from tests.console import commands
from tests.runs import Run, replay_study

MIN_EFFECT = 0.005
OF_PROOFS = re.compile(r"\b(" + "|".join(map(re.escape, Verdict)) + r")\b", re.IGNORECASE)
REFUSED = {"export", "exec", "verify", "recheck", "library add"}
"""Commands that need a winner: what they say of this run is that it has none."""


@pytest.fixture(scope="module")
def runs(finished: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that ended with their search: trials that look clearly faster, clearly slower, equal, and no proof."""
    path = tmp_path_factory.mktemp("unproven") / "runs"
    for name in ("a", "b"):
        shutil.copytree(finished.path, path / name)
        lines = (path / name / RECORDS).read_text().splitlines(keepends=True)
        trials = [i for i, line in enumerate(lines) if json.loads(line)["kind"] == "trial"]
        (path / name / RECORDS).write_text("".join(lines[: trials[-1] + 1]))
    store = Store.open(path / "a")
    found = {judge(r.comparison.estimate) for r in store.of(TrialResult) if r.comparison is not None}
    assert {Verdict.FASTER, Verdict.SLOWER} <= found
    assert not store.of(FinalistResult)
    assert not store.of(AblationResult)
    return path


def refuse_words_of_proofs(text: str) -> None:
    found = OF_PROOFS.search(text)
    assert found is None, text[max(0, found.start() - 120) : found.end() + 40]


CALLS: dict[str, list[list[str]]] = {
    "status": [["runs/a"], ["--json"]],
    "show": [
        ["runs/a"],
        ["runs/a", "--json"],
        *(["runs/a", str(n)] for n in range(1, 41, 4)),
        ["runs/a", "1", "--json"],
    ],
    "repro": [["runs/a", "1"]],
    "report": [["runs/a", "--md"], ["runs/a", "--html", "a.html"]],
    "compare": [["runs/a", "runs/b"], ["runs/a", "runs/b", "--json"]],
    "fsck": [["runs/a"]],
    "export": [["runs/a"]],
    "exec": [["runs/a", "--", "true"]],
    "verify": [["runs/a"]],
    "recheck": [["runs/a"]],
    "library add": [["runs/a"]],
}


def test_no_command_says_of_a_trial_what_a_proof_says(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = [n for n, c in commands(get_command(app)) if any(re.search(r"\bRUN\b", str(p.metavar)) for p in c.params)]
    assert set(reading) == {*CALLS}
    monkeypatch.chdir(runs.parent)
    for command, arguments in ((c, a) for c, calls in CALLS.items() for a in calls):
        done = CliRunner().invoke(app, [*command.split(), *arguments])
        assert (done.exit_code != 0) == (command in REFUSED), done.output
        text = done.output + str(done.exception or "")
        refuse_words_of_proofs(text.replace("proven faster", "") if command in REFUSED else text)
        if "--html" in arguments:
            refuse_words_of_proofs(Path(arguments[-1]).read_text())


def test_what_a_trial_says_instead(runs: Path) -> None:
    said = {row.trial: row.outlook for row in trial_rows(Store.open(runs / "a"))}
    for result in Store.open(runs / "a").of(TrialResult):
        if result.status is TrialStatus.MEASURED:
            gets_a_proof = bool(worth_proving([result], count=1, min_effect=MIN_EFFECT))
            assert (said[result.number] != Outlook.NOT_PROMISING) == gets_a_proof
        elif result.comparison is None:
            assert said[result.number] is None


def test_no_frame_chart_or_notebook_says_it(runs: Path) -> None:
    study = load(runs / "a")
    frames = (study.trials, study.effects(), study.settings)
    for frame in frames:
        assert "verdict" not in frame.columns
        refuse_words_of_proofs(frame.to_csv() + frame.to_json())
    charts = (study.plot.forest(), study.plot.steps())
    for text in (repr(study), study._repr_html_(), *(c.picture + c.note for c in charts)):
        refuse_words_of_proofs(text)
    table = compare([runs / "a", runs / "b"])
    refuse_words_of_proofs(table.to_markdown() + json.dumps(table.to_json()))
    refuse_words_of_proofs(table._repr_html_())


def test_a_trial_keeps_its_word_beside_a_proof_that_refutes_it(run_replay: Run) -> None:
    """Within two processes everything is sharp; processes differ by 3 %, so that a lucky pair looks 2 % faster."""
    spec = replay_study(
        noise={"white_sd": 1e-4, "process_sd": 0.03}, study={"confirm": {"processes": 4, "finalists": 1, "soak": 0}}
    )
    _, store, diary = run_replay(spec, trials=12)
    assert any(r.comparison.estimate.ratio < 0.98 for r in diary.ended if r.comparison is not None)
    assert diary.finalists
    assert all(f.verdict is not Verdict.FASTER for f in diary.finalists)
    table = study_tables(store)[0]
    words = [str(cell) for cell in table.columns[4].cells]
    proofs = [w for w in words if "(" in w and "pairs" not in w]
    assert proofs
    for text in words[: len(words) - len(proofs)]:
        refuse_words_of_proofs(text)
    assert any(OF_PROOFS.search(w) for w in proofs)
