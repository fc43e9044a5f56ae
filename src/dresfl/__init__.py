"""dresfl: dropout-resilient, secure federated learning on Lagrange-coded data.

    import dresfl as dr

    digits = dr.load_dataset("digits")
    network = dr.mlp((64, 32, 10), input_bits=4, weight_bits=10)
    run = dr.simulate(network, dr.partition(digits.train, 20), rounds=600)
    run.model.predict(digits.test.inputs)

`dresfl.api.public` lists the names, and `dresfl.estimators` those with scikit-learn's conventions. They are imported
when the first of them is used, so that `import dresfl` is quick.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dresfl.api.public import *  # noqa: F403
    from dresfl.estimators import *  # noqa: F403

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'dresfl' has no attribute {name!r}")
    from dresfl.api import public

    if name in public.__all__:
        return getattr(public, name)
    import dresfl.estimators as estimators

    if name == "__all__":
        return [*public.__all__, *estimators.__all__]
    if name in estimators.__all__:
        return getattr(estimators, name)
    raise AttributeError(f"module 'dresfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    import dresfl.estimators as estimators
    from dresfl.api import public

    return sorted({*globals(), *public.__all__, *estimators.__all__})
