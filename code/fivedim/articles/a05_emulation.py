"""Articles 4's and 5's steps on emulated ranks: models, what the ranks do, and the same machine for the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from fivedim.articles.a03_emulation import Emulated, Profile, agreed, profile, timed, trained
from fivedim.articles.a04_run import BF16, FP32, Run

if TYPE_CHECKING:
    from torch import nn

    from fivedim.articles.a05_emulated import ShardedStepsEmulatedConfig
    from fivedim.ledger.collectives import Curve
    from fivedim.ledger.layers import Operation
    from fivedim.ledger.simulator import Timeline

DDP, ZERO, FSDP, KEPT = "DDP", "ZeRO 2", "FSDP", "FSDP, not resharded"
CAP = 25  # MiB of the article's gradients: torch's default
WHOLE, PART = 0, 2  # tables begin with the whole tensor, or with a quarter of it, and are halved from there
HALVINGS = 6

# Bytes an element of the kernels around FSDP's collectives: parameters cut and joined in bf16; gradients joined in
# fp32, and of each rank's eighth the sum of eight, its copy and the division
UNPACK = 4 + (4 + 2) / 8
PACK = 6 + (8 + 7 * 12 + 8 + 8) / 8


class Emulation:
    """What all ranks share, made before they are forked: models, priced kernels, and what the article says.

    The model is the article's with a share of its layers and of its vocabulary, and every other length shrunk.
    """

    def __init__(self, cfg: ShardedStepsEmulatedConfig):
        import torch

        from fivedim.lab.accelerator import VirtualAccelerator

        self.cfg, self.article = cfg, Run(cfg)
        card = self.article.model.accelerator.slowed(cfg.shrink**2, cfg.shrink)
        self.accelerator = VirtualAccelerator(card, rates={"float32": "bfloat16"})
        self.clocks = {dtype: Clock.of(self, self.model(dtype)) for dtype in (torch.float32, torch.bfloat16)}
        self.wide, self.narrow = self.clocks[torch.float32], self.clocks[torch.bfloat16]
        dtypes = {DDP: torch.float32, ZERO: torch.bfloat16, FSDP: torch.float32, KEPT: torch.float32}
        self.models = {name: self.model(dtype) for name, dtype in dtypes.items()}

    @cached_property
    def tokens(self):
        """Tokens [B, T]: what they are does not matter."""
        import torch

        return torch.zeros(self.cfg.sequences, self.cfg.length // self.cfg.shrink, dtype=torch.long)

    @property
    def elements(self) -> int:
        """Of the model's parameters."""
        return sum(self.wide.profile.elements.values())

    def model(self, dtype) -> nn.Module:
        """The small model."""
        from fivedim.model import GPT

        shape, cfg = self.article.shape, self.cfg
        lengths = {"width": shape.width // cfg.shrink, "context": shape.context // cfg.shrink}
        lengths |= {"layers": shape.layers // cfg.thin, "vocabulary": shape.vocabulary // cfg.shrink // cfg.thin}
        return GPT(replace(shape, **lengths)).to(dtype)

    def step(self, model, optimizer) -> list[float]:
        """One step; when the lane will be done with forward and backward."""
        return trained(self.accelerator, self.tokens, model, optimizer)

    def replica(self, name: str, model: nn.Module, group) -> tuple:
        """A model and what steps it, in one of the modes."""
        import torch

        from fivedim.data_parallel import Overlapped
        from fivedim.fsdp import FullySharded, Policy
        from fivedim.zero import Stage2

        adamw, cap = partial(torch.optim.AdamW, fused=True), CAP / self.cfg.shrink**2
        if name == ZERO:
            return model, Stage2(model, group, adamw, cap_mib=cap)
        if name == DDP:
            model = Overlapped(model, group, cap)
            for bucket in model.buckets:
                bucket.flat.zero_()  # it is added up for real, and what was left in memory can be slow to add
        else:
            policy = Policy(torch.bfloat16, torch.float32)
            model = FullySharded(model, group, model.blocks, policy=policy, reshard=name == FSDP)
        return model, adamw(model.parameters())

    def on_rank(self) -> dict:
        """One rank's part: the tables, the dilation that follows from them, then all modes in turn.

        Sends what the modes do, and each table's collectives.
        """
        import torch.distributed as dist

        group = dist.group.WORLD
        tables = {name: self.table(name, group) for name in COLLECTIVES}
        replicas = [self.replica(name, model, group) for name, model in self.models.items()]
        for replica in replicas:  # its first step is not timed: kernels need not take long yet
            self.together(replica, group)
        gather = tables["all_gather"][BF16 * self.elements]
        self.accelerator.dilation = self.dilation(agreed(gather, group))
        self.accelerator.steps.clear()
        for _ in range(self.cfg.repeats):
            for replica in replicas:
                self.together(replica, group)
        self.accelerator.check()
        steps = {name: self.accelerator.steps[index :: len(replicas)] for index, name in enumerate(self.models)}
        return {"tables": tables, "dilation": self.accelerator.dilation, "steps": steps}

    def table(self, collective: str, group) -> dict[int, list[float]]:
        """Seconds of a collective by the bytes of its whole tensor, as the modes call it."""
        kind = COLLECTIVES[collective]
        whole = self.elements >> kind.begin
        counts = [max(1, whole >> halving) for halving in reversed(range(HALVINGS))]
        work = {kind.width * count: kind.launch(count, group) for count in counts}
        return {size: timed(lambda each=each: each().wait(), self.cfg.repeats, group) for size, each in work.items()}

    def dilation(self, gather: float) -> float:
        """The card's: bf16 forward and backward stand to an all-gather of the bf16 model as they do in the article."""
        rates = self.article.rates()
        reported = rates.compute / rates.collective("all_gather", BF16 * rates.parameters)
        return reported * gather / self.narrow.profile.backward

    def together(self, replica, group) -> None:
        """One step of all ranks, which begin together."""
        from fivedim import comm

        comm.barrier(group)
        with self.accelerator:
            self.step(*replica)


@dataclass(frozen=True)
class Collective:
    """How the modes call one: bytes an element, where its table begins, and a launcher for so many elements."""

    width: int
    begin: int
    launch: Callable


def _all_reduce(count: int, group) -> Callable:
    import torch

    from fivedim.comm.asynchronous import all_reduce_

    x = torch.zeros(count)
    return lambda: all_reduce_(x, group)


def _all_gather(count: int, group) -> Callable:
    import torch

    from fivedim.comm.asynchronous import all_gather_
    from fivedim.ledger.traffic import split

    x = torch.zeros(count, dtype=torch.bfloat16)
    return lambda: all_gather_(x, split(count, group.size()), group)


def _reduce_scatter(count: int, group) -> Callable:
    import torch

    from fivedim.comm.asynchronous import reduce_scatter_
    from fivedim.ledger.traffic import split

    sizes, x = split(count, group.size()), torch.zeros(count)
    out = torch.zeros(sizes[group.rank()])
    return lambda: reduce_scatter_(out, x, sizes, group)


COLLECTIVES = {
    "all_reduce": Collective(FP32, PART, _all_reduce),
    "all_gather": Collective(BF16, WHOLE, _all_gather),
    "reduce_scatter": Collective(FP32, PART, _reduce_scatter),
}


@dataclass(frozen=True)
class Clock:
    """One process's step by the virtual clock, undilated: by parameter (`profile`) and by unit (`visits`)."""

    profile: Profile
    visits: list[Operation]

    @classmethod
    def of(cls, emulation: Emulation, model: nn.Module) -> Clock:
        """Run it. This also prices all kernels, so that forked ranks need not."""
        accelerator, begins = emulation.accelerator, []
        parts = [*model.blocks, model.norm]
        hooks = [part.register_forward_pre_hook(lambda *_: begins.append(accelerator.now)) for part in parts]
        found = profile(accelerator, model, emulation.step)
        for hook in hooks:
            hook.remove()
        return cls(found, visited(found, begins[-len(parts) :]))


def visited(found: Profile, begins: list[float]) -> list[Operation]:
    """The visits in order: a forward ends where the next begins, a backward where its gradients are done.

    `begins` are the forwards' of all but the first. Seconds in place of FLOP.
    """
    from fivedim.ledger.layers import Operation

    layers = len(begins) - 1
    owned: list[dict[str, int]] = [{} for _ in range(layers + 2)]
    for name, elements in found.elements.items():
        owned[place(name, layers)][name] = elements
    ends, last, listed = [*begins, found.forward], found.forward, []
    for index in reversed(range(layers + 2)):
        done = found.backward if index == 0 else max(last, *(found.ready[name] for name in owned[index]))
        label = {0: "tokens", layers + 1: "norm"}.get(index, f"blocks.{index - 1}")
        listed.append(Operation(label, ends[index] - (ends[index - 1] if index else 0.0), done - last, owned[index]))
        last = done
    return listed[::-1]


def place(parameter: str, layers: int) -> int:
    """The visit that owns a parameter: the tables first, the blocks, the norm before the head last."""
    first, *rest = parameter.split(".")
    return int(rest[0]) + 1 if first == "blocks" else layers + 1 if first == "norm" else 0


@dataclass(frozen=True)
class Machine:
    """The emulated machine for the simulator: the virtual clock's kernels, and the collectives as measured."""

    emulation: Emulation
    dilation: float
    curves: dict[str, Curve]

    def timelines(self) -> dict[str, Timeline]:
        """The simulated steps of all modes, seconds of the emulator."""
        from fivedim.ledger import data_parallel, sharded
        from fivedim.ledger.simulator import simulate

        ddp, zero, fsdp = self.replicated(), self.second(), self.sharded()
        kept = replace(fsdp, kept=frozenset(fsdp.units))
        cap = CAP / self.emulation.cfg.shrink**2
        gather = self.curves["all_gather"].seconds(BF16 * self.emulation.elements)
        return {
            DDP: data_parallel.timeline(ddp, ddp.bucketed(cap)),
            ZERO: simulate(sharded.published(data_parallel.actions(zero, zero.bucketed(cap)), gather)),
            FSDP: sharded.timeline(fsdp),
            KEPT: sharded.timeline(kept),
        }

    def replicated(self):
        """The step of DDP."""
        return self._data_parallel(self.emulation.wide.profile, "all_reduce")

    def second(self):
        """That of ZeRO's second stage, before it gathers: it updates an eighth, in fp32."""
        step = self._data_parallel(self.emulation.narrow.profile, "reduce_scatter")
        return replace(step, width=BF16, optimizer=self._shard_update())

    def sharded(self):
        """That of FSDP."""
        from fivedim.ledger.layers import work
        from fivedim.ledger.sharded import Step

        visits, card = self.emulation.narrow.visits, self._card()
        visits = [
            each._replace(forward=self.dilation * each.forward, backward=self.dilation * each.backward)
            for each in visits
        ]
        return Step(
            visits,
            compute=work(visits),
            optimizer=self._shard_update(),
            gather=lambda n: self.curves["all_gather"].seconds(BF16 * n),
            scatter=lambda n: self.curves["reduce_scatter"].seconds(FP32 * n),
            unpack=card.stream(UNPACK),
            pack=card.stream(PACK),
        )

    def _data_parallel(self, profiled: Profile, reduce: str):
        return Emulated(self._undilated(), self.dilation, self.curves[reduce], 0.0, 0).step(profiled)

    def _shard_update(self) -> float:
        return self._card().adamw(self.emulation.elements / self.emulation.cfg.ranks)

    def _undilated(self):
        return self.emulation.accelerator.card

    def _card(self):
        return self._undilated().slowed(self.dilation)
