"""Write the table of error terms in docs/explanation/hidden-mode.md, from the formulas in the package.

python tools/security_table.py
"""

import math
from pathlib import Path

from dresfl.coding import CodeParameters
from dresfl.experiments.config import load_config
from dresfl.masking import hidden_families
from dresfl.model import Network, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.bit_layout import BitLayout
from dresfl.protocol.hidden.plan import HiddenPlan, make_plan
from dresfl.protocol.hidden.range_proof import plan_range_proof
from dresfl.protocol.hidden.security import SecurityTerms, false_ranges, security_terms
from dresfl.protocol.hidden.settings import Check, HiddenSettings, Schedule

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "hidden-mode.md"
BEGIN, END = "<!-- security terms -->\n", "<!-- /security terms -->"
INPUTS = {"digits": (64,), "mnist": (784,), "fashion": (784,), "mnist-conv": (28, 28, 1)}
KAPPA = {"digits": 72, "mnist": 72, "fashion": 72, "mnist-conv": 76}
MOST_ROWS = 3500  # of a client: MNIST's 60,000 over 20 clients, and some more
TERMS = ("openings", "check_a", "guess", "pad_key", "check_c", "answers", "dealers", "ranges", "keys", "hashes")
MOMENTUM = Optimizer(method="momentum", learning_rate=0.02, schedule="cosine")


def preset(name: str) -> HiddenPlan:
    """A preset's network, clients and rounds in the hidden mode."""
    config = load_config(name)
    network = Network(config.model.layers, INPUTS[name], config.model.input_bits, config.model.weight_bits)
    return make_plan(network, config.federation, HiddenSettings(kappa=KAPPA[name]), MOMENTUM, config.rounds)


def consortium(
    num_clients: int, colluders: int, schedule: Schedule, check: Check, *, honest: bool = False
) -> HiddenPlan:
    """A consortium that trains digits' network for 2,000 rounds."""
    network = mlp((64, 32, 32, 10), input_bits=4, weight_bits=10)
    parameters = CodeParameters(num_clients=num_clients, max_colluders=colluders)
    settings = HiddenSettings(schedule=schedule, check=check, honest_clients=honest)
    return make_plan(network, parameters, settings, MOMENTUM, 2000)


def plans() -> dict[str, HiddenPlan]:
    """What the table is about, by the name of its line."""
    return {
        **{f"preset `{name}`": preset(name) for name in INPUTS},
        "3 clients, honest, S2": consortium(3, 1, "S2", "A", honest=True),
        "5 clients, S2": consortium(5, 1, "S2", "A"),
        "9 clients, S4, check C": consortium(9, 1, "S4", "C"),
        "9 clients, T = 2, S2": consortium(9, 2, "S2", "A"),
    }


def terms_of(plan: HiddenPlan) -> SecurityTerms:
    """The error terms of a plan."""
    sizes = plan.parameters.num_clients, plan.parameters.num_shards, plan.parameters.max_colluders
    families = hidden_families(plan.moduli, *sizes, plan.mask_degree, plan.degree)
    ranges = math.inf if plan.settings.honest_clients else _ranges(plan)
    return security_terms(plan, num_seeds=len(families.seed_sets.sets), ranges=ranges)


def _ranges(plan: HiddenPlan) -> float:
    """The bits of the proof that rows lie in [0, 1]."""
    parameters, num_clients = plan.parameters, plan.parameters.num_clients
    spare = num_clients - parameters.num_shards - plan.mask_degree
    deviating = min(max(parameters.max_liars, parameters.max_colluders), spare // 2)
    layout = BitLayout.of(plan.network, 0.0, 1.0)
    sizes = {"num_clients": num_clients, "max_deviating": deviating, "num_masks": plan.num_masks}
    proof = plan_range_proof(plan.moduli, layout, **sizes, most_rows=MOST_ROWS, kappa=plan.kappa)
    planned = proof.num_squares, proof.num_sums, proof.factor_bits
    return false_ranges(plan.moduli[0], num_clients, deviating, *planned)


def _cell(bits: float) -> str:
    return "–" if math.isinf(bits) else f"{math.floor(10 * bits) / 10:.1f}"


def table() -> str:
    """The table of all terms, in bits."""
    names = [name.replace("_", " ").replace(" a", " A").replace(" c", " C") for name in TERMS]
    head = ["bits, over the whole run", "N, T, R", "rounds", *names, "**H1**", "**H2**", "**H3**"]
    lines = [head, ["---"] * len(head)]
    for name, plan in plans().items():
        terms, parameters = terms_of(plan), plan.parameters
        size = f"{parameters.num_clients}, {parameters.max_colluders}, {plan.recovery_threshold}"
        promised = [terms.curious, terms.one_side, math.inf if math.isinf(terms.check_c) else terms.both_sides]
        found = [_cell(getattr(terms, term)) for term in TERMS] + [f"**{_cell(bits)}**" for bits in promised]
        lines.append([name, size, f"{plan.rounds:,}", *found])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def page(text: str) -> str:
    """The page with its table made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
