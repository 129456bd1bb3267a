"""The table of libraries on made-up counts."""

from pathlib import Path

import pandas as pd

from fivedim.evidence import libraries
from fivedim.evidence.results import Result

ABOUT = {"library": "Deep_Speed 3", "parameters": 100}
ROWS = [
    ABOUT | {"row": "sent", "collective": "allgather_base", "units": 1.25},
    ABOUT | {"row": "sent", "collective": "allgather", "units": 0.5},
    ABOUT | {"row": "sent", "collective": "allreduce", "units": 0.0001},
    ABOUT | {"row": "held", "kind": "reduce bucket", "bytes": 129},
    ABOUT | {"row": "held", "kind": "master", "bytes": 50},
    ABOUT | {"row": "total", "units": 1.75, "theory_units": 3, "bf16_units": 1.75}
    | {"per_parameter": 3.29, "theory_per_parameter": 2},
]  # fmt: skip


def document(rows):
    result = Result("libraries", Path("libraries.csv"), pd.DataFrame(rows), {})
    return libraries.documents({"libraries": result}, "smoke")


def test_a_line_sums_an_operation_and_names_what_more_is_held():
    (text,) = document(ROWS).values()
    assert r"Deep\_Speed 3 & -- & \num{1.75} & -- & -- & -- & \num{1.75} & \num{3} & \num{1.75} & " in text
    assert r"\num{3.29} & \num{2} & reduce bucket 1.29 \\" in text


def test_no_table_without_the_experiment_and_the_reason_without_the_library():
    assert libraries.documents({}, "smoke") == {}
    assert document([{"unavailable": "no DeepSpeed_"}])["libraries.tex"].endswith(
        "not testable here: no DeepSpeed\\_\n"
    )
