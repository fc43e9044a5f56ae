"""Count lines of Python, docstrings and blank lines not counted. Comments count.

python tools/count_lines.py src                       # by package, and the total
python tools/count_lines.py src --without dresfl/api  # leave out what is new
python tools/count_lines.py src --longest 450         # files above so many lines, all lines counted
"""

import argparse
import ast
import sys
from collections import Counter
from pathlib import Path


def docstring_lines(tree: ast.AST) -> set[int]:
    """The numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def count(path: Path) -> int:
    """Lines of a file that are neither blank nor part of a docstring."""
    text = path.read_text(encoding="utf-8")
    skipped = docstring_lines(ast.parse(text))
    return sum(bool(line.strip()) and number not in skipped for number, line in enumerate(text.splitlines(), 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without", nargs="*", default=[], help="paths below the folder to leave out")
    parser.add_argument("--longest", type=int, default=0, help="list files with more lines than this, and fail")
    arguments = parser.parse_args()
    files = sorted(arguments.folder.rglob("*.py"))
    if arguments.longest:
        long = [(len(path.read_text(encoding="utf-8").splitlines()), path) for path in files]
        too_long = [(lines, path) for lines, path in sorted(long, reverse=True) if lines > arguments.longest]
        for lines, path in too_long:
            print(f"{lines:6}  {path}")
        return 1 if too_long else 0
    counted: Counter[str] = Counter()
    for path in files:
        relative = path.relative_to(arguments.folder)
        if not any(relative.is_relative_to(left_out) for left_out in arguments.without):
            counted["/".join(relative.parts[:2])] += count(path)
    for package, lines in sorted(counted.items()):
        print(f"{lines:6}  {package}")
    print(f"{sum(counted.values()):6}  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
