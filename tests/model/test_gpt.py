"""The GPT against an independent reading of it, and the properties that its options must have."""

import math

import pytest
import torch
from torch.nn import functional as F

from fivedim.errors import UserError
from fivedim.lab import rehearsal
from fivedim.model import GPT, GPTConfig, cross_entropy, named
from fivedim.model.attention import rotate, rotation

SMALL = {"vocabulary": 17, "context": 13, "layers": 3, "heads": 6, "width": 24}
PLAIN = {"fused_attention": False, "fused_gelu": False}


def build(seed=0, **changes):
    torch.manual_seed(seed)
    model = GPT(GPTConfig(**SMALL | changes), seed).double()
    with torch.no_grad():
        for parameter in model.parameters():  # the initial biases are zero and would hide a forgotten one
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def draw(batch=2, length=11, seed=1):
    return torch.randint(SMALL["vocabulary"], (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "vocabulary", "count"),
    [
        ("124M", 50257, 124_439_808),
        ("124M", 50304, 124_475_904),
        ("774M", 50304, 774_090_240),
        ("7B", 50257, 50257 * 4096 + 32 * (12 * 4096**2 + 13 * 4096) + 2 * 4096 + 2048 * 4096),
    ],
)
def test_parameter_counts(name, vocabulary, count):
    with torch.device("meta"):
        model = GPT(named(name, vocabulary=vocabulary))
    counted = sum(p.numel() for p in model.parameters())
    assert counted == count


def reference(state, tokens, heads):
    """GPT-2 read from its paper, for one set of weights by name; learned positions, tied embedding, all heads equal."""
    length, width = tokens.shape[1], state["tokens.weight"].shape[1]
    x = state["tokens.weight"][tokens] + state["positions.weight"][:length]
    hidden = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
    for layer in range(SMALL["layers"]):
        weights = {k.removeprefix(f"blocks.{layer}."): v for k, v in state.items() if k.startswith(f"blocks.{layer}.")}
        y = F.layer_norm(x, (width,), weights["attention_norm.weight"], weights["attention_norm.bias"])
        parts = (y @ weights["attention.qkv.weight"].T + weights["attention.qkv.bias"]).chunk(3, dim=-1)
        mixed = []
        for q, k, v in zip(*(part.split(width // heads, dim=-1) for part in parts), strict=True):
            mixed.append(F.softmax(q @ k.mT / math.sqrt(width // heads) + hidden, dim=-1) @ v)
        x = x + torch.cat(mixed, dim=-1) @ weights["attention.out.weight"].T + weights["attention.out.bias"]
        y = F.layer_norm(x, (width,), weights["mlp_norm.weight"], weights["mlp_norm.bias"])
        y = F.gelu(y @ weights["mlp.up.weight"].T + weights["mlp.up.bias"], approximate="tanh")
        x = x + y @ weights["mlp.out.weight"].T + weights["mlp.out.bias"]
    x = F.layer_norm(x, (width,), state["norm.weight"], state["norm.bias"])
    return x @ state.get("head.weight", state["tokens.weight"]).T


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", [{}, PLAIN, PLAIN | {"mask_buffers": True}])
def test_equals_an_independent_reading_and_stays_float64(options, tied):
    model, tokens = build(tied=tied, **options), draw()
    logits = model(tokens)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits, reference(model.state_dict(), tokens, SMALL["heads"]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options", [{}, PLAIN, {"rope": True}, {"kv_heads": 2}, PLAIN | {"kv_heads": 1, "rope": True, "bias": False}]
)
def test_later_tokens_change_no_earlier_logit(options):
    model, tokens = build(**options), draw()
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % SMALL["vocabulary"]
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(dim=-1).all()


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, PLAIN])
def test_grouped_queries_equal_repeated_keys(kv_heads, options):
    grouped, whole = build(kv_heads=kv_heads, **options), build(**options)
    rows = torch.arange(SMALL["width"]).view(6, 4)
    keys = rows[:kv_heads].repeat_interleave(6 // kv_heads, dim=0)
    order = torch.cat([rows.flatten(), keys.flatten() + 24, keys.flatten() + 24 + 4 * kv_heads])
    state = grouped.state_dict()
    for name in [name for name in state if "qkv" in name]:
        state[name] = state[name][order]
    whole.load_state_dict(state)
    torch.testing.assert_close(grouped(draw()), whole(draw()), rtol=1e-10, atol=1e-10)


def test_rotary_scores_depend_on_the_distance_alone():
    config = GPTConfig(**SMALL | {"heads": 3}, rope=True)
    q, k = torch.randn(2, 1, 3, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    scores = {}
    for at, back in [(5, 2), (3, 0), (900, 897), (5, 1)]:
        turned = [rotate(x, rotation(torch.tensor([place]), config)) for x, place in ((q, at), (k, back))]
        scores[at, back] = (turned[0] * turned[1]).sum(-1)
    torch.testing.assert_close(scores[5, 2], scores[3, 0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(scores[5, 2], scores[900, 897], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(scores[5, 2], scores[5, 1])
    assert rotate(q.bfloat16(), rotation(torch.tensor([1]), config)).dtype == torch.bfloat16


@pytest.mark.parametrize("rope", [True, False])
def test_positions_say_where_tokens_stand(rope):
    model, tokens = build(rope=rope), draw(1, 4)
    moved = model(tokens, torch.arange(5, 9))
    assert torch.allclose(moved, model(tokens)) == rope


@pytest.mark.parametrize("options", [{}, PLAIN])
def test_dropout_acts_in_training_alone(options):
    model, tokens = build(dropout=0.5, **options), draw()
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    torch.testing.assert_close(model(tokens), build(**options)(tokens), rtol=1e-10, atol=1e-10)


def test_initialisation_is_gpt2s_and_a_function_of_the_seed():
    model, again, other = (GPT(GPTConfig(layers=2, width=240, vocabulary=999), seed) for seed in (0, 0, 1))
    for (name, p), q, r in zip(model.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p, r) == (p.ndim == 1)
        if p.ndim == 2:
            assert p.std().item() == pytest.approx(0.01 if name.endswith("out.weight") else 0.02, rel=0.02)
        else:
            assert torch.equal(p, torch.full_like(p, float(name.endswith("norm.weight"))))


def test_masks_are_counted_and_huge_models_need_no_memory():
    with rehearsal.rehearse():
        model = GPT(named("124M", fused_attention=False, mask_buffers=True))
        assert sum(b.nbytes for b in model.buffers()) == 50_331_648
        loss, valid = cross_entropy(GPT(named("7B"))(torch.zeros(1, 3, dtype=torch.int64)), torch.zeros(1, 3).long())
        assert (loss.dtype, valid.dtype) == (torch.float32, torch.int64)


def test_cross_entropy_counts_valid_targets():
    logits = torch.randn(2, 3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, -100, 10], [-100, -100, 0]])
    total, valid = cross_entropy(logits, targets)
    log = logits.log_softmax(dim=-1)
    torch.testing.assert_close(total, -(log[0, 0, 1] + log[0, 2, 10] + log[1, 2, 0]))
    assert (valid.item(), total.dtype) == (3, torch.float64)
    nothing, none = cross_entropy(logits.bfloat16(), torch.full((2, 3), -100))
    assert (nothing.item(), none.item(), nothing.dtype) == (0.0, 0, torch.float32)


@pytest.mark.parametrize("options", [{"heads": 5}, {"kv_heads": 4}, {"rope": True, "heads": 8}, {"mask_buffers": True}])
def test_a_shape_that_cannot_be_is_one_line(options):
    with pytest.raises(UserError, match="^[^\n]+: [^\n]+$"):
        GPTConfig(**SMALL | options)


def test_unknown_names_and_long_sequences_are_one_line():
    with pytest.raises(UserError, match="model 8B: unknown; use one of tiny, 124M"):
        named("8B")
    with pytest.raises(UserError, match="14 tokens, but the context is 13"):
        build()(draw(1, 14))
