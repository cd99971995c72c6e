"""Modules of the trainer that opsctl and foreign trainers use need only the standard library."""

import ast
import sys
from pathlib import Path

from tests.support.cases import read_table

TRAINER = Path(__file__).parents[2] / "trainer"
SHARED = read_table(__file__, "shared")
FOR_TYPES = {f"opsctl.trainer.{name}" for name in ("config", "config_tables", "model_config", "rank_layout")}


def list_imports(tree):
    """Yield the modules that a module imports at run time, without imports for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            from_package = node.module == "opsctl.trainer"
            yield from (f"{node.module}.{alias.name}" if from_package else node.module for alias in node.names)


def test_shared_modules_import_the_standard_library_only():
    for name in SHARED:
        tree = ast.parse((TRAINER / f"{name}.py").read_text())
        others = {module for module in list_imports(tree) if module.partition(".")[0] not in sys.stdlib_module_names}
        assert others <= {f"opsctl.trainer.{shared}" for shared in SHARED}, name
        statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        inside = [node for node in statements if node not in tree.body]
        assert all(isinstance(node, ast.ImportFrom) and node.module in FOR_TYPES for node in inside), name
