"""The Snakefile, on a project in miniature: real snakemake, real LaTeX, no ranks."""

import json
import os
import re
import shutil
from datetime import datetime

import pytest
import yaml

from tests.evidence import toy

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("pipeline")]
SNAKEMAKE = ("snakemake", "--config", "executor=inline")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A project that was built once. Tests work on copies of it."""
    root = toy.build(tmp_path_factory.mktemp("built") / "project")
    done = toy.run(root, *SNAKEMAKE)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def project(built, tmp_path):
    return shutil.copytree(built, tmp_path / "project")


def planned(root, *more):
    """The jobs that snakemake would run, by their message."""
    done = toy.run(root, *SNAKEMAKE, *more, "-n")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^Job \d+: (.*)$", done.stdout + done.stderr, re.MULTILINE))


DOWNSTREAM = {
    "claims: every verdict from the results", "tables: the paper's tables and numbers", "paper: paper/paper.pdf",
    "manifest: the hash of everything built",
}  # fmt: skip
VOLUMES, REACH, FIGURE = "volumes: Volumes of a toy", "reach: Reach of a toy", "figure: curve"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_whole_chain_is_built_and_agrees_with_itself(built):
    for command in ("audit", "verify"):
        done = toy.run(built, "fivedim", command)
        assert (done.returncode, done.stdout.strip()) == (
            0,
            f"{command} {'of ' * (command == 'audit')}laptop: everything as built",
        )
    assert (
        "2.2,2,A ring & its 2(N-1)/N*S_total,exact,1.75,,1.75,S,abs 0,holds"
        in (built / "results/laptop/claims.csv").read_text()
    )


def test_a_timing_experiment_runs_alone(built):
    spans = []
    for name in ("volumes", "reach"):
        record = json.loads((built / f"results/laptop/{name}.json").read_text())
        start = datetime.fromisoformat(record["started"]).timestamp()
        spans.append((start, start + record["seconds"]))
    assert yaml.safe_load((built / "configs/experiments.yaml").read_text())["reach"]["timing"]
    (_, first_ends), (second_starts, _) = sorted(spans)
    assert first_ends <= second_starts


def test_nothing_is_left_to_do(built):
    assert planned(built) == set()


def test_lint_has_no_complaint(built):
    done = toy.run(built, "snakemake", "--lint")
    assert (done.returncode, "good condition" in done.stdout + done.stderr) == (0, True)


def test_F34_dates_in_the_future_or_of_a_fresh_clone_cause_no_work(project):
    for path in project.rglob("*"):
        os.utime(path, (4e9, 4e9) if "results" in path.parts else (1e9, 1e9))
    assert planned(project) == set()


def test_editing_a_room_runs_exactly_the_experiments_that_declare_it(project):
    room = project / "code/fivedim/precision/__init__.py"
    room.write_text(room.read_text() + "\n# edited\n")
    assert planned(project) == {REACH} | DOWNSTREAM


def test_editing_a_claim_the_text_or_a_figure_runs_what_follows_from_it(project):
    edit(project / "paper/main.tex", "A ring sends", "Each ring sends")
    assert planned(project) == {"paper: paper/paper.pdf", "manifest: the hash of everything built"}
    edit(project / "figures/curve.py", "a drawing", "the drawing")
    assert planned(project) == {FIGURE, "paper: paper/paper.pdf", "manifest: the hash of everything built"}
    edit(project / "configs/claims.yaml", "A ring", "One ring")
    assert planned(project) == {FIGURE} | DOWNSTREAM


def test_another_scale_builds_the_paper_from_its_own_results(project):
    assert planned(project, "scale=smoke") == {VOLUMES, REACH, FIGURE} | DOWNSTREAM


def test_F08_a_figure_edited_by_hand_is_named_and_not_taken_for_built(project):
    edit(project / "figures/curve.pdf", "drawing", "forgery")
    assert planned(project) == set()
    done = toy.run(project, "fivedim", "verify")
    assert done.returncode == 1
    assert "figures/curve.pdf: was changed after it was built" in done.stdout


def test_a_failed_experiment_leaves_no_result_and_the_others_go_on(project):
    edit(
        project / "configs/scales/laptop.yaml",
        "description: the default",
        "description: d\nexperiments: {reach: {fails: true}, volumes: {size: 8}}",
    )
    done = toy.run(project, *SNAKEMAKE)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "the ring is broken" in said
    logs = [project / name for name in re.findall(r"runs/reach\S+?log\.txt", said)]
    assert any("RuntimeError: the ring is broken" in log.read_text() for log in logs)
    assert not (project / "results/laptop/reach.csv").exists()
    assert "3.5" in (project / "results/laptop/volumes.csv").read_text()


def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(project, built):
    """F40: the verdicts, tables and the PDF of a second build are those of the first."""
    kept = [
        "results/laptop/claims.csv",
        "paper/paper.pdf",
        *(f"paper/generated/{name}.tex" for name in ("numbers", "claims_a02")),
    ]
    for name in ("results/laptop/claims.csv", "figures/curve.pdf", "paper/generated/numbers.tex", "paper/paper.pdf"):
        (project / name).unlink()
    shutil.rmtree(project / "paper/build")
    done = toy.run(project, *SNAKEMAKE)
    assert done.returncode == 0, done.stderr
    assert REACH not in done.stderr
    assert [(project / name).read_bytes() for name in kept] == [(built / name).read_bytes() for name in kept]


def test_F29_without_latex_the_rest_is_built_and_one_line_says_so(project, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("fivedim", "snakemake", "python"):
        (tools / name).symlink_to(shutil.which(name, path=toy.TOOLS))
    for name in ("bash", "tee", "env"):
        (tools / name).symlink_to(shutil.which(name))
    (project / "paper/paper.pdf").unlink()
    (project / "figures/curve.pdf").unlink()
    (project / "paper/generated/numbers.tex").unlink()
    done = toy.run(project, *SNAKEMAKE, path=str(tools))
    assert done.returncode != 0
    assert (
        "fivedim: no LaTeX: figures, tables and numbers are built, the PDF is not: install latexmk"
        in done.stdout + done.stderr
    )
    assert (project / "figures/curve.pdf").exists()
    assert (project / "paper/generated/numbers.tex").exists()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("2.2/exact/value", "2.2/exact/valeu", "There is no result '2.2/exact/valeu'"),
        ("A ring sends", r"By \ref{nothing} a ring sends", "Reference `nothing'"),
    ],
)
def test_F29_what_is_undefined_fails_the_paper_and_is_named(project, old, new, reason):
    edit(project / "paper/main.tex", old, new)
    done = toy.run(project, "fivedim", "paper")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr


def broken(claims):
    claims[0]["evidence"]["exact"]["experiment"] = "volume"


def misspelt(claims):
    claims[0]["statment"] = claims[0].pop("statement")


def missing_column(claims):
    claims[0]["evidence"]["exact"]["headline"]["column"] = "unit"


@pytest.mark.parametrize(
    ("fault", "words"), [(broken, ["2.2", "volume"]), (misspelt, ["2.2", "statment", "statement"])]
)
def test_F28_a_bad_claim_stops_even_a_dry_run(project, fault, words):
    path = project / "configs/claims.yaml"
    claims = yaml.safe_load(path.read_text())
    fault(claims)
    path.write_text(yaml.safe_dump(claims))
    done = toy.run(project, *SNAKEMAKE, "-n")
    line = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    assert line.startswith("fivedim: ")
    assert all(word in line for word in ["configs/claims.yaml", *words])


def test_a_missing_result_column_leaves_no_claims_table(project):
    path = project / "configs/claims.yaml"
    claims = yaml.safe_load(path.read_text())
    missing_column(claims)
    path.write_text(yaml.safe_dump(claims))
    done = toy.run(project, *SNAKEMAKE)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "volumes.csv: claim 2.2, exact, 'all-reduce': no column 'unit'; there are op, units" in said
    assert not (project / "results/laptop/claims.csv").exists()


NO_NETWORK = ("unshare", "--net" if os.geteuid() == 0 else "-rn")


def test_F35_without_a_network_the_report_holds_the_claims_table_and_every_figure(project):
    assert toy.run(project, *NO_NETWORK, "cat", "/proc/net/route").stdout.count("\n") <= 1
    done = toy.run(project, *NO_NETWORK, *SNAKEMAKE, "--report", "report.html")
    assert done.returncode == 0, done.stderr
    page = (project / "report.html").read_text()
    assert "Drawn by" in page
    assert "claims.csv" in page
    assert "curve.png" in page
    assert toy.run(project, *SNAKEMAKE, "--dag").stdout.startswith("digraph")
