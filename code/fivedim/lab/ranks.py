"""Ranks: fork n processes under torch elastic's agent, each with the default gloo group ready."""

import datetime
import gc
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fivedim.errors import FAILED, UserError
from fivedim.lab import failures
from fivedim.lab.failures import Failure
from fivedim.lab.watch import Watch, death, pid_file

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1


class RankError(UserError):
    """A rank failed: which one, how, and its traceback."""

    def __init__(self, failure: Failure):
        super().__init__(str(failure), FAILED)
        word, _, number = failure.who.partition(" ")
        self.rank = int(number) if word == "rank" else None
        self.failure, self.kind, self.traceback = failure, failure.kind, failure.traceback


@dataclass(frozen=True)
class Place:
    """One node's part in a launch: `ranks` in all over `nodes` nodes, this is `node`; all share `folder`.

    `enter(rank)` is called by every rank once it knows where to meet, before it connects to another rank.
    """

    folder: Path
    ranks: int
    nodes: int = 1
    node: int = 0
    host: str = "localhost"
    timeout: float = 20
    enter: Callable[[int], None] = lambda rank: None

    @property
    def here(self) -> range:
        """The ranks on this node."""
        each = self.ranks // self.nodes
        return range(self.node * each, (self.node + 1) * each)


@dataclass(frozen=True)
class Outcome:
    """What a node's ranks returned, by rank; when the agent started, and the seconds until its last rank had joined."""

    values: dict[int, Any]
    started: float
    ready: float


def run(fn: Callable, ranks: int, *args, timeout: float = 20, enter: Callable[[int], None] = Place.enter) -> list:
    """Call `fn(*args)` on `ranks` processes; return every rank's value, in rank order.

    The first failure ends all ranks and raises RankError. `timeout` (s): a collective that waits longer fails. `enter`
    is Place's.
    """
    if ranks < 1:
        raise UserError(f"ranks is {ranks}: ask for at least 1")
    with tempfile.TemporaryDirectory(prefix="fivedim-") as folder:
        values = launch(fn, args, Place(Path(folder), ranks, timeout=timeout, enter=enter)).values
    return [values[rank] for rank in range(ranks)]


def launch(fn: Callable, args: tuple, place: Place) -> Outcome:
    """Run this node's share of the ranks to the end; every node calls it. Raises RankError: the cause."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # its report of a failure imports torch's compiler, for seconds, to format a line; ours says more
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    store, address = meet(place)
    watch, started = Watch(place.folder, place.here), time.time()
    watch.start()
    gc.collect()
    gc.freeze()  # a rank that collected an earlier launch's store would wait for a thread that was not forked with it
    try:
        returned = elastic_launch(agent_config(place, address), _entry)(fn, args, place)
    except (ChildFailedError, SignalException) as error:
        watch.stop()
        _explain(error, place.folder)
    finally:
        gc.unfreeze()
        watch.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        del store
    ready = max(at for at, _ in returned.values()) - started
    return Outcome({rank: value for rank, (_, value) in returned.items()}, started, ready)


def meet(place: Place, patience: float = 300) -> tuple[Any, str]:
    """The store where the nodes meet, and its address: node 0 opens it at a free port and tells it in a file."""
    told = place.folder / "rendezvous"
    if place.node == 0:
        store = open_store(place.host)
        failures.files.write(told, f"{place.host}:{store.port}")
        return store, told.read_text()
    deadline = time.monotonic() + patience
    while not told.exists():
        if time.monotonic() > deadline:
            raise UserError(f"node {place.node}: node 0 did not open a rendezvous within {patience:.0f} s", FAILED)
        time.sleep(0.05)
    return None, told.read_text()


def open_store(host: str, tries: int = 10):
    """A store's server at a free port; where somebody else was faster at that port, at another one.

    The port is named, never 0: the agent opens the store once more by its port, and torch finds a server of port 0
    again only where no earlier server of this process had been given the same port.
    """
    from torch.distributed import DistNetworkError, TCPStore

    while True:
        tries -= 1
        try:
            return TCPStore(host, free_port(), is_master=True, wait_for_workers=False, multi_tenant=True)
        except DistNetworkError:
            if not tries:
                raise


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def agent_config(place: Place, address: str):
    """The elastic agent's configuration: a fork for every rank, no restarts, the first failure ends all."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=place.nodes,
        max_nodes=place.nodes,
        nproc_per_node=len(place.here),
        run_id="fivedim",
        rdzv_backend="static",
        rdzv_endpoint=address,
        rdzv_configs={"rank": place.node, "timeout": 300},
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(place.folder / "elastic")),
        shutdown_timeout=1,
    )


def _explain(error: Exception, folder: Path) -> NoReturn:
    """Raise the recorded cause; without one, what the agent saw, or the signal that ended it."""
    if failure := failures.cause(folder):
        raise RankError(failure) from None
    number = getattr(error, "sigval", None)
    if number is None:
        rank, first = error.get_first_failure()
        raise RankError(Failure(who=f"rank {rank}", kind=death(first.exitcode), time_ns=time.time_ns())) from error
    if number == signal.SIGINT:
        raise KeyboardInterrupt from None
    raise SystemExit(128 + number) from None


def _entry(fn: Callable, args: tuple, place: Place) -> tuple[float, Any]:
    """A rank: joins the others, works, and leaves together with them."""
    import torch
    import torch.distributed as dist

    die_with_parent()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pid_file(place.folder, rank).write_text(str(os.getpid()))
    torch.set_num_threads(1)
    all_forked(place.folder, size)
    try:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        together(store, "here", size)
        place.enter(rank)
        limit = datetime.timedelta(seconds=place.timeout)
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=limit
        )
        ready = time.time()
        value = fn(*args)
        together(store, "done", size)
    except BaseException as error:
        failures.of_exception(f"rank {rank}", error).write(place.folder)
        raise error if isinstance(error, Exception) else RuntimeError("early exit") from None
    pid_file(place.folder, rank).unlink()
    return ready, value


def all_forked(folder: Path, size: int) -> None:
    """Wait until every rank has started, before the first one connects.

    The store's thread answers a connection with libc's resolver; a process forked in that moment inherits the
    resolver's lock and hangs in its own first connection.
    """
    while not all(pid_file(folder, rank).exists() for rank in range(size)):
        time.sleep(0.005)


def together(store, word: str, size: int) -> None:
    """Wait until every rank has said `word`: no collective, so that no timeout of the group's ends the wait."""
    if store.add(word, 1) == size:
        store.set(f"all {word}", "")
    store.wait([f"all {word}"], datetime.timedelta(days=7))


def die_with_parent() -> None:
    """Take signals by their default action, and SIGKILL when the parent ends: no rank outlives its agent (Linux)."""
    import ctypes

    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
