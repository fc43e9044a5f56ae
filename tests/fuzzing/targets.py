"""The table of all targets, by name."""

from functools import cache

from .file_targets import file_targets
from .target import Target
from .wire_targets import wire_targets


@cache
def targets() -> dict[str, Target]:
    """Every decoder of the package."""
    found = [*wire_targets(), *file_targets()]
    table = {target.name: target for target in found}
    if len(table) != len(found):
        raise RuntimeError("two targets have one name")
    return table
