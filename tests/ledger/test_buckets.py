"""DDP's buckets: the lists are those of torch's own function."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from fivedim.ledger import buckets
from fivedim.model import GPT, named

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def torchs(elements, widths, caps, ready=()):
    tensors = [torch.empty(n, dtype=DTYPES[width], device="meta") for n, width in zip(elements, widths, strict=True)]
    return dist._compute_bucket_assignment_by_size(tensors, list(caps), [False] * len(tensors), list(ready))[0]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.lists(st.integers(1, 900), min_size=1, max_size=3))
def test_buckets_in_order_of_readiness_are_torchs(elements, caps):
    found = buckets.assign([4 * n for n in elements], caps)
    assert found == torchs(elements, [4] * len(elements), caps, ready=range(len(elements)))


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([2, 4, 8])), min_size=1, max_size=30))
def test_tensors_of_different_dtypes_share_no_bucket(tensors):
    elements, widths = zip(*tensors, strict=True)
    found = buckets.assign([n * width for n, width in tensors], (256, 1024), widths)
    assert sorted(found) == torchs(elements, widths, (256, 1024))  # torch sorts where it was given no order


@pytest.mark.parametrize("cap", [None, 1, 10, 25, 100, 250, 500])
def test_the_buckets_of_gpt2_are_torchs(cap):
    with torch.device("meta"):
        model = GPT(named("124M", fused_attention=False))
    elements = [parameter.numel() for parameter in model.parameters()][::-1]
    found = buckets.assign([4 * n for n in elements], buckets.caps(cap))
    assert found == torchs(elements, [4] * len(elements), buckets.caps(cap), ready=range(len(elements)))
    assert sorted(index for bucket in found for index in bucket) == list(range(148))


def test_a_bucket_closes_with_the_tensor_that_reaches_its_cap():
    assert buckets.assign([3, 3, 100, 1, 1], [5]) == [[0, 1], [2], [3, 4]]
    assert buckets.assign([1, 1, 1, 1], [1, 3]) == [[0], [1, 2, 3]]  # the first cap is the first bucket's alone


def test_the_default_caps_are_torchs():
    assert buckets.caps(None) == (dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20)
    assert buckets.caps(0.5) == (2**19,)


def test_a_bucket_that_must_fit_closes_before_what_would_not():
    assert buckets.fit([3, 3, 3, 10, 1, 1], 8) == [[0, 1], [2], [3], [4, 5]]
    assert buckets.fit([3, 3], 0) == [[0], [1]]
    assert buckets.fit([], 8) == []
