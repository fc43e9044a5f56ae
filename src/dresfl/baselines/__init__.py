"""What DReS-FL is compared with: FedAvg, FedAvg-IS, SCAFFOLD, centralised training, and FedAvg with LightSecAgg."""

from .blocks import BLOCK_ROUNDS, BaselineTraining, Turn
from .lightsecagg import COORDINATOR, MaskingClient, Message, Request, SecureSum, SumRound, secure_sum
from .relu_network import LOSSES, Loss, client_gradients, mean_gradient, outputs, row_losses
from .rounds import METHODS, Answers, Method, Problem, State, advance, initial_state, next_state, shares, torch_weights
from .secured import SecuredFedAvg
