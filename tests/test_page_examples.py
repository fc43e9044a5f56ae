"""The Python examples of the pages run as they stand, from the first block of a page to its last."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/use-the-library.md",
        "docs/how-to/use-with-scikit-learn.md",
        "docs/how-to/regression-and-two-classes.md",
    ],
)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {})  # noqa: S102 - the page is ours
