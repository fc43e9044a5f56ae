"""Write README's tables of accuracies from the records: `python tools/readme_table.py`.

The blocks are between <!-- table1 --> and <!-- /table1 --> (the paper's methods), and between <!-- like --> and
<!-- /like --> (methods that ran like for like).
"""

from pathlib import Path

from dresfl.experiments import reproduce

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCKS = ("table1", "like")


def filled(text: str, found: reproduce.Table) -> str:
    """The text with its blocks as the records have them."""
    for block in BLOCKS:
        before, opening, rest = text.partition(f"<!-- {block} -->\n")
        _, closing, after = rest.partition(f"<!-- /{block} -->")
        content = reproduce.brief(found, block)
        if content and not (opening and closing):
            raise SystemExit(
                f"README.md has no place for the records {block!r}: add <!-- {block} --> and <!-- /{block} -->"
            )
        if opening:
            text = f"{before}{opening}{content}\n{closing}{after}"
    return text


if __name__ == "__main__":
    table = reproduce.table(reproduce.read_records(ROOT / "results"))
    README.write_text(filled(README.read_text(encoding="utf-8"), table), encoding="utf-8")
