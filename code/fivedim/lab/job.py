"""Job: what runs on a node. It starts this node's ranks; rank 0's node writes the result. The launcher reads files."""

import datetime
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from fivedim.lab import fabric, failures, files, progress, provenance, ranks, results, sandbox
from fivedim.lab.ranks import die_with_parent
from fivedim.lab.spec import Spec, article, config_class


@dataclass(frozen=True)
class Order:
    """One attempt at a run: what every node of the job is told. Plain values, so that it pickles without torch."""

    root: Path
    run: Path
    attempt: Path
    spec: Spec
    executor: str

    @property
    def name(self) -> str:
        """A job name that no other attempt has: fivedim-<experiment>-<key>-<attempt>."""
        return f"fivedim-{self.run.name}-{self.attempt.name}"


def task(order: Order) -> None:
    """A submitit task, one a node: everything it prints goes to the attempt's log."""
    import submitit

    environment = submitit.JobEnvironment()
    if order.executor == "local":
        die_with_parent()
    log = os.open(order.attempt / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    execute(order, environment.job_id, environment.global_rank)


def execute(order: Order, job_id: str, node: int) -> None:
    """Run this node's ranks and, where rank 0 is here, write result.json. A failure leaves its record and is raised."""
    try:
        outcome = emulated(order) if order.spec.instrument == "fabric" else forked(order, node)
        if 0 in outcome.values:
            files.write_json(order.run / "result.json", result(order, job_id, outcome))
    except ranks.RankError as error:
        error.failure.write(order.attempt)
        raise
    except Exception as error:
        failures.of_exception(f"node {node}", error).write(order.attempt)
        raise


def forked(order: Order, node: int) -> ranks.Outcome:
    """The experiment on this node's ranks."""
    spec = order.spec
    host = "localhost" if spec.nodes == 1 or order.executor == "local" else socket.gethostname()
    place = ranks.Place(order.attempt, spec.ranks, spec.nodes, node, host, spec.timeout)
    return ranks.launch(rank, (order,), place)


def rank(order: Order) -> list[results.Row] | None:
    """One rank of an experiment: rank 0's rows count, and its progress."""
    if os.environ["RANK"] == "0":
        return experiment(order)
    os.chdir(order.root)
    call(order.spec)
    return None


def emulated(order: Order) -> ranks.Outcome:
    """The experiment, once, in a sandbox, where it builds fabrics and starts its own ranks on them.

    Where that cannot be, its one row says why.
    """
    started, missing = time.time(), fabric.unavailable()
    ready = time.time() - started
    return ranks.Outcome(
        {0: [{"unavailable": missing}] if missing else sandbox.call(experiment, order)}, started, ready
    )


def experiment(order: Order) -> list[results.Row]:
    """An experiment's rows, checked; it runs in the project's root, and its progress goes to the attempt."""
    os.chdir(order.root)
    os.environ[progress.VARIABLE] = str(order.attempt)
    return results.checked(call(order.spec))


def call(spec: Spec) -> list[results.Row]:
    """What the experiment's function returns."""
    return getattr(article(spec.module), spec.experiment)(config_class(spec.module, spec.experiment)(**spec.params))


def result(order: Order, job_id: str, outcome: ranks.Outcome) -> dict:
    """result.json: the rows and where they come from."""
    spec, rows = order.spec, outcome.values[0]
    return {
        "schema": results.SCHEMA,
        "key": spec.key,
        "experiment": spec.experiment,
        "rows": rows,
        "checksum": results.checksum(rows),
        "started": datetime.datetime.fromtimestamp(outcome.started, datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - outcome.started, 3),
        "ready": round(outcome.ready, 3),
        "ranks": spec.ranks,
        "nodes": spec.nodes,
        "executor": order.executor,
        "job_id": job_id,
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "commit": provenance.commit(order.root),
        "fingerprint": spec.fingerprint,
        "config": spec.params,
        "seeds": provenance.seeds(spec),
    }
