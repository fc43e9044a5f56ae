"""docs/explanation/scaling.md: its tables are made from the records."""

import importlib.util
from pathlib import Path


def test_the_tables_are_those_of_the_records() -> None:
    path = Path(__file__).parents[1] / "tools" / "scaling_tables.py"
    spec = importlib.util.spec_from_file_location("scaling_tables", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.rendered(page) == page
