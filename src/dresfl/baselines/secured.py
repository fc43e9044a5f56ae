"""FedAvg with LightSecAgg: the coordinator gets the sum of the clients' gradients, and no gradient of one client.

Notation: g_i client i's mini-batch gradient, m_i its rows (public), m̄ the mean of all row counts, S who answered.
Client i sends Q(2^bits·(m_i/m̄)·g_i) under its mask. The coordinator divides the sum by 2^bits·Σ_S m_i/m̄, so that it
steps along Σ_S m_i·g_i / Σ_S m_i up to rounding: FedAvg's direction.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import final

import torch

from dresfl.errors import UsageError

from .lightsecagg import MaskingClient, SecureSum, secure_sum
from .relu_network import client_gradients
from .rounds import Answers, Problem, State


@final
class SecuredFedAvg:
    """FedAvg whose sums LightSecAgg makes: all clients and the coordinator in one process."""

    def __init__(self, problem: Problem, state: State, plan: SecureSum, client_rows: Sequence[int], seed: int) -> None:
        """client_rows: m_i of all N clients. seed: of the clients' rounding; masks come from the operating system."""
        if problem.method != "fedavg":
            raise UsageError(f"LightSecAgg sums what FedAvg averages, not {problem.method}")
        if plan.num_values != state.weights.numel() or len(client_rows) != plan.num_clients:
            raise UsageError(
                f"a sum of {plan.num_values} values of {plan.num_clients} clients does not fit "
                f"{state.weights.numel()} weights and {len(client_rows)} row counts"
            )
        self.problem, self.state, self.plan = problem, state, plan
        mean = statistics.fmean(client_rows)
        self._importance = [rows / mean for rows in client_rows]
        self._clients = [MaskingClient(plan, i) for i in range(plan.num_clients)]
        self._generator = torch.Generator().manual_seed(seed)
        self._rounds = 0

    def play(self, rate: float, answers: Answers) -> State:
        """One round at a learning rate. TooFewAnswers if fewer than R clients answer: the state stays as it was.

        HeadroomAlarm if a client's weighted gradient exceeds the plan's limit.
        """
        problem, state, network = self.problem, self.state, self.problem.network
        found = client_gradients(network, problem.loss, state.weights, answers.inputs, answers.targets)  # (S,P)
        who = answers.clients.tolist()
        vectors = {}
        for client, gradient in zip(who, found, strict=True):
            noise = torch.rand(gradient.numel(), generator=self._generator, dtype=torch.float64)
            vectors[client] = self.plan.integers(gradient * self._importance[client], noise)
        self._rounds += 1
        total = secure_sum(self._clients, self._rounds, vectors)
        direction = self.plan.reals(total) / sum(self._importance[client] for client in who)
        factors = problem.optimizer.factors(rate, state.steps + 1)
        update, moments = problem.optimizer.update(state.moments, factors, direction, state.weights)
        self.state = dataclasses.replace(state, weights=state.weights - update, moments=moments, steps=state.steps + 1)
        return self.state
