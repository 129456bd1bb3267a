"""Article 3's steps on emulated ranks: models, priced kernels, the ranks' work, and the same machine for the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from fivedim.articles.a03_ddp import CAP, ONE_GPU, Predictor, exposed

if TYPE_CHECKING:
    from fivedim.articles.a03_emulated import BucketSweepEmulatedConfig
    from fivedim.lab.accelerator import Span, VirtualAccelerator
    from fivedim.ledger.collectives import Curve
    from fivedim.ledger.data_parallel import Step
    from fivedim.ledger.kernels import Accelerator

SINGLE, FROZEN = "one GPU", "embedding frozen"
HALVINGS = 11  # sizes of the table of all-reduces: the whole gradient, and halves of it
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Case:
    """One kind of step: under buckets of `cap_mib` of the article's (None: on one GPU), the embedding frozen or not."""

    name: str
    cap_mib: float | None
    frozen: bool = False


@dataclass(frozen=True)
class Profile:
    """One GPU's step by the virtual clock, undilated seconds: when forward and backward end, and each gradient is done.

    `elements` and `ready` are by parameter, in the order of registration.
    """

    forward: float
    backward: float
    whole: float
    elements: dict[str, int]
    ready: dict[str, float]


class Emulation:
    """What all ranks share, made before they are forked: models, priced kernels, and what the article says."""

    def __init__(self, cfg: BucketSweepEmulatedConfig):
        from fivedim.lab.accelerator import VirtualAccelerator

        self.cfg, self.article = cfg, Predictor(cfg)
        card = self.article.model.accelerator.slowed(cfg.shrink**2, cfg.shrink)
        self.accelerator = VirtualAccelerator(card, rates={"float32": cfg.products})
        self.cases = cases(self.article.reported_sweep())
        self.models = [self.model(case) for case in self.cases]
        different = {case.frozen: model for case, model in zip(self.cases, self.models, strict=True)}
        profiles = {frozen: profile(self.accelerator, model, self.step) for frozen, model in different.items()}
        self.profiles = [profiles[case.frozen] for case in self.cases]

    @cached_property
    def tokens(self):
        """Tokens [B, T]: what they are does not matter."""
        import torch

        return torch.zeros(self.cfg.sequences, self.cfg.length // self.cfg.shrink, dtype=torch.long)

    @property
    def gradient_bytes(self) -> int:
        """Of the whole model."""
        return 4 * sum(self.profiles[0].elements.values())

    @property
    def buffer_bytes(self) -> int:
        """Of the whole model."""
        return sum(x.nbytes for x in self.models[0].buffers())

    def model(self, case: Case):
        """The shrunk model, with a causal mask that nobody reads in every layer, as the article's has them."""
        import torch

        from fivedim.model import GPT
        from fivedim.model.attention import causal
        from fivedim.model.config import named

        shape, shrink = named(self.cfg.model), self.cfg.shrink
        lengths = {name: getattr(shape, name) // shrink for name in ("vocabulary", "context", "width")}
        model = GPT(replace(shape, **lengths))
        for block in model.blocks:
            block.register_buffer("mask", causal(lengths["context"], torch.float32))
        model.tokens.weight.requires_grad_(not case.frozen)
        return model

    def step(self, model, optimizer) -> list[float]:
        """One step; when the lane will be done with forward and backward."""
        from fivedim.model import cross_entropy

        marks = []
        optimizer.zero_grad()
        loss, _ = cross_entropy(model(self.tokens), self.tokens)
        marks.append(self.accelerator.now)
        loss.backward()
        marks.append(self.accelerator.now)
        optimizer.step()
        return marks

    def on_rank(self) -> dict:
        """One rank's part: the table of collectives, the dilation that follows from it, then all cases in turn.

        Sends an all-reduce a bucket and the buffers' broadcast a step, and a few of each for the table.
        """
        import torch.distributed as dist

        from fivedim.comm.asynchronous import all_reduce_, broadcast_

        group = dist.group.WORLD
        table = {size: self.collective(all_reduce_, size, group) for size in sizes(self.gradient_bytes)}
        buffers = self.collective(broadcast_, self.buffer_bytes, group)
        replicas = [self.replica(*each, group) for each in zip(self.cases, self.models, strict=True)]
        for replica in replicas:  # its first step is not timed: kernels need not take long yet
            self.together(replica, group)
        self.accelerator.dilation = self.dilation(agreed(table[self.gradient_bytes], group))
        self.accelerator.steps.clear()
        spans = []
        for _ in range(self.cfg.repeats):
            for case, replica in zip(self.cases, replicas, strict=True):
                marks = self.together(replica, group)
                if case.name == cap_name(CAP):
                    spans = merged(self.accelerator.trace, marks)
            self.accelerator.check()
        steps = [self.accelerator.steps[index :: len(self.cases)] for index in range(len(self.cases))]
        return {
            "table": table,
            "buffers": buffers,
            "dilation": self.accelerator.dilation,
            "spans": spans,
            "steps": steps,
        }

    def collective(self, launch: Callable, size: int, group) -> list[float]:
        """Seconds of a collective on `size` bytes, as data parallelism calls it."""
        import torch

        x = torch.zeros(size // 4)
        return timed(lambda: launch(x, group).wait(), self.cfg.repeats, group)

    def dilation(self, all_reduce: float) -> float:
        """The card's: one GPU's step stands to an all-reduce of everything as it does in the article."""
        article = self.article.step()
        reported = self.article.constants[ONE_GPU] / 1e3 / article.all_reduce(sum(article.gradients().values()))
        return reported * all_reduce / self.profiles[0].whole

    def replica(self, case: Case, model, group):
        """The model and its optimizer, under our data parallelism unless it is one GPU's."""
        import torch

        from fivedim.data_parallel import Overlapped

        if case.cap_mib is not None:
            model = Overlapped(model, group, case.cap_mib / self.cfg.shrink**2)
            for bucket in model.buckets:
                bucket.flat.zero_()  # it is added up for real, and what was left in memory can be slow to add
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def together(self, replica, group) -> list[float]:
        """One step of all ranks, which begin together."""
        from fivedim import comm

        comm.barrier(group)
        with self.accelerator:
            return self.step(*replica)


def cap_name(cap: float) -> str:
    """The case of a cap of the article, MiB."""
    return f"cap {cap:g}"


def cases(caps) -> list[Case]:
    """One GPU, every cap, and the default cap without the embedding's gradient, for which the last bucket waits."""
    named = [Case(cap_name(cap), cap) for cap in caps]
    return [Case(SINGLE, None), *named, Case(FROZEN, CAP, frozen=True)]


def sizes(whole: int) -> list[int]:
    """Bytes of the all-reduces of the table, in fp32 elements."""
    return sorted({max(4, (whole >> halving) // 4 * 4) for halving in range(HALVINGS)})


def profile(accelerator: VirtualAccelerator, model, step: Callable) -> Profile:
    """One step of this process alone. It also prices all kernels, so that forked ranks need not."""
    import torch

    ready: dict[str, float] = {}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    hooks = [
        p.register_post_accumulate_grad_hook(lambda _, name=name: ready.__setitem__(name, accelerator.now))
        for name, p in trained.items()
    ]
    optimizer = torch.optim.AdamW(trained.values(), fused=True)
    for _ in range(2):  # the first also makes the optimizer's state
        with accelerator:
            forward, backward = step(model, optimizer)
    for hook in hooks:
        hook.remove()
    optimizer.zero_grad()
    elements = {name: p.numel() for name, p in trained.items()}
    return Profile(forward, backward, accelerator.now, elements, {name: ready[name] for name in trained})


def timed(work: Callable, repeats: int, group) -> list[float]:
    """Seconds of `repeats` calls of `work`, which all ranks begin together, after one that is not timed."""
    import time

    from fivedim import comm

    seconds = []
    for _ in range(1 + repeats):
        comm.barrier(group)
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def agreed(seconds: list[float], group) -> float:
    """The median of position 0."""
    import torch

    from fivedim import comm

    return comm.broadcast(torch.tensor(median(seconds), dtype=torch.float64), group).item()


def merged(trace: list[Span], marks: list[float]) -> list[dict]:
    """A step as few spans: what the compute lane did without a pause in one phase, and every collective."""
    spans, last = [], None
    for span in sorted(trace, key=lambda each: each.start):
        if span.lane == "communication":
            spans.append(span._replace(name=span.name.split("_")[0])._asdict())
            continue
        name = PHASES[sum(span.start >= mark for mark in marks)]
        if last and last["name"] == name and last["end"] == span.start:
            last["end"] = span.end
        else:
            spans.append(last := span._replace(name=name)._asdict())
    return spans


@dataclass(frozen=True)
class Emulated:
    """The emulated machine for the predictor: its card, what its links were seen to take, and the model's buffers."""

    card: Accelerator
    dilation: float
    all_reduce: Curve
    broadcast: float
    buffer_bytes: int

    def step(self, profiled: Profile) -> Step:
        """A step for the ledger, kernels by the virtual clock: an operation a gradient, of the time until it is done.

        Data parallelism adds four passes over what it moves: gradients are copied into their bucket and divided there,
        buffers are joined and split.
        """
        from fivedim.ledger.data_parallel import Step
        from fivedim.ledger.layers import Operation, work

        last, listed = profiled.forward, []
        for name, elements in reversed(profiled.elements.items()):
            done = max(last, profiled.ready[name])
            moved = self.card.stream(4 * 4 * elements)
            listed.append(Operation(name, 0.0, self.dilation * (done - last + moved), {name: elements}))
            last = done
        forward = profiled.forward + self.card.stream(4 * self.buffer_bytes)
        listed.append(Operation("forward", self.dilation * forward, self.dilation * (profiled.backward - last), {}))
        return Step(
            listed[::-1],
            compute=work(listed),
            optimizer=self.dilation * (profiled.whole - profiled.backward),
            all_reduce=self.all_reduce.seconds,
            buffers=self.broadcast,
        )

    def predict(self, profiled: Profile, case: Case, shrink: int) -> dict:
        """The simulated step of a case: seconds, and how many buckets."""
        from fivedim.ledger.data_parallel import timeline

        if case.cap_mib is None:
            return {"buckets": 0, "predicted_s": self.dilation * profiled.whole}
        step = self.step(profiled)
        bucketed = step.bucketed(case.cap_mib / shrink**2)
        simulated = timeline(step, bucketed)
        waits = {f"predicted_{name}_s": ms / 1e3 for name, ms in exposed(simulated).items()}
        return {"buckets": len(bucketed), "cap_mib": case.cap_mib, "predicted_s": simulated.makespan} | waits
