"""The import law of DESIGN.md, read from the sources: who imports whom, names collectives, and is in a fingerprint."""

import ast
from functools import cache
from pathlib import Path

import pytest

from fivedim.lab import config
from fivedim.lab.fingerprint import PACKAGE, article_file, room_files
from fivedim.lab.loc import room_of
from fivedim.lab.spec import full_name

ROOT = Path(__file__).parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
COMMON = {"errors", "__init__"}  # errors is the one name that everybody shares
ANY = None
ROOM = {"mesh", "comm", "precision", "ledger"}
LAW = {
    "__init__": set(),
    "errors": set(),
    "ledger": set(),
    "mesh": set(),
    "comm": {"mesh", "ledger"},
    "lab": {"comm", "mesh", "ledger"},
    "evidence": {"ledger", "lab"},
    "cli": {"lab", "evidence", "train", "articles"},
    "train": ANY,
    "articles": ANY,
    "bench": ANY,
    "parallelize": ANY,
}
NAMES_COLLECTIVES = {"comm", "bench"}  # c10d's own collectives are peers that bench times ours against
NO_ARTICLES = {"train", "bench", "parallelize", "lab", "evidence"}
TORCH_FREE = {"ledger", "evidence", "cli", "errors"}
TORCH_IN_LAB = {
    "meter",
    "rehearsal",
    "fabric",
    "accelerator",
}  # instruments; the rest of lab imports torch in functions only
COLLECTIVES = {
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all", "all_to_all_single",
    "batch_isend_irecv", "broadcast", "gather", "irecv", "isend", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send", "P2POp", "barrier",
    "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
}  # fmt: skip


@cache
def imports(file: Path) -> tuple[tuple[str, int, bool], ...]:
    """Every import in a file: (full module name, line, at the top). `from a import b` names a and a.b."""
    tree = ast.parse(file.read_text())
    top = set(tree.body)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, node in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(file, node)
            found += [(base, node.lineno, node in top)]
            found += [(f"{base}.{alias.name}", node.lineno, node in top) for alias in node.names]
    return tuple(found)


def absolute(file: Path, node: ast.ImportFrom) -> str:
    """The full name that an import names, also a relative one."""
    if not node.level:
        return node.module or ""
    parts = ("fivedim", *file.relative_to(PACKAGE).parent.parts)
    return ".".join(parts[: len(parts) - node.level + 1] + ((node.module,) if node.module else ()))


def ours(file: Path) -> set[str]:
    """The rooms of ours that a file imports, its own left out."""
    names = {name.split(".")[1] for name, *_ in imports(file) if name.startswith("fivedim.")}
    return names - COMMON - {room_of(file)}


def breaches(file: Path) -> set[str]:
    """The rooms that a file imports and may not."""
    room = room_of(file)
    may = LAW.get(room, ROOM)
    wrong = ours(file) - may if may is not ANY else set()
    return wrong | (ours(file) & {"articles"} if room in NO_ARTICLES else set())


def collectives(file: Path) -> set[str]:
    """The collectives of torch.distributed that a file names: dist.X, or imported by name."""
    tree = ast.parse(file.read_text())
    named = {name.rsplit(".", 1)[1] for name, *_ in imports(file) if name.startswith("torch.distributed.")}
    named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and of_distributed(node.value)}
    return named & COLLECTIVES


def of_distributed(value: ast.expr) -> bool:
    """Whether an expression is torch.distributed, under the names that the sources use for it."""
    return ast.unparse(value) in {"dist", "c10d", "torch.distributed", "distributed_c10d"}


def by_name(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("file", FILES, ids=by_name)
def test_rooms_import_only_what_the_law_allows(file: Path):
    assert not breaches(file)


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) not in NAMES_COLLECTIVES], ids=by_name)
def test_only_comm_names_collectives(file: Path):
    assert not collectives(file)


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in TORCH_FREE], ids=by_name)
def test_torch_free_rooms(file: Path):
    assert not [line for name, line, _ in imports(file) if name.split(".")[0] == "torch"]


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) in {"lab", "articles"}], ids=by_name)
def test_launcher_and_articles_import_no_torch_at_the_top(file: Path):
    heavy = {"torch", "numpy", "pandas", "matplotlib", "seaborn"}
    top = {name.split(".")[0] for name, _, at_top in imports(file) if at_top}
    assert file.stem in TORCH_IN_LAB or not top & heavy


def module_file(name: str) -> Path | None:
    """The file of one of our modules; None for a name that is no module (a function, a class)."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    if (path / "__init__.py").is_file():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


def reachable(file: Path) -> set[Path]:
    """Every file of ours that a file imports, directly or through others."""
    seen: set[Path] = set()
    queue = [file]
    while queue:
        found = {module_file(name) for name, *_ in imports(queue.pop()) if name.split(".")[0] == "fivedim"}
        new = {path for path in found if path} - seen
        seen |= new
        queue += new
    return seen


def undeclared(name: str, entry: config.Experiment) -> set[str]:
    """The files that an experiment's result may depend on and that its fingerprint does not cover."""
    covered = {file for room in entry.rooms for file in room_files(room)}
    covered |= {PACKAGE / "lab" / f"{entry.instrument.replace('-', '_')}.py", article_file(full_name(entry.module))}
    used = {path for path in used_by(name, entry) if room_of(path) not in {"lab", *COMMON} or path.stem in TORCH_IN_LAB}
    return {by_name(path) for path in used - covered}


def used_by(name: str, entry: config.Experiment) -> set[Path]:
    """Every file of ours that the experiment's function reaches, by its imports and its helpers' in the module."""
    file = article_file(full_name(entry.module))
    tree = ast.parse(file.read_text())
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    called, queue = set(), [name]
    while queue:
        current = queue.pop()
        called.add(current)
        words = {node.id for node in ast.walk(defined[current]) if isinstance(node, ast.Name)}
        queue += words & defined.keys() - called
    spans = [range(defined[each].lineno, defined[each].end_lineno + 1) for each in called]
    direct = {module for module, line, top in imports(file) if top or any(line in span for span in spans)}
    files = {module_file(module) for module in direct if module.split(".")[0] == "fivedim"} - {None}
    return files | {path for start in files for path in reachable(start)}


def test_declared_rooms_cover_what_every_experiment_imports():
    missing = {name: undeclared(name, entry) for name, entry in config.experiments(ROOT).items()}
    assert not {name: files for name, files in missing.items() if files}


def test_no_experiment_declares_a_room_it_does_not_reach():
    for name, entry in config.experiments(ROOT).items():
        used = used_by(name, entry)
        idle = [room for room in entry.rooms if not set(room_files(room)) & used]
        assert not idle, f"{name} declares {idle} and imports nothing of it"


def test_the_law_can_be_broken(tmp_path: Path, monkeypatch):
    """A bent source must be seen: the checks above can fail."""
    monkeypatch.setattr("tests.test_import_law.PACKAGE", tmp_path)
    monkeypatch.setattr("fivedim.lab.loc.PACKAGE", tmp_path)
    bent = tmp_path / "model" / "gpt.py"
    bent.parent.mkdir()
    bent.write_text(
        "from fivedim import optim\nimport torch.distributed as dist\n\ndef f(x):\n    dist.all_reduce(x)\n"
    )
    assert breaches(bent) == {"optim"}
    assert collectives(bent) == {"all_reduce"}
    bent = tmp_path / "train.py"
    bent.write_text("from .articles import a01_map\nfrom torch.distributed import isend\n")
    assert breaches(bent) == {"articles"}
    assert collectives(bent) == {"isend"}
