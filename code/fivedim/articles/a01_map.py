"""Article 1, a map of 5D parallelism: what a model's state weighs and what its training costs."""

import re

from fivedim.lab.config import Strict

VARIANTS = {
    "plain": {"fused_attention": False},
    "fused attention": {},
    "untied head": {"fused_attention": False, "tied": False},
    "grouped queries, rotary, no biases": {"fused_attention": False, "kv_heads": 1, "rope": True, "bias": False},
}


class StepsConfig(Strict):
    """`steps` optimizer steps of `microbatches` x `sequences` x `length` random tokens."""

    steps: int = 2
    microbatches: int = 2
    sequences: int = 2
    length: int = 16
    seed: int = 0


class ModelStateConfig(StepsConfig):
    """Each case is a model and the dtype in which its gradients are summed."""

    cases: list[tuple[str, str]] = [("tiny", "bfloat16"), ("tiny", "float32")]


def model_state(cfg: ModelStateConfig) -> list[dict]:
    """Live bytes by kind and dtype after real steps of the trainer, the gradients still alive.

    Rows: model, gradients, kind, dtype, bytes, formula (the ledger's bytes), miss (their difference), parameters,
    per_parameter. `activations` is what is alive and neither state nor buffer. Sends nothing.
    """
    return [row for case in cfg.cases for row in _state_rows(*case, cfg)]


class ModelStateRehearsedConfig(ModelStateConfig):
    """The article's own sizes. What lives after a step does not depend on the number of steps and tokens."""

    cases: list[tuple[str, str]] = [("124M", "bfloat16"), ("124M", "float32"), ("774M", "bfloat16"), ("7B", "bfloat16")]
    steps: int = 1
    microbatches: int = 1
    sequences: int = 1
    length: int = 1024


def model_state_rehearsed(cfg: ModelStateRehearsedConfig) -> list[dict]:
    """`model_state` on fake tensors: the same code, the same storages, no memory and no values. Sends nothing."""
    from fivedim.lab import rehearsal

    with rehearsal.rehearse():
        return model_state(cfg)


class StateAgainstCheckpointConfig(StepsConfig):
    """`counted` models are trained for real, `rehearsed` on fake tensors; `nominal` parameters go into the formulas."""

    counted: list[str] = ["tiny"]
    rehearsed: list[str] = ["7B"]
    nominal: int = 7 * 10**9
    card: int = 96


def state_against_checkpoint(cfg: StateAgainstCheckpointConfig) -> list[dict]:
    """The state by width of its dtype, the bf16 checkpoint, and whether a card holds them.

    Rows: model, source (counted, rehearsed or formula), parameters, state_bytes, fp32_bytes, checkpoint_bytes and what
    follows from them. The card's nominal GB are taken as GiB, the larger reading. Sends nothing.
    """
    from fivedim.lab import rehearsal
    from fivedim.ledger import memory

    rows = [_checkpoint_row(model, "counted", cfg) for model in cfg.counted]
    with rehearsal.rehearse():
        rows += [_checkpoint_row(model, "rehearsed", cfg) for model in cfg.rehearsed]
    kinds, weights = memory.state(cfg.nominal), memory.checkpoint(cfg.nominal)
    fp32 = kinds["master"] + kinds["exp_avg"] + kinds["exp_avg_sq"]
    return [*rows, _against_card("7B nominal", "formula", cfg.nominal, sum(kinds.values()), fp32, weights, cfg.card)]


class TrainingFlopConfig(Strict):
    """(model, tokens a sequence, sequences) to count for real and on fake tensors, and the article's bill."""

    counted: list[tuple[str, int, int]] = [("tiny", 64, 2), ("tiny", 17, 3)]
    rehearsed: list[tuple[str, int, int]] = [("124M", 1024, 1), ("774M", 1024, 1), ("7B", 2048, 1)]
    nominal: float = 7e9
    tokens: float = 1e12
    rate: float = 2e14


def training_flop(cfg: TrainingFlopConfig) -> list[dict]:
    """FLOP of matrix products in forward and backward, by module, against 6 * Psi * D and its named remainder.

    Rows: model, variant, source, length, sequences, term, pass, value, unit. Sends nothing.
    """
    from fivedim.lab import rehearsal

    rows = [row for variant in VARIANTS for case in cfg.counted for row in _flop_rows(*case, variant, "counted")]
    with rehearsal.rehearse():
        rows += [row for case in cfg.rehearsed for row in _flop_rows(*case, "plain", "rehearsed")]
    return rows + _bill(cfg, rows)


def _train(name: str, gradients: str, cfg: StepsConfig):
    """Steps of the trainer under the meter: the model, and the meter with every kind of state named."""
    import torch

    from fivedim import train
    from fivedim.lab import meter
    from fivedim.model import GPT, named
    from fivedim.optim import adamw
    from fivedim.precision import MixedPrecision

    config = named(name, **VARIANTS["plain"])
    stream = torch.Generator().manual_seed(cfg.seed)
    shape = (cfg.steps, cfg.microbatches, cfg.sequences, cfg.length + 1)
    data = torch.randint(config.vocabulary, shape, generator=stream)
    with meter.Live() as live:
        model = GPT(config, cfg.seed)
        optimizer = MixedPrecision(model.parameters(), adamw, accumulate=getattr(torch, gradients))
        for batches in data:
            train.step(model, optimizer, [(tokens[:, :-1], tokens[:, 1:]) for tokens in batches])
        live.label("data", [data])  # all steps' tokens at once are the experiment's, not the step's
        live.label("buffers", model.buffers())
        for kind, tensors in optimizer.tensors().items():
            live.label(kind, tensors)
    return model, {key: nbytes for key, nbytes in live.resident().items() if key[0] != "data"}


def _state_rows(name: str, gradients: str, cfg: StepsConfig) -> list[dict]:
    from fivedim.ledger import memory

    model, found = _train(name, gradients, cfg)
    tensors = list(model.parameters())
    count = sum(tensor.numel() for tensor in tensors)
    formula = memory.state(count, 2 if gradients == "bfloat16" else 4)
    formula |= {"step": memory.step_counters(len(tensors)), "buffers": 0, "activations": 0}
    missing = formula.keys() - {kind for kind, _ in found}
    return [
        {"model": name, "gradients": gradients, "kind": kind, "dtype": dtype, "bytes": nbytes,
         "formula": formula[kind], "miss": nbytes - formula[kind], "parameters": count, "per_parameter": nbytes / count}
        for (kind, dtype), nbytes in [*found.items(), *(((kind, "none"), 0) for kind in sorted(missing))]
    ]  # fmt: skip


def _checkpoint_row(name: str, source: str, cfg: StateAgainstCheckpointConfig) -> dict:
    model, found = _train(name, "bfloat16", cfg)
    state = {key: nbytes for key, nbytes in found.items() if key[0] != "step"}
    fp32 = sum(nbytes for (_, dtype), nbytes in state.items() if dtype == "float32")
    count = sum(tensor.numel() for tensor in model.parameters())
    weights = _checkpoint(model, saved=source == "counted")
    return _against_card(name, source, count, sum(state.values()), fp32, weights, cfg.card)


def _checkpoint(model, saved: bool) -> int:
    """Bytes of the weights in a checkpoint: the state dict's tensors, written to a file and read back if `saved`."""
    import io

    import torch

    weights = model.state_dict()
    if saved:
        file = io.BytesIO()
        torch.save(weights, file)
        file.seek(0)
        weights = torch.load(file)
    return sum(tensor.untyped_storage().nbytes() for tensor in weights.values())


def _against_card(name: str, source: str, parameters: int, state: int, fp32: int, weights: int, card: int) -> dict:
    from fivedim.ledger.memory import GB, GIB

    return {
        "model": name, "source": source, "parameters": parameters,
        "state_bytes": state, "fp32_bytes": fp32, "checkpoint_bytes": weights,
        "fp32_share": fp32 / state, "state_over_checkpoint": state / weights,
        "state_gb": state / GB, "state_gib": state / GIB, "checkpoint_gb": weights / GB,
        "card_gib": card, "exceeds_card": state > card * GIB,
    }  # fmt: skip


def _flop_rows(name: str, length: int, sequences: int, variant: str, source: str) -> list[dict]:
    """One model's FLOP by module and pass, a weight and token, and against 6 * Psi * D with its named remainder."""
    from fivedim.ledger import flop, gpt
    from fivedim.model import named

    config, tokens = named(name, **VARIANTS[variant]), length * sequences
    parameters, forward, backward = _count_flop(config, length, sequences)
    estimate, extra = flop.training(parameters, tokens), flop.remainder(config, length, sequences)
    everything = forward.total() + backward.total()
    sums = {"everything": everything, "6*Psi*D": estimate} | extra
    sums["unexplained"] = everything - estimate - sum(extra.values())
    sums["largest miss of a formula"] = max(
        _miss(forward, flop.forward(config, length, sequences)),
        _miss(backward, flop.backward(config, length, sequences)),
    )
    values = [(term, "both", value, "FLOP") for term, value in sums.items()]
    values += [(term, "both", value / estimate, "6*Psi*D") for term, value in sums.items()]
    weights = gpt.matrices(config)
    for which, terms in {"forward": forward, "backward": backward, "both": forward + backward}.items():
        values += [(term, which, value, "FLOP") for term, value in terms.items()]
        each = sum(terms[term] for term in weights) / tokens / sum(weights.values())
        values.append(("weights", which, each, "FLOP/weight/token"))
    case = {"model": name, "variant": variant, "source": source, "length": length, "sequences": sequences}
    return [case | dict(zip(("term", "pass", "value", "unit"), value, strict=True)) for value in values]


def _count_flop(config, length: int, sequences: int):
    """The model's parameters, and the FLOP of one forward and one backward pass by module, summed over layers."""
    from collections import Counter

    import torch

    from fivedim.lab import meter
    from fivedim.model import GPT, cross_entropy

    model, tokens = GPT(config), torch.zeros(sequences, length, dtype=torch.int64)
    with meter.Flop(model) as counter:
        loss, _ = cross_entropy(model(tokens), tokens)
        forward = counter.by_module()
        loss.backward()
        backward = counter.by_module() - forward
    passes = []
    for found in (forward, backward):
        terms = Counter()
        for name, value in found.items():
            terms[re.sub(r"^GPT\.(blocks\.\d+\.)?", "", name)] += value
        passes.append(+terms)
    return sum(parameter.numel() for parameter in model.parameters()), *passes


def _miss(counted: dict[str, int], formula: dict[str, int]) -> int:
    return max(abs(counted.get(term, 0) - formula.get(term, 0)) for term in counted.keys() | formula.keys())


def _bill(cfg: TrainingFlopConfig, rows: list[dict]) -> list[dict]:
    """FLOP and years of the whole training: by 6 * Psi * D at the nominal size, and as counted for our models."""
    from fivedim.ledger import flop

    case = {"model": "7B nominal", "variant": "none", "source": "formula", "length": 0, "sequences": 0}
    bills = [(case, flop.training(cfg.nominal, cfg.tokens))]
    for row in rows:
        if (row["term"], row["unit"], row["source"]) == ("everything", "FLOP", "rehearsed"):
            bills.append((row, row["value"] / row["length"] / row["sequences"] * cfg.tokens))
    units = {
        "FLOP": lambda total: total,
        "years of 365 days": lambda total: flop.years(total, cfg.rate, 365),
        "years of 365.25 days": lambda total: flop.years(total, cfg.rate, 365.25),
    }
    return [
        case | {"term": "whole training", "pass": "both", "value": value(total), "unit": unit}
        for case, total in bills
        for unit, value in units.items()
    ]
