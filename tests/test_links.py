"""Every link of the documents leads somewhere, and every path that they name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")])
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:tests|src|results|docs|examples|benchmarks)/[\w./-]+)`")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """The anchors that a host makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths(page: Path) -> None:
    text = prose(page.read_text(encoding="utf-8"))
    broken = []
    for target in (one or other for one, other in LINK.findall(text)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    broken += [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    assert not broken
