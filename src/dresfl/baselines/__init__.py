"""What DReS-FL is compared with, in reals with ReLU: FedAvg, FedAvg-IS, SCAFFOLD and centralised training."""

from .blocks import BLOCK_ROUNDS, BaselineTraining, Turn
from .relu_network import LOSSES, Loss, client_gradients, mean_gradient, outputs, row_losses
from .rounds import METHODS, Answers, Method, Problem, State, advance, initial_state, next_state, shares, torch_weights
