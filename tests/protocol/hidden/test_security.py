"""The error terms of the hidden mode: the formulas, counted out where numbers are small, and the presets' figures."""

import dataclasses
import importlib.util
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

from dresfl.coding import CodeParameters
from dresfl.masking import hidden_families
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden import security
from dresfl.protocol.hidden.check import KEY_WORDS
from dresfl.protocol.hidden.plan import HiddenPlan, make_plan
from dresfl.protocol.hidden.security import LEAST, security_terms, together
from dresfl.protocol.hidden.settings import HiddenSettings

ROOT = Path(__file__).parents[3]
MOMENTUM = Optimizer(method="momentum", learning_rate=0.02, schedule="cosine")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("security_table", ROOT / "tools" / "security_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_preset_falls_below_40_bits(tool: ModuleType) -> None:
    for name, plan in tool.plans().items():
        terms = tool.terms_of(plan)
        weakest, bits = terms.weakest
        assert bits >= LEAST, (name, weakest)
        assert min(terms.curious, terms.one_side, terms.both_sides) >= LEAST, name


def test_the_page_shows_these_figures(tool: ModuleType) -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.page(text) == text, "run tools/security_table.py"


# -- the masks, counted out -----------------------------------------------------------------------------------------

View = tuple[int, int]  # u, and the value that clients go on with


def real_views(z: int, shift: int, mask_bits: int) -> Mapping[View, Fraction]:
    """u = z + 2^t·h + l, and ⌊(z + l)/2^t⌋, over all masks of one seed that the attacker does not hold."""
    found: Counter[View] = Counter()
    for high in range(2**mask_bits):
        for low in range(2**shift):
            found[z + 2**shift * high + low, (z + low) >> shift] += 1
    return {view: Fraction(count, 2 ** (mask_bits + shift)) for view, count in found.items()}


def simulated_views(z: int, shift: int, mask_bits: int) -> Mapping[View, Fraction]:
    """The same from a public coin: u = 2^t·h + c, and the value that the ideal run rounds z to with that coin."""
    found: Counter[View] = Counter()
    for high in range(2**mask_bits):
        for coin in range(2**shift):
            low = (coin - z) % 2**shift
            found[2**shift * high + coin, (z + low) >> shift] += 1
    return {view: Fraction(count, 2 ** (mask_bits + shift)) for view, count in found.items()}


def distance(one: Mapping[View, Fraction], other: Mapping[View, Fraction]) -> Fraction:
    views = one.keys() | other.keys()
    return sum((abs(one.get(view, Fraction(0)) - other.get(view, Fraction(0))) for view in views), Fraction(0)) / 2


@pytest.mark.parametrize(("bits", "shift", "kappa"), [(3, 2, 4), (4, 1, 3), (2, 2, 5), (3, 3, 3)])
def test_a_masked_value_is_within_the_distance_of_its_coin(bits: int, shift: int, kappa: int) -> None:
    found = []
    for z in range(1 - 2**bits, 2**bits):
        mask_bits = bits + kappa - shift
        found.append(distance(real_views(z, shift, mask_bits), simulated_views(z, shift, mask_bits)))
    assert max(found) <= Fraction(1, 2**kappa)
    assert max(found) > Fraction(1, 2 ** (kappa + 1))  # the bound is not idle


def test_a_value_that_outgrows_its_plan_costs_as_many_bits() -> None:
    shift, mask_bits, kappa = 2, 5, 4  # planned with 3 bits
    distances = [distance(real_views(z, shift, mask_bits), simulated_views(z, shift, mask_bits)) for z in (8, 16, 32)]
    assert distances == [Fraction(2, 2**mask_bits), Fraction(4, 2**mask_bits), Fraction(8, 2**mask_bits)]
    assert distances[0] == Fraction(1, 2**kappa)


def test_a_coin_says_nothing_about_its_value() -> None:
    for z in range(-9, 10):
        assert Counter((z + low) % 8 for low in range(8)) == Counter(range(8))


# -- formulas -------------------------------------------------------------------------------------------------------


def test_bounds_add_up() -> None:
    assert together(50.0) == 50.0
    assert together(41.0, math.inf) == 41.0
    assert together(42.0, 42.0, 41.0) == 40.0


def test_check_values_are_zero_as_rarely_as_the_formula_says() -> None:
    p, false = 7, (0, 3, 5)  # differences at one β of three values
    zero = sum(
        (false[0] * a + false[1] * b + false[2] * c) % p == 0 for a in range(p) for b in range(p) for c in range(p)
    )
    assert security.false_hop(p, 1, 0.0) == pytest.approx(-math.log2(zero / p**3))
    assert security.false_hop(p, 3, math.log2(10)) == pytest.approx(3 * math.log2(p) - math.log2(10))


def test_ranges_are_missed_by_squares_or_by_sums() -> None:
    modulus = 2**24 - 3
    both = security.false_ranges(modulus, 20, 1, squares=4, sums=4, factor_bits=20)
    assert both == pytest.approx(80 - 1 - 2 * math.log2(20) - 20, abs=0.01)
    assert security.false_ranges(modulus, 20, 1, squares=4, sums=1, factor_bits=20) < 0  # a bound that is none
    assert security.false_ranges(modulus, 100, 1, squares=9, sums=9, factor_bits=20) > LEAST


def plan_of(**changes: object) -> HiddenPlan:
    settings = dataclasses.replace(HiddenSettings(schedule="S4"), **changes)  # type: ignore[arg-type]
    return make_plan(
        mlp((8, 4, 4, 3), input_bits=4, weight_bits=10), CodeParameters(num_clients=9), settings, MOMENTUM, 50
    )


def seeds_of(plan: HiddenPlan) -> int:
    families = hidden_families(plan.moduli, plan.parameters.num_clients, 1, 1, plan.mask_degree, plan.degree)
    return len(families.seed_sets.sets)


def test_terms_follow_the_plan() -> None:
    plan = plan_of()
    terms = security_terms(plan, num_seeds=seeds_of(plan))
    assert terms.openings == plan.security_bits
    assert terms.pad_key == pytest.approx(KEY_WORDS * math.log2(min(plan.moduli)) - 64)
    assert math.isinf(terms.check_c)
    assert terms.curious <= terms.openings
    assert terms.one_side <= min(terms.curious, terms.check_a, terms.answers, terms.dealers)
    weaker = security_terms(plan, num_seeds=seeds_of(plan), ranges=30.0)
    assert weaker.weakest == ("ranges", 30.0)
    assert weaker.one_side < 30.0 <= weaker.curious


def test_more_is_lost_where_more_is_opened() -> None:
    few, many = plan_of(kappa=80), dataclasses.replace(plan_of(kappa=80), rounds=5000)
    terms = [security_terms(plan, num_seeds=30) for plan in (few, many)]
    assert terms[0].openings - terms[1].openings == pytest.approx(math.log2(100), abs=0.1)
    assert terms[0].keys > terms[1].keys
    assert terms[1].check_a >= 44  # check values are repeated more often where there are more hops


def test_what_an_agreement_takes_on_trust_is_no_term() -> None:
    plan = plan_of(honest_clients=True)
    terms = security_terms(plan, num_seeds=seeds_of(plan))
    assert math.isinf(terms.answers)
    assert math.isinf(terms.dealers)
    plan = plan_of(check="C")
    assert not math.isinf(security_terms(plan, num_seeds=seeds_of(plan)).check_c)


def test_every_round_begins_with_a_masked_value() -> None:
    for schedule in ("S2", "S4"):
        plan = plan_of(schedule=schedule)
        for number in range(plan.rounds):
            assert any(item.shift is not None for item in plan.hops(number)[0].items)
