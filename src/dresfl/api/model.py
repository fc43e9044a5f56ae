"""A trained model: predict with it, save it, load it, take it to torch."""

from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dresfl.field import Reals
from dresfl.model import Network, weights_sha256
from dresfl.quantize import Quantizer
from dresfl.storage.model_file import StoredModel, read_model, write_model

from .rows import Array, to_inputs

_VALUES_AT_A_TIME = 2**21  # of the widest layer, in float64


@final
class Model:
    """A network with its trained weights. `simulate` makes it, and so does `load_model`.

    Inputs are rounded as the clients' were, so a model predicts what was evaluated in training.

    >>> import dresfl as dr
    >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
    >>> client = ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 1])
    >>> model = dr.simulate(network, [client] * 3, rounds=20, batch_size=4).model
    >>> model.predict([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).tolist() == [0, 1]
    True
    """

    def __init__(self, stored: StoredModel) -> None:
        self._stored = stored

    def __repr__(self) -> str:
        return f"Model({self.network.input_shape} -> {self.network.num_classes}, weights {self.weights_sha256[:8]})"

    @property
    def network(self) -> Network:
        """The layers, and what follows from them."""
        return self._stored.network

    @property
    def weights(self) -> npt.NDArray[np.int64]:
        """The integer weights (P,), a copy. `to_torch` has the real ones, layer by layer."""
        return self._stored.weights.cpu().numpy().copy()

    @property
    def weights_sha256(self) -> str:
        """The fingerprint by which runs are compared: SHA-256 of the integer weights as little-endian int64."""
        return weights_sha256(self._stored.weights)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty if none were given."""
        return self._stored.classes

    def predict(self, inputs: Array) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
        """The class of each row (m,): the place of its largest output, or 1 where a single output is positive.

        Of a regression: the outputs themselves, (m,) if there is one target and else (m,C).
        """
        outputs = self.decision_function(inputs)
        if self.network.task == "regression":
            return outputs[:, 0] if outputs.shape[1] == 1 else outputs
        classes: npt.NDArray[np.int64] = self.network.labels(torch.from_numpy(outputs)).numpy()
        return classes

    def decision_function(self, inputs: Array) -> npt.NDArray[np.float64]:
        """The network's outputs (m,C) for inputs (m, ...), one value for each class or target."""
        rows = torch.from_numpy(to_inputs(inputs, self.network, "predict"))
        module = self.to_torch()
        widest = max(p.layer.positions(p.place.in_shape) * sum(p.fan) for p in self.network.parameters)
        with torch.no_grad():
            parts = [module(part) for part in torch.split(rows, max(1, _VALUES_AT_A_TIME // widest))]
        outputs: npt.NDArray[np.float64] = torch.cat(parts).numpy()
        return outputs

    def save(self, path: str | Path) -> None:
        """Write the model as one safetensors file, with all that a prediction needs."""
        write_model(Path(path), self._stored)

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        """The model of a file that `save`, `dresfl train`, a coordinator or a client wrote."""
        return cls(read_model(Path(path)))

    def to_torch(self) -> "TorchModel":
        """A `torch.nn.Module` with the same outputs: float64, its parameters named as in the model file.

        >>> import dresfl as dr
        >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
        >>> model = dr.simulate(network, [([[1.0, 0.0, 0.5]], [1])] * 3, rounds=2).model
        >>> module = model.to_torch()
        >>> bool((module(torch.ones(1, 3)).detach().numpy() == model.decision_function([[1.0, 1.0, 1.0]])).all())
        True
        """
        return TorchModel(self._stored)


def load_model(path: str | Path) -> Model:
    """The model of a file.

    >>> import dresfl as dr, tempfile
    >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
    >>> model = dr.simulate(network, [([[1.0, 0.0, 0.5]], [1])] * 3, rounds=2).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder + "/model.safetensors")
    ...     load_model(folder + "/model.safetensors").weights_sha256 == model.weights_sha256
    True
    """
    return Model.load(path)


@final
class TorchModel(nn.Module):
    """The network in torch: inputs (m, ...) are rounded as the clients' were, then taken through the real weights.

    >>> import dresfl as dr
    >>> network = dr.mlp((3, 2), input_bits=4, weight_bits=10)
    >>> module = dr.simulate(network, [([[1.0, 0.0, 0.5]], [1])] * 3, rounds=2).model.to_torch()
    >>> [name for name, _ in module.named_parameters()] == ["layers.0.weight", "layers.0.bias"]
    True
    """

    def __init__(self, stored: StoredModel) -> None:
        super().__init__()
        self._network, self._quantizer = stored.network, Quantizer(stored.network.input_bits, stored.shift)
        self.layers = nn.ModuleDict()
        for name, tensor in stored.network.tensors(stored.weights).items():
            _, place, part = name.split(".")
            if place not in self.layers:
                self.layers[place] = nn.Module()
            self.layers[place].register_parameter(part, nn.Parameter(tensor))

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (m,C), float64."""
        network, field = self._network, Reals()
        rows = self._quantizer.integers(inputs.flatten(1)).to(torch.float64)
        weights = torch.cat([parameter.flatten() for parameter in self.parameters()])
        scaled = weights * network.weight_scales_on(str(weights.device))
        outputs: Tensor = network.outputs(field, scaled, rows.view(1, 1, *rows.shape))[0, 0]
        return outputs * 2.0**-network.out_scale
