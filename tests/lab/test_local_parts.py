"""The launcher's parts: telling causes from consequences, the environment, files, progress, Slurm's words."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from fivedim.errors import UserError
from fivedim.lab import environment, failures, files, job, progress, slurm, status
from fivedim.lab.failures import Failure
from fivedim.lab.spec import Spec

SPEC = Spec(
    experiment="sums", module="tests.lab.trials", instrument="meter", ranks=6, nodes=2, timing=True, params={},
    fingerprint="", minutes=0.5, timeout=20,
)  # fmt: skip


def test_the_cause_is_the_earliest_that_is_no_consequence(tmp_path: Path):
    assert failures.cause(tmp_path) is None
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")
    late = RuntimeError("Timed out waiting 2000ms for recv operation to complete")
    for who, error in [("rank 0", lost), ("rank 1", late), ("rank 2", ValueError("timeout must be positive"))]:
        failures.of_exception(who, error).write(tmp_path)
    Failure(who="rank 3", kind="killed (signal 9)", time_ns=1).write(tmp_path)
    assert str(failures.cause(tmp_path)) == "rank 3: killed (signal 9)"
    failures.path(tmp_path, "rank 3").unlink()
    assert str(failures.cause(tmp_path)) == "rank 2: ValueError: timeout must be positive"
    failures.path(tmp_path, "rank 2").unlink()
    assert failures.cause(tmp_path).who == "rank 0"


def test_an_unreadable_record_still_names_its_rank(tmp_path: Path):
    (tmp_path / "error.rank2.json").write_text("{")
    assert failures.cause(tmp_path).who == "rank 2"


def test_F32_the_outer_job_leaves_the_environment(monkeypatch):
    for name in ("SLURM_NTASKS", "SUBMITIT_EXECUTOR", "RANK", "TRITON_CACHE_DIR", "SLURM_CONF", "PATHS"):
        monkeypatch.setenv(name, "1")
    with environment.scrubbed():
        assert {name for name in os.environ if os.environ[name] == "1"} >= {"SLURM_CONF", "PATHS"}
        assert not {"SLURM_NTASKS", "SUBMITIT_EXECUTOR", "RANK", "TRITON_CACHE_DIR"} & os.environ.keys()
    assert os.environ["SLURM_NTASKS"] == "1"


def test_a_file_is_whole_or_the_old_one(tmp_path: Path):
    path = tmp_path / "x.json"
    files.write_json(path, [1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, float("nan"))
    with pytest.raises(UnicodeEncodeError):
        files.write(path, "half a surrogate pair \ud800")
    assert files.read_json(path) == [1]
    assert os.listdir(tmp_path) == ["x.json"]


def test_progress_writes_the_heartbeat_in_a_run_only(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    progress.step(1, 4)
    assert status.beat(tmp_path) == ""
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path))
    progress.step(4, 4, "ranks 8")
    assert status.beat(tmp_path).startswith("step 4/4 ranks 8, ")
    files.write_json(tmp_path / "heartbeat.json", {"step": 1, "total": 3, "text": "", "started": 100, "time": 110})
    assert status.beat(tmp_path) == "step 1/3, 10 s, about 20 s left"


def order(root: Path) -> job.Order:
    return job.Order(root, root / "runs/sums-1", root / "runs/sums-1/attempts/2", SPEC, "slurm")


def test_slurm_parameters(tmp_path: Path):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/site.yaml").write_text("partition: gpu\naccount: null\nsetup: [module load x]\n")
    asked = slurm.parameters(order(tmp_path))
    assert (asked["nodes"], asked["ntasks_per_node"], asked["cpus_per_task"], asked["time"]) == (2, 1, 3, 1)
    assert (asked["partition"], asked["setup"], asked["exclusive"]) == ("gpu", ["module load x"], True)
    assert "account" not in asked
    assert asked["srun_args"] == ["--cpus-per-task", "3"]
    assert asked["job_name"] == "fivedim-sums-1-2"


def test_F28_slurm_site_is_checked(tmp_path: Path):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/site.yaml").write_text("partitions: gpu\n")
    with pytest.raises(
        UserError, match="partitions: unknown key; allowed here: partition, account, qos, constraint, setup"
    ):
        slurm.parameters(order(tmp_path))


@pytest.mark.parametrize(
    ("queue", "history", "state"),
    [
        ((0, "PENDING Resources\n", ""), None, "PENDING (Resources)"),
        ((0, "RUNNING None\n", ""), None, "RUNNING"),
        ((0, "PREEMPTED None\n", ""), None, "PREEMPTED"),
        ((0, "CANCELLED None\n", ""), None, "ENDED (CANCELLED)"),
        ((1, "", "slurm_load_jobs error: Invalid job id specified"), "COMPLETED\n", "ENDED (COMPLETED)"),
        ((0, "", ""), "NODE_FAIL\n", "NODE_FAIL"),
        ((0, "", ""), "CANCELLED by 0\n", "ENDED (CANCELLED)"),
        ((0, "", ""), "", "ENDED (LOST)"),
        (
            (1, "", "slurm_load_jobs error: Unable to contact slurm controller"),
            None,
            "UNREACHABLE: slurm_load_jobs error: ",
        ),
    ],
)
def test_slurm_states(monkeypatch, queue: tuple, history: str | None, state: str):
    answers = {"squeue": queue, "sacct": (0, history, "")}

    def ask(tool: str, *_) -> subprocess.CompletedProcess:
        assert answers[tool][1] is not None, f"{tool} was asked without need"
        return subprocess.CompletedProcess([tool], *answers[tool])

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm.SlurmJob("7").state().startswith(state)


def test_the_record_of_a_job_is_plain_json(tmp_path: Path):
    text = json.dumps(SPEC.model_dump())
    assert Spec(**json.loads(text)).key == SPEC.key
