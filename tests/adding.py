"""How tests add a layer, an optimiser or a data set: by one file, as a contributor would."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def added_file(package: ModuleType, folder: Path, name: str, text: str) -> Iterator[ModuleType]:
    """One more file in a package, for the length of a test: it lies in `folder`, which the package's path gets."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    before = list(package.__path__)
    package.__path__ = [*before, str(folder)]
    try:
        yield package
    finally:
        package.__path__ = before
        sys.modules.pop(f"{package.__name__}.{name}", None)
        vars(package).pop(name, None)
