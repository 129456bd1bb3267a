"""Fabric: every rank in a network namespace of its own, joined by links of a machine's shape, slower by a dilation.

What limits a message is a token bucket of the kernel (tbf) on a device that the message is led through: a GPU's way out
and its way in have a bucket each (duplex), one (shared), or those of its switch's uplink (hairpin); two sockets are two
bridges with a bucket each way between them. No kernel is sure to delay packets, so latency is slept by comm's sends.
Built in a sandbox (lab/sandbox.py). Nothing of it has a name outside the process: it is gone when the last process in
it is, however that ends.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fivedim.errors import FAILED, UserError
from fivedim.lab import ranks, sandbox

if TYPE_CHECKING:
    from fivedim.ledger.topology import Topology  # imports numpy, which a launcher does without

CLONE_NEWNET = 0x40000000
MTU = 60_000  # bytes: at 1500 the headers and the kernel's work for every packet come to tell
BURST = 128 * 1024  # bytes that a bucket lets through at once: two packets
QUEUE = 64 * 2**20  # bytes that may wait at a bucket: so many that none is dropped
# None is lost: TCP must not take one that waits at a bucket, or is overtaken, for lost, and send it again.
PATIENCE, RTAX_RTO_MIN = 10_000, 13  # milliseconds, on a route whose metric is locked: an unlocked one is not heeded
TCP = {"tcp_sack": "0", "tcp_reordering": "300"}  # without selective acknowledgements there are no probes either
HOOKS = {"out": "ffff:fff2", "in": "ffff:fff3"}  # of the hub's end of a GPU's cable: a GPU's sends arrive at the hub
REFUSALS = {"UserError", "PermissionError", "ModuleNotFoundError"}  # what is no fault of ours
EVERYTHING = {"protocol": 0x0003, "keys": ["0x0/0x0+0"], "target": 1}  # ETH_P_ALL, and a match of no bit


@dataclass(frozen=True)
class Fabric:
    """Links that are up. `topology` has the dilated rates, in bytes a second; a send sleeps `latency` seconds first."""

    topology: Topology
    latency: float
    namespaces: tuple[int, ...]

    def run(self, fn: Callable, size: int, *args, timeout: float = 20, gpus: Sequence[int] | None = None) -> list[Any]:
        """`ranks.run(fn, size, *args)` with rank i in the place of `gpus[i]`, by default GPU i."""
        places = [self.namespaces[gpu] for gpu in gpus or range(size)]
        work = partial(_slowed, self.latency, fn)
        return ranks.run(work, size, *args, timeout=timeout, enter=lambda rank: _enter_as_rank(places[rank]))


def _enter_as_rank(place: int) -> None:
    _enter(place)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"


def _slowed(latency: float, fn: Callable, *args) -> Any:
    from fivedim import comm

    with comm.latency(latency):
        return fn(*args)


def dilated(topology: Topology, dilation: float) -> Topology:
    """The same links, every rate divided by `dilation`."""
    return replace(topology, rate=topology.rate / dilation, joint=topology.joint and topology.joint / dilation)


def sent() -> int:
    """Bytes that this rank's link has sent since it was built, by the kernel's counter: headers and all."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (counters,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:"))
    return int(counters[8])


@cache
def unavailable() -> str:
    """Why no fabric can be built here, in one line; empty where it can."""
    try:
        sandbox.call(_try)
    except ranks.RankError as error:
        if error.kind not in REFUSALS:
            raise
        return error.failure.message
    except UserError as error:
        return str(error)
    return ""


def _try() -> None:
    """Build the smallest fabric that needs everything: bridges, cables, buckets and what leads to them."""
    from fivedim.ledger.topology import Topology

    with build(Topology("hairpin", ((0,), (1,)), ((0,), (1,)), rate=1e6, joint=1e6)):
        pass


@contextmanager
def build(topology: Topology, latency: float = 0.0) -> Iterator[Fabric]:
    """The links of `topology` between all its GPUs, while the block runs. Call it in a sandbox.

    Rates are in bytes a second. `latency` (s) is slept by what comm's algorithms send, not by what c10d carries out.
    Raises UserError with the kernel's words where it lacks something.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    with ExitStack() as files:
        home = _opened(files)
        try:
            hub, *places = (_created(files, home) for _ in range(1 + sum(map(len, topology.switches))))
            with _network(hub, home) as ip:
                _wire(ip, topology, places)
            for gpu, place in enumerate(places):
                with _network(place, home) as ip:
                    _address(ip, gpu)
        except NetlinkError as error:
            raise UserError(
                f"the kernel cannot shape links (veth, bridge, ifb, tbf, u32, mirred): {error}", FAILED
            ) from error
        yield Fabric(topology, latency, tuple(places))


def _wire(ip, topology: Topology, places: Sequence[int]) -> None:
    """In the hub: a bridge a socket, and a cable to every GPU, its traffic led through the buckets."""
    sockets = topology.sockets if topology.joint else (sum(topology.sockets, ()),)
    bucket = cache(partial(_bucket, ip, topology.rate))
    bridges = [_device(ip, f"socket{number}", "bridge") for number in range(len(sockets))]
    for bridge, gpus in zip(bridges, sockets, strict=True):
        for gpu in gpus:
            peer = {"ifname": "eth0", "net_ns_fd": places[gpu], "mtu": MTU}
            cable = _device(ip, f"gpu{gpu}", "veth", peer=peer, master=bridge)
            ip.tc("add", "clsact", index=cable)
            for direction, name in _buckets(topology, gpu).items():
                action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": bucket(name)}
                ip.tc("add-filter", "u32", index=cable, parent=HOOKS[direction], action=action, **EVERYTHING)
    if topology.joint:
        _join(ip, topology.joint, *bridges)


def _buckets(topology: Topology, gpu: int) -> dict[str, str]:
    """The bucket of what a GPU sends and of what it receives, by name."""
    if topology.budget == "shared":
        return dict.fromkeys(HOOKS, f"gpu{gpu}")
    # under a hairpin the uplink carries all that the GPU's own link does, at the same rate: it alone limits
    switch = next(place for place, gpus in enumerate(topology.switches) if gpu in gpus)
    link = f"gpu{gpu}" if topology.budget == "duplex" else f"switch{switch}"
    return {direction: f"{link}.{direction}" for direction in HOOKS}


def _join(ip, rate: float, here: int, there: int) -> None:
    """A cable between the bridges of two sockets, with a bucket each way."""
    cable = _device(ip, "joint0", "veth", peer={"ifname": "joint1", "mtu": MTU}, master=here)
    (other,) = ip.link_lookup(ifname="joint1")
    ip.link("set", index=other, master=there, state="up")
    for end in (cable, other):
        _limit(ip, end, rate)


def _bucket(ip, rate: float, name: str) -> int:
    """A device that passes on what is led to it, at `rate`."""
    device = _device(ip, f"{name}.ifb", "ifb")
    _limit(ip, device, rate)
    return device


def _limit(ip, device: int, rate: float) -> None:
    ip.tc("add", "tbf", index=device, handle="1:", rate=round(rate), burst=BURST, limit=QUEUE)


def _device(ip, name: str, kind: str, master: int = 0, **options) -> int:
    """A new device, up; its number."""
    ip.link("add", ifname=name, kind=kind, mtu=MTU, **options)
    (number,) = ip.link_lookup(ifname=name)
    ip.link("set", index=number, state="up", **({"master": master} if master else {}))
    return number


def _address(ip, gpu: int) -> None:
    """In a GPU's namespace: its devices up, its address, and no packet sent twice because it waits long at a bucket."""
    (eth0,) = ip.link_lookup(ifname="eth0")
    for device in (1, eth0):
        ip.link("set", index=device, state="up")
    ip.addr("add", index=eth0, address=f"10.0.0.{gpu + 1}", prefixlen=24)
    ip.route(
        "replace", dst="10.0.0.0/24", oif=eth0, scope=253, metrics={"lock": 1 << RTAX_RTO_MIN, "rto_min": PATIENCE}
    )
    with suppress(OSError):  # a read-only /proc/sys leaves TCP its guesses: a few packets more
        for name, value in TCP.items():
            Path(f"/proc/sys/net/ipv4/{name}").write_text(value)


@contextmanager
def _network(place: int, home: int) -> Iterator[Any]:
    """A netlink connection to the network namespace `place`."""
    from pyroute2 import IPRoute

    _enter(place)
    try:
        with IPRoute() as ip:
            yield ip
    finally:
        _enter(home)


def _created(files: ExitStack, home: int) -> int:
    """A new network namespace, which lives as long as its file descriptor is open or a process is in it."""
    _checked(_libc().unshare(CLONE_NEWNET))
    try:
        return _opened(files)
    finally:
        _enter(home)


def _opened(files: ExitStack) -> int:
    """A file descriptor of the network namespace that this thread is in, closed with `files`."""
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    files.callback(os.close, descriptor)
    return descriptor


def _enter(place: int) -> None:
    _checked(_libc().setns(place, CLONE_NEWNET))


def _checked(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
