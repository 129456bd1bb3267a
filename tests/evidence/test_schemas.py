import json
from pathlib import Path

import jsonschema
import pytest

from fivedim.evidence import schemas
from tests.evidence import project

FOLDER = Path(__file__).parents[2] / "configs/schemas"


def test_the_schemas_on_disk_are_current():
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == schemas.documents()


def test_the_schema_accepts_a_claim_and_refuses_a_misspelt_key():
    shape = json.loads((FOLDER / "claims.schema.json").read_text())
    jsonschema.validate([project.claim()], shape)
    with pytest.raises(jsonschema.ValidationError, match="statment"):
        jsonschema.validate([project.claim() | {"statment": "?"}], shape)
