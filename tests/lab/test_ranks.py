"""Ranks: values in order, and every kind of failure blamed on the rank that caused it."""

import multiprocessing
import os
import signal
import socket
import threading

import pytest
import torch
import torch.distributed as dist

from fivedim.errors import UserError
from fivedim.lab import ranks
from tests.lab.trials import FaultConfig, faults, raise_it


def total(x: float) -> tuple:
    tensor = torch.tensor([x + dist.get_rank()])
    dist.all_reduce(tensor)
    return dist.get_rank(), tensor.item(), torch.get_num_threads()


@pytest.mark.parametrize("n", [1, 3])
def test_values_come_in_rank_order(n: int):
    assert ranks.run(total, n, 0.5) == [(rank, n * 0.5 + n * (n - 1) / 2, 1) for rank in range(n)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "rank 1: ValueError: the seventh seal"),
        ("kill", "rank 1: killed (signal 9)"),
        ("segfault", "rank 1: killed (signal 11)"),
        ("term", "rank 1: killed (signal 15)"),
        ("exit", "rank 1: exited early (status 0)"),
        ("hard exit", "rank 1: exited early (status 0)"),
        ("stop", "rank 1: stopped (signal 19)"),
    ],
)
def test_the_culprit_is_blamed_and_nobody_is_left(how: str, words: str):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(faults, 3, FaultConfig(how=how), timeout=2)
    assert str(caught.value).startswith(words)
    assert caught.value.rank == 1
    assert not multiprocessing.active_children()
    assert signal.getsignal(signal.SIGTERM) is before


def test_F04_the_only_rank_exits_early():
    with pytest.raises(ranks.RankError, match=r"rank 0: exited early \(status 0\)"):
        ranks.run(os._exit, 1, 0)


def test_traceback_is_carried():
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(raise_it, 2)
    assert "in raise_it" in caught.value.traceback


def test_zero_ranks_is_one_line():
    with pytest.raises(UserError, match="ranks is 0: ask for at least 1"):
        ranks.run(raise_it, 0)


def test_no_rank_connects_before_all_are_forked(tmp_path):
    waiting = threading.Thread(target=ranks.all_forked, args=(tmp_path, 3))
    waiting.start()
    for rank in range(3):
        waiting.join(0.05)
        assert waiting.is_alive()
        ranks.pid_file(tmp_path, rank).write_text("1")
    waiting.join(5)
    assert not waiting.is_alive()


def test_F05_a_port_that_somebody_took_is_left_to_him(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        free = ranks.free_port()
        ports = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(ranks, "free_port", lambda: next(ports))
        assert ranks.open_store("localhost").port == free


def test_a_store_is_found_again_at_a_port_that_an_earlier_one_had(monkeypatch):
    port = ranks.free_port()
    monkeypatch.setattr(ranks, "free_port", lambda: port)
    for n in (1, 2):
        assert len(ranks.run(total, n, 0.0)) == n
