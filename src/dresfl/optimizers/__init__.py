"""What the coordinator does with a gradient. Each file named after a method of optimisation holds that method.

To add a method, add a file with a class that derives from `Method`. Nothing else needs to change: `methods` finds it,
and `Optimizer(method=...)`, TOML, checkpoints and the rounds on a GPU take what it declares.
"""

from .optimizer import Method, Optimizer, State, methods, squared_norm, squared_norm_of
