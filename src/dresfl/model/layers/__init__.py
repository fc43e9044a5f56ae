"""The layers of a polynomial network. Each file of this folder that is named after a layer holds that layer.

To add a layer, add a file with a frozen dataclass that derives from `Activation`, `Reshaping`, `Fixed` or `Affine` and
has a `kind` of its own. Nothing else needs to change: `layer_kinds` finds it.
"""

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Mapping

from dresfl.errors import UsageError

from .conv2d import Conv2d
from .dense import Dense
from .flatten import Flatten
from .layer import Activation, Affine, Fixed, Layer, Place, Reshaping, Shape
from .quadratic import Quadratic
from .square import Square
from .sumpool import SumPool


def layer_kinds() -> dict[str, type[Layer]]:
    """Every layer by its kind: those that the files of this folder define.

    >>> layer_kinds()["dense"] is Dense
    True
    """
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {
        thing.kind: thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Layer) and "kind" in vars(thing)
    }


def layer_from_dict(values: Mapping[str, object]) -> Layer:
    """The layer that `Layer.to_dict` described. UsageError names what is unknown, missing or of another type.

    >>> layer_from_dict(Dense(10).to_dict()) == Dense(10)
    True
    """
    kinds, kind = layer_kinds(), values.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise UsageError(f"{kind!r} is no kind of layer", "known: " + ", ".join(sorted(kinds)))
    layer, given = kinds[kind], {name: value for name, value in values.items() if name != "kind"}
    hints, fields = typing.get_type_hints(layer), dataclasses.fields(layer)  # type: ignore[arg-type]
    unknown = given.keys() - {field.name for field in fields}
    missing = {f.name for f in fields if f.default is dataclasses.MISSING} - given.keys()
    if unknown or missing:
        raise UsageError(f"{kind}: keys unknown {sorted(unknown)}, keys missing {sorted(missing)}")
    for name, value in given.items():
        types = typing.get_args(hints[name]) or (hints[name],)
        if float in types and type(value) is int:
            given[name] = float(value)
        elif type(value) not in types:
            raise UsageError(f"{kind}: {name} = {value!r} is not of type {hints[name]}")
    return layer(**given)
