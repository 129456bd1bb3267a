"""Machines: the description that is there is whole, and a wrong name is a one-line error."""

from pathlib import Path

import pytest

from fivedim.errors import UserError
from fivedim.lab.machine import load

ROOT = Path(__file__).parents[2]


def test_every_gpu_has_one_switch_and_one_socket_and_every_table_is_there():
    machine = load(ROOT, "rtx-pro-6000-x8")
    for groups in (machine.switches, machine.sockets):
        assert sorted(gpu for group in groups for gpu in group) == list(range(machine.gpus))
    assert all((ROOT / table).is_file() for table in machine.collectives.values())


def test_an_unknown_machine_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="machine h100: unknown; use one of rtx-pro-6000-x8"):
        load(ROOT, "h100")
