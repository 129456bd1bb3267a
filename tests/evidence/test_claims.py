import copy

import pytest

from fivedim.errors import UserError
from fivedim.evidence import claims
from tests.evidence import project


def renamed(entry, path, new):
    """The claim with the key at `path` renamed."""
    *above, last = path
    inner = entry = copy.deepcopy(entry)
    for key in above:
        inner = inner[key]
    inner[new] = inner.pop(last)
    return entry


def refusal(tmp_path, *entries):
    with pytest.raises(UserError) as caught:
        claims.read(project.write(tmp_path, list(entries)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "new", "allowed"),
    [
        (["statement"], "statment", "statement"),
        (["evidence", "exact", "experiment"], "experment", "experiment"),
        (["evidence", "exact", "headline", "column"], "colum", "column"),
        (["evidence", "exact", "headline", "tolerance", "abs"], "absolute", "abs"),
    ],
)
def test_F28_a_misspelt_key_names_file_claim_key_and_what_is_allowed(tmp_path, path, new, allowed):
    text = refusal(tmp_path, renamed(project.claim(), path, new))
    assert "claims.yaml" in text
    assert "2.2" in text
    assert new in text
    assert allowed in text.split("allowed")[1]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (renamed(project.claim(), ["evidence", "exact"], "exakt"), ["2.2", "exakt", "'exact'"]),
        (project.claim(experiment="volume"), ["2.2", "exact", "volume", "volumes"]),
        (project.claim({"reduce": "average"}), ["reduce", "average", "'mean'"]),
        (project.claim({"reduce": None}), ["column and reduce, or derive"]),
        (project.claim({"derive": "share"}), ["column and reduce, or derive"]),
        (project.claim({"reported": None, "expected": None}), ["reported or expected"]),
        (project.claim({"tolerance": None}), ["tolerance"]),
        (project.claim({"tolerance": {"shape": {"abs": 1}}}), ["give abs or rel"]),
        (project.claim({"tolerance": {"abs": -1}}), ["abs", "-1"]),
        (project.claim({"reported": float("nan")}), ["reported", "finite"]),
        (project.claim({"name": "50% more"}), ["name", "50% more"]),
        (project.claim({"decides": False}), ["headline"]),
        (project.claim(instead="is {vlaue}"), ["vlaue", "value"]),
        (project.claim(parts=[project.HEADLINE, project.HEADLINE]), ["two parts", "all-reduce at N=8"]),
        (project.claim() | {"article": 3}, ["2.2", "article 3"]),
        (project.claim() | {"evidence": {}}, ["evidence"]),
    ],
)
def test_F28_a_bad_claim_is_named(tmp_path, entry, words):
    text = refusal(tmp_path, entry)
    assert all(word in text for word in ["claims.yaml", *words])


def test_F28_a_duplicate_id_is_named(tmp_path):
    assert "claim 2.2 stands there 2 times" in refusal(tmp_path, project.claim(), project.claim())


def test_claims_are_ordered_by_number_and_kinds_by_strength(tmp_path):
    ten = project.claim() | {"id": "2.10"}
    two = project.claim() | {"id": "2.9"}
    two["evidence"] = {"measured": two["evidence"]["exact"], "exact": two["evidence"]["exact"]}
    found = claims.read(project.write(tmp_path, [ten, two]))
    assert [claim.id for claim in found] == ["2.9", "2.10"]
    assert [kind for kind, _ in found[0].kinds()] == ["exact", "measured"]
