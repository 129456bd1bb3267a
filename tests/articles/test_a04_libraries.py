"""What libraries send and hold: counted on two ranks, and the terms of the reported residents on made-up counts."""

import pandas as pd
import pytest

from fivedim.articles import a04_libraries as a04
from fivedim.articles import residents
from fivedim.errors import UserError
from fivedim.lab import ranks

SMALL = a04.LibrariesConfig(layers=2, warmup=1)
SEEN = ("DeepSpeed 1", "DeepSpeed 3")


def counted_and_bent():
    """The rows of some libraries as one of two ranks, and of a stage 3 that reduces everything twice.

    The other rank is a fake one: what is sent and held does not depend on values.
    """
    from fivedim.articles import peers
    from fivedim.lab import rehearsal

    with peers.quiet(), rehearsal.fake_group(2):
        cases = {case.library: case for case in a04._cases(SMALL)}
        rows = [row for library in SEEN for row in a04._case_rows(SMALL, cases[library])]
        import deepspeed.runtime.zero.stage3 as stage3

        right = stage3.reduce_scatter_coalesced

        def twice(tensors, group=None):
            right(tensors, group)
            return right(tensors, group)

        stage3.reduce_scatter_coalesced = twice
        return rows, list(a04._case_rows(SMALL, cases["DeepSpeed 3"]))


@pytest.mark.timeout(300)
def test_libraries_send_and_hold_what_their_sources_say():
    rows, bent = map(pd.DataFrame, ranks.run(counted_and_bent, 1, timeout=120)[0])
    totals = rows[rows.row == "total"].set_index("library")
    assert totals.state_units["DeepSpeed 1"] == pytest.approx(3, rel=1e-3)
    sent = rows[rows.row == "sent"].set_index(["library", "collective", "dtype"]).units
    assert sent["DeepSpeed 1", "allreduce", "bfloat16"] == 2
    assert sent["DeepSpeed 3", "reduce_scatter_base", "bfloat16"] == 1
    assert bent[bent.collective == "reduce_scatter_base"].units.item() == 2
    held = rows[rows.row == "held"].set_index(["library", "kind", "dtype"])
    assert held.copies["DeepSpeed 1", "master", "float32"] == pytest.approx(0.5, rel=1e-3)
    assert held.copies["DeepSpeed 3", "gradients", "bfloat16"] == pytest.approx(0.5, rel=1e-3)
    bucket = SMALL.thresholds(totals.parameters["DeepSpeed 3"])["reduce_bucket_size"]
    assert held.bytes["DeepSpeed 3", "reduce bucket", "bfloat16"] == 2 * bucket
    assert held.copies["DeepSpeed 3", "parameters", "bfloat16"] == pytest.approx(0.5, rel=1e-3)


def test_without_deepspeed_the_claims_cannot_be_tested(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (row,) = a04.libraries(SMALL)
    assert "pip install" in row["unavailable"]


PARAMETERS, TENSORS = 1000, 10


@pytest.fixture
def thresholds(monkeypatch):
    """DeepSpeed's defaults, without its import."""
    defaults = {"reduce_bucket_size": 500_000_000, "stage3_param_persistence_threshold": 100_000}
    monkeypatch.setattr("fivedim.articles.peers.deepspeed_defaults", lambda: defaults)


def held(library, kind, share, element_bytes, storages=1, at_start=True):
    """A row of a kind that holds `share` of all elements."""
    size = int(PARAMETERS * share)
    return {
        **{"row": "held", "library": library, "parameters": PARAMETERS, "kind": kind, "bytes": size * element_bytes},
        **{"element_bytes": element_bytes, "copies": share, "storages": storages, "at_start": at_start},
    }


def counts(*more):
    """Every library keeps bf16 weights whole, a tensor each, and half of a flat fp32 master; stage 3 keeps `more`."""
    for library in residents.REPORTED:
        yield {"row": "total", "library": library, "theory_whole": 2, "theory_sharded": 4}
        yield held(library, "parameters", 1, 2, TENSORS, at_start=False)
        yield held(library, "master", 0.5, 4)
    yield from (held("DeepSpeed 3", *each) for each in more)


def explained(*more, per_bucket=0.0):
    laws = [{"library": "DeepSpeed 3", "per_bucket": per_bucket}]
    rows = pd.DataFrame(residents.explain(list(counts(*more)), laws))
    return rows[rows.library == "DeepSpeed 3"].set_index("row")


def test_terms_are_evaluated_at_the_articles_size(thresholds):
    rows = explained(("buffers", 0.03, 4), ("reduce bucket", 0.6, 2), per_bucket=2.0)
    terms = rows.loc["term"].set_index("term").mib * 2**20
    psi = 774_090_240
    assert terms["parameters"] == 2 * psi
    assert terms["master"] == 4 * psi / 8
    assert terms["buffers"] == 36 * 4 * 1024**2
    assert terms["reduce bucket"] == 2 * 500_000_000
    assert terms["unsplit blocks"] == 185 * 2**21 - 387_045_376  # the master alone is old; a block is 512 B times n
    whole = rows.loc["explained"]
    assert whole.gib * 2**30 == pytest.approx(terms.sum())
    assert whole.theory_gib * 2**30 == 2.5 * psi
    assert whole.open_mib == pytest.approx(1024 * (2.53 - whole.gib))


def test_a_kind_without_a_term_is_refused_unless_it_is_negligible(thresholds):
    assert explained(("unnamed", 0.001, 4)).loc["explained"].gib > 0
    with pytest.raises(UserError, match="DeepSpeed 3 holds 2000 B of unnamed"):
        explained(("unnamed", 0.5, 4))
