"""What these tests share."""


def close(found, wanted, what, tolerance=1e-12):
    """All elements within `tolerance`. (torch.testing would import sympy on every rank, for seconds.)"""
    assert found.shape == wanted.shape, f"{what}: {found.shape} for {wanted.shape}"
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype} for {wanted.dtype}"
    if found.numel():
        miss = (found - wanted).abs().max().item()
        assert miss <= tolerance, f"{what}: off by {miss}"
