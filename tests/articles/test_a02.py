"""Article 2's experiments: what their rows promise."""

from fivedim.articles import a02_allreduce as a02


def test_alpha_beta_fit_has_every_reported_point_and_a_fit_for_every_curve():
    rows = a02.alpha_beta_fit(a02.alpha_beta_fitConfig())
    points, fits = ([row for row in rows if row["row"] == kind] for kind in ("point", "fit"))
    assert len(points) == 3 * 6 * 6
    assert len(fits) == 3 * 6
    for fit in fits:
        errors = [abs(p["error"]) for p in points if (p["collective"], p["ranks"]) == (fit["collective"], fit["ranks"])]
        assert abs(fit["error"]) == max(errors) >= fit["rms_error"] > 0
