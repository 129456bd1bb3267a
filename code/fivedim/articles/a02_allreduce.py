"""Article 2, The Price of All-Reduce: what the collectives compute, what they send, what the reported times say."""

from collections.abc import Iterator

from fivedim.lab.config import Strict


class alpha_beta_fitConfig(Strict):  # noqa: N801 - an experiment's config is named after its function
    """`machine` is a file of configs/machines whose collectives table is fitted."""

    machine: str = "rtx-pro-6000-x8"


def alpha_beta_fit(cfg: alpha_beta_fitConfig) -> list[dict]:
    """The reported times of every collective and N, and T(S) = alpha + S/beta fitted to each of those curves.

    `row` is point (one reported time beside the model's) or fit (one curve's alpha, beta and errors). Sends nothing.
    """
    import pandas as pd

    from fivedim.lab.config import find_root
    from fivedim.lab.machine import load

    root = find_root()
    reported = pd.concat(pd.read_csv(root / table) for table in load(root, cfg.machine).collectives.values())
    curves = reported.groupby(["op", "world_size"], sort=False)
    return [row for (collective, n), curve in curves for row in _curve_rows(collective, n, curve)]


def _curve_rows(collective: str, n: int, curve) -> Iterator[dict]:
    from fivedim.ledger import time

    sizes, seconds = curve.bytes.tolist(), (curve.time_ms / 1e3).tolist()
    model = time.fit_alpha_beta(sizes, seconds)
    errors = time.relative_errors(model, sizes, seconds)
    name = {"collective": collective, "ranks": n}
    for size, reported, error in zip(sizes, seconds, errors, strict=True):
        busbw = time.bus_bandwidth(collective, n, size, reported) / 1e9
        yield {"row": "point", **name, "bytes": size, "seconds": reported, "busbw_gb_s": busbw, "error": error}
    yield {
        "row": "fit",
        **name,
        "alpha_s": model.alpha,
        "beta_bytes_s": model.beta,
        "busbw_gb_s": time.BUS_FACTORS[collective](n) * model.beta / 1e9,
        "crossover_bytes": model.crossover,
        "error": max(errors, key=abs),
        "rms_error": (sum(e * e for e in errors) / len(errors)) ** 0.5,
    }
