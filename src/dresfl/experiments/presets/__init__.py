"""The presets that come with the package. This module is cheap to import: `dresfl --help` lists their names."""

from importlib import resources
from importlib.resources.abc import Traversable


def preset_names() -> list[str]:
    """The names of all presets.

    >>> "digits" in preset_names()
    True
    """
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """A preset's TOML."""
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def _folder() -> Traversable:
    return resources.files(__package__)
