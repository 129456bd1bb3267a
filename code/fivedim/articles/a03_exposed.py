"""Article 3, where the time goes that overlap does not hide: the reported equations, the parts, and the naive way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fivedim.articles.a03_ddp import CAP, ONE_GPU, DdpConfig, Predictor, exposed, ranges

if TYPE_CHECKING:
    from fivedim.ledger.data_parallel import Step

WHOLE = 500  # MiB: a cap that no gradient reaches before the last
UNKNOWNS = ("compute", "exposed", "optimizer")
# How often each unknown is in a reported step: no accumulation; 4 microbatches, all synchronized; only the last
EQUATIONS = ((1, 1, 1), (4, 4, 1), (4, 1, 1))


class ExposedTimePredictedConfig(DdpConfig):
    """`noises` are how far off, as a share, each reported step may be: none was repeated, so that this is assumed.

    `within` is how far from 1 the explained share may be, for the ranges of the constants.
    """

    noises: tuple[float, ...] = (0.0025, 0.005, 0.01)
    within: float = 0.15


def exposed_time_predicted(cfg: ExposedTimePredictedConfig) -> list[dict]:
    """The reported steps solved for compute, exposed communication and optimizer, and the exposed part taken apart.

    `row` is unknown (solved from three reported steps, with the interval that each noise allows), quantity (predicted
    beside reported), part (of the reported step, in order: one GPU, then what is on top), variant (the same step with
    another embedding) or range (of a constant, over which the explained share is within `within` of 1). Times in ms.
    Sends nothing.
    """
    predictor = Predictor(cfg)
    solved = {row["name"]: row["ms"] for row in _unknowns(predictor, cfg.noises[0])}

    def explained(constants: dict[str, float]) -> float:
        return sum(_waits(predictor.step(constants)).values()) / solved["exposed"]

    return [
        *(row for noise in cfg.noises for row in _unknowns(predictor, noise)),
        *_quantities(predictor, solved),
        *_parts(predictor, solved),
        *_variants(predictor),
        *ranges(predictor.constants, explained, lambda share: abs(share - 1) <= cfg.within),
    ]


def _unknowns(predictor: Predictor, noise: float) -> Iterator[dict]:
    """The unknowns are linear in the reported steps; the interval is the worst case of every step's own error."""
    import numpy as np

    steps = np.array(
        [predictor.reported_ms(bucket_cap_mb="25.0", gas="1")]
        + [predictor.reported_ms(gas="4", no_sync=flag) for flag in "01"]
        + [predictor.constants[ONE_GPU]]
    )
    weights = dict(zip(UNKNOWNS, np.column_stack([np.linalg.inv(EQUATIONS), np.zeros(3)]), strict=True))
    weights["slower compute"] = weights["compute"] + weights["optimizer"] - np.eye(4)[3]
    for name, weight in weights.items():
        value, error = float(weight @ steps), float(abs(weight) @ steps)
        yield {
            **{"row": "unknown", "name": name, "noise": noise, "ms": value},
            **{"low_ms": value - noise * error, "high_ms": value + noise * error, "noise_to_zero": value / error},
        }


def _waits(step: Step) -> dict[str, float]:
    """Predicted exposed ms at the default cap, by what is waited for."""
    from fivedim.ledger.data_parallel import timeline

    return exposed(timeline(step, step.bucketed(CAP)))


def _quantities(predictor: Predictor, solved: dict[str, float]) -> Iterator[dict]:
    """What the article says of the step (`said`: reported, or solved for by the equations), predicted beside it.

    In ms, but for the efficiency.
    """
    from fivedim.ledger.data_parallel import timeline

    one_gpu, step = predictor.constants[ONE_GPU], predictor.step()
    whole, default = (1e3 * timeline(step, step.bucketed(cap)).makespan for cap in (WHOLE, CAP))
    said_whole, said_default = (predictor.reported_sweep()[cap] for cap in (WHOLE, CAP))
    alone = 1e3 * step.all_reduce(sum(step.gradients().values()))
    pairs = {
        "one bucket over one GPU": ("reported", said_whole - one_gpu, whole - one_gpu),
        "all-reduce alone": ("reported", said_whole - one_gpu, alone),
        "over one GPU at the default cap": ("reported", said_default - one_gpu, default - one_gpu),
        "hidden by overlap": ("reported", said_whole - said_default, whole - default),
        "efficiency": ("reported", one_gpu / said_default, one_gpu / default),
        "exposed communication": ("solved", solved["exposed"], sum(_waits(step).values())),
        "optimizer": ("solved", solved["optimizer"], 1e3 * step.optimizer),
    }
    for name, (against, said, predicted) in pairs.items():
        ratio = predicted / said
        yield {
            **{"row": "quantity", "name": name, "against": against, "said": said},
            **{"predicted": predicted, "ratio": ratio},
        }


def _parts(predictor: Predictor, solved: dict[str, float]) -> Iterator[dict]:
    """The reported step at the default cap, from one GPU's upwards; `open` is what no part accounts for."""
    step, said = predictor.step(), predictor.reported_sweep()[CAP]
    waits = _waits(step)
    sizes = step.gradients()
    last = step.bucketed(CAP)[-1]
    embedding = waits["last_bucket"] * sizes[last[-1]] / sum(sizes[name] for name in last)
    parts = {
        "one GPU": (predictor.constants[ONE_GPU], "reported"),
        "slower compute": (solved["slower compute"], "solved"),
        "buffers' broadcast": (waits["buffers"], "predicted"),
        "the bucket before the last": (waits["tail"], "predicted"),
        "last bucket: embedding": (embedding, "predicted"),
        "last bucket: the rest": (waits["last_bucket"] - embedding, "predicted"),
    }
    parts["open"] = (said - sum(ms for ms, _ in parts.values()), "open")
    parts["DDP"] = (said, "reported")
    for order, (name, (ms, source)) in enumerate(parts.items()):
        yield {"row": "part", "order": order, "name": name, "ms": ms, "source": source}


def _variants(predictor: Predictor) -> Iterator[dict]:
    """The same step with other embeddings: what waits is the last bucket, so that its size decides."""
    from fivedim.ledger.data_parallel import timeline

    step, vocabulary = predictor.step(), predictor.shape.vocabulary
    variants = {
        "as reported": step,
        "untied": predictor.step(tied=False),
        "a quarter of the vocabulary": predictor.step(vocabulary=vocabulary // 4),
        "twice the vocabulary": predictor.step(vocabulary=2 * vocabulary),
        "embedding frozen": replace(step, frozen=frozenset(["tokens.weight"])),
        "no buffers": replace(step, buffers=0.0),
    }
    for name, variant in variants.items():
        simulated = timeline(variant, variant.bucketed(CAP))
        gradients = sum(variant.gradients().values())
        yield {
            **{"row": "variant", "name": name, "gradient_bytes": gradients, "predicted_ms": 1e3 * simulated.makespan},
            **{"exposed_ms": 1e3 * simulated.exposed(0), "all_reduce_ms": 1e3 * variant.all_reduce(gradients)},
        }
