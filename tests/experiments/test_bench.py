"""`dresfl bench`: a tiny run has every key; fits, pages and errors. No timing is asserted: machines differ."""

import copy
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dresfl.cli import main
from dresfl.coding import CodeParameters
from dresfl.errors import UsageError
from dresfl.experiments import bench
from dresfl.experiments.bench import liars, peers, products, scale, stages, timing
from dresfl.experiments.bench.growth import STAGES, Sweep
from dresfl.experiments.bench.run import machine
from dresfl.experiments.bench.stages import Setting
from dresfl.kernels.threads import torch_threads

SMALL = Setting(layers=(6, 4, 3), code=CodeParameters(num_clients=6, batch_size=4), rows_per_client=3)
NINE = replace(SMALL, code=CodeParameters(num_clients=9, batch_size=4))
TINY = bench.Settings(
    setting=SMALL,
    shapes=((4, 9, 5),),
    seconds=0.0,
    sweep_seconds=0.0,
    sweeps=(
        Sweep("clients", (5, 6), SMALL),
        Sweep("shards", (1, 2), NINE),
        Sweep("colluders", (1, 2), NINE),
        Sweep("shards and colluders", (1, 2), replace(SMALL, code=CodeParameters(num_clients=13, batch_size=4))),
        Sweep("width", (2, 4), SMALL),
        Sweep("batch", (2, 4), SMALL),
    ),
)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """One run of everything at sizes that take no time."""
    before = torch.get_num_threads()
    found = bench.measure(TINY)
    assert torch.get_num_threads() == before
    return found


def test_the_check_for_liars_is_measured(tmp_path: Path) -> None:
    session = replace(SMALL, code=CodeParameters(num_clients=7, batch_size=4, max_liars=1)).session("cpu")
    for packed in (True, False):
        found = liars.measure_answers(session, packed, seconds=0.0)
        assert all(positive(value) for values in found.values() for value in values.values())
        assert {"share_of_decode", "sums_of_an_answer"} <= found.keys()
    dealers = liars.measure_dealers(SMALL.session("cpu"), tmp_path)
    assert positive(dealers["seconds"])


def positive(number: Any) -> bool:
    return isinstance(number, float) and math.isfinite(number) and number > 0


def test_a_run_has_every_key(results: dict[str, Any]) -> None:
    gemm = results["gemm"]["4x9x5"]
    assert gemm["threads"] == results["threads"] == 1
    assert all(positive(gemm[key]) for key in ("seconds", "limit_seconds", "ratio_to_limit", "bits"))
    assert positive(gemm["unsplit"]["ratio_to_limit"])
    assert set(gemm["peers"]) | set(results["not_installed"]) == {peer.name for peer in peers.PEERS}
    assert all(positive(peer["seconds"]) and positive(peer["speedup"]) for peer in gemm["peers"].values())
    assert all(positive(results["gradient"][k]) for k in ("seconds", "ratio_to_limit", "ratio_to_torch_fp32"))
    assert all(positive(results["round"][k]) for k in ("seconds", "ratio_to_limit"))
    assert set(results["stages"]) == {"encode", "decode", "lift", "decode_and_lift", "masks"}
    assert all(positive(s["gb_per_s"]) and positive(s["ratio_to_copy"]) for s in results["stages"].values())
    sizes = {"clients", "shards", "colluders", "shards and colluders", "width", "batch"}
    assert set(results["growth"]) == sizes
    for fitted in results["growth"].values():
        assert all(math.isfinite(fitted[stage]) for stage in STAGES)
        assert all(positive(s) for points in fitted["points"].values() for s in points.values())
    assert set(results["machine"]) == {"cpu", "cores", "gpu", "system"}
    assert {"dresfl", "python", "torch", "numpy"} <= set(results["versions"])
    assert results["device"] == "cpu"
    assert results["quick"] is False
    assert results["date"].endswith("+00:00")
    assert json.loads(json.dumps(results)) == results


def test_memory_is_measured_or_unknown(results: dict[str, Any]) -> None:
    memory = results["memory"]
    network = SMALL.session("cpu").network
    session = SMALL.session("cpu")
    assert memory["uploads"] == session.recovery_threshold * len(session.field.moduli) * network.num_parameters * 8
    for key in ("client_gradient", "server_decode"):
        assert memory[key] is None or memory[key] >= 0
    if memory["server_decode"] is not None:
        assert memory["server_decode_over_uploads"] == pytest.approx(memory["server_decode"] / memory["uploads"], 1e-4)


def test_the_machine_is_described_but_not_named() -> None:
    import socket

    assert socket.gethostname() not in json.dumps(machine())


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.7, -0.5])
def test_growth_is_fitted_as_a_slope(exponent: float) -> None:
    points = {str(size): 3e-4 * size**exponent for size in (10, 20, 50, 200)}
    assert timing.growth_exponent(points) == pytest.approx(exponent)


def test_calls_are_timed_in_turns() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    found = timing.interleaved(calls, 0.0, least=4, turn=0.0, cold=("a", "b"))
    assert order == list("abababab")
    assert {name: t.runs for name, t in found.items()} == {"a": 4, "b": 4}
    assert all(0 <= t.best <= t.median for t in found.values())
    assert timing.Timing(6.0, 3.0, 5).per(3) == timing.Timing(2.0, 1.0, 5)


def test_cold_calls_are_not_run_before() -> None:
    runs = {"warm": 0, "cold": 0}

    def call(name: str) -> Callable[[], None]:
        def run() -> None:
            runs[name] += 1

        return run

    timing.interleaved({name: call(name) for name in runs}, 0.0, least=1, turn=0.0, cold=("cold",))
    assert runs == {"warm": 3, "cold": 1}


def test_bare_products_are_those_of_the_network() -> None:
    """Two layers: two products each, and one back through the second; encode and decode make the round."""
    session = SMALL.session("cpu")
    shapes: list[tuple[int, ...]] = []
    real = torch.matmul

    def spy(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        shapes.append((left.shape[-2], left.shape[-1], right.shape[-1]))
        return real(left, right)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "matmul", spy)
        stages.bare_round(session)["torch"]()
    needed, columns = session.recovery_threshold, 4 * session.row_width
    layers = [(4, 6, 4), (6, 4, 4), (4, 4, 3), (4, 4, 3), (4, 3, 4)]
    assert shapes == [(needed, 2, columns), *layers, (1, needed, session.network.num_parameters)]


def test_rounds_step(results: dict[str, Any]) -> None:
    local = stages.federation(SMALL.session("cpu"))
    assert [record.outcome for record, _ in local.run_rounds(1)] == ["stepped"]


def test_a_wrong_product_is_no_result() -> None:
    field, left, right = products._operands((4, 9, 5), 2**24, "cpu")
    product = field.matmul(left, right)
    products.check_product(left, right, product, field.moduli)
    product[3, 2, 1] += 1
    with pytest.raises(Exception, match="wrong"):
        products.check_product(left, right, product, field.moduli)


@pytest.mark.parametrize("peer", [p for p in peers.PEERS if p.installed], ids=lambda p: p.name)
def test_peers_multiply_modulo_the_prime(peer: peers.Peer) -> None:
    found = peer.prepare((2, 3, 2), 1)()
    wanted = peers._objects(2, 3, 1) @ peers._objects(3, 2, 2) % peers.PRIME
    assert [[int(found[i, j]) for j in range(2)] for i in range(2)] == wanted.tolist()  # type: ignore[index]


def test_the_int8_product_is_measured_in_tops() -> None:
    """On the CPU here, where both products exist too, only slow."""
    found, _ = products.byte_product((32, 64, 32), channels=30, device="cpu", seconds=0.0)
    assert found["channels"] == 30
    assert 200 < found["bits"] < 240
    assert found["tops"] == pytest.approx(2e-12 * 30 * 32 * 64 * 32 / found["seconds"])
    assert positive(found["limit_tops"])
    assert positive(found["ratio_to_limit"])


def test_a_peer_that_is_not_installed_is_listed_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = peers.Peer("nowhere", "no_such_module_anywhere", peers._numpy, slow=False)
    assert not absent.installed
    monkeypatch.setattr(products, "PEERS", (absent,))
    found = products.product_200_bits((4, 9, 5), device="cpu", threads=1, seconds=0.0, slow_products=0)
    assert found["peers"] == {}
    assert found["speedup_vs_flint"] is None


def test_slow_peers_are_left_out_of_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PEERS", [p for p in peers.PEERS if p.name == "NumPy object"])
    found = products.product_200_bits((4, 9, 5), device="cpu", threads=1, seconds=0.0, slow_products=4 * 9 * 5 - 1)
    assert found["left_out"] == ["NumPy object"]


# -- pages and pictures --------------------------------------------------------------------------------------------


def test_a_page_renders_from_a_stored_dictionary(results: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(results))
    text = bench.page(stored)
    for part in (stored["machine"]["cpu"], stored["date"], f"torch {stored['versions']['torch']}", "4x9x5", "Growth"):
        assert part in text
    for table in bench.tables(stored):
        assert f"## {table.title}" in text
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_page_of_a_gpu_names_it_and_shows_int8(results: dict[str, Any]) -> None:
    stored = copy.deepcopy(results)
    stored["device"], stored["machine"]["gpu"] = "cuda", "A GPU"
    stored["int8"]["8x8x8"] = {
        "channels": 30,
        "bits": 220.0,
        "seconds": 1e-3,
        "limit_seconds": 2e-3,
        "ratio_to_limit": 0.5,
        "tops": 1234.0,
        "limit_tops": 617.0,
    }
    stored["memory"]["server_decode"] = stored["memory"]["server_decode_over_uploads"] = None
    text = bench.page(stored)
    assert "A GPU" in text
    assert "1234" in text
    assert "unknown" in text


@pytest.mark.parametrize("name", ["bench.png", "bench.svg"])
def test_a_picture_is_drawn(results: dict[str, Any], tmp_path: Path, name: str) -> None:
    bench.plot(results, tmp_path / name)
    assert (tmp_path / name).stat().st_size > 10_000


def test_other_pictures_are_refused(results: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"bench\.txt"):
        bench.plot(results, tmp_path / "bench.txt")


# -- the command ---------------------------------------------------------------------------------------------------


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dresfl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["dresfl", "bench", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out, output.err

    return run


def test_the_command_measures_and_writes(
    dresfl: Run, results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def measure(settings: bench.Settings, *, note: Callable[[str], None], **options: Any) -> dict[str, Any]:
        asked.update(options, settings=settings)
        note("measuring")
        return results

    monkeypatch.setattr(bench, "measure", measure)
    code, out, err = dresfl("--quick", "--threads", "2", "--json", "b.json", "--page", "b.md", "--plot", "b.png")
    assert (code, asked) == (0, {"settings": bench.QUICK, "device": "cpu", "threads": 2})
    assert "Exact product" in out
    assert "measuring" in err
    assert json.loads((tmp_path / "b.json").read_text()) == results
    assert (tmp_path / "b.png").exists()
    assert (tmp_path / "b.md").read_text(encoding="utf-8") == bench.page(results)
    code, out, _ = dresfl("--json", "-")
    assert (code, json.loads(out), asked["settings"]) == (0, results, bench.FULL)


def test_stored_results_render_without_measuring(
    dresfl: Run, results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", None)
    (tmp_path / "stored.json").write_text(json.dumps(results))
    code, out, _ = dresfl("--from", "stored.json", "--page", "docs/b.md")
    assert code == 0
    assert "Growth" in out
    assert (tmp_path / "docs" / "b.md").read_text(encoding="utf-8") == bench.page(results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--from", "absent.json"], "cannot read the results absent.json"),
        (["--from", "other.json"], "other.json does not hold 'dresfl bench 1'"),
        (["--plot", "picture.txt"], "picture.txt is no picture"),
    ],
)
def test_what_is_wrong_is_said_in_two_lines(dresfl: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "other.json").write_text("{}")
    code, out, err = dresfl(*arguments)
    assert (code, out) == (2, "")
    complaint = err.strip().splitlines()
    assert complaint[0].startswith("error: ")
    assert message in complaint[0]
    if len(complaint) > 1:
        assert complaint[1].startswith("hint: ")


def test_cuda_without_a_gpu_is_refused(dresfl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = dresfl("--device", "cuda")
    assert code == 2
    assert "error: torch finds no CUDA GPU here" in err
    assert "hint: use --device cpu" in err


# -- many clients --------------------------------------------------------------------------------------------------


def test_rounds_of_many_clients_are_compared_with_those_of_few() -> None:
    with torch_threads(1):
        few, many = scale.rounds((6, 4, 3), (5, 40), batch=4, seconds=0.0)
    assert (few["clients"], few["answers"], few["ratio_to_5"]) == (5, 5, 1.0)
    assert (many["clients"], many["answers"]) == (40, 5)
    assert positive(many["ratio_to_5"])


def test_hidden_rounds_of_many_clients_are_compared_with_those_of_few() -> None:
    with torch_threads(1):
        few, many = scale.hidden_rounds((6, 4, 3), (5, 300), batch=4, seconds=0.0)
    assert (few["clients"], many["clients"], few["ratio_to_5"]) == (5, 300, 1.0)
    assert positive(many["ratio_to_5"])


def test_both_ways_to_the_coefficients_are_measured_and_give_the_same() -> None:
    setting = replace(SMALL, code=CodeParameters(13, 2, 2, batch_size=4), rows_per_client=4)
    ways, again = (scale._coefficients(setting.session("cpu")) for _ in range(2))
    assert torch.equal(ways["logarithms"](), again["products"]())  # type: ignore[arg-type]
    with torch_threads(1):
        (found,) = scale.codes((6, 4, 3), 13, (2,), batch=4, seconds=0.0)
    assert (found["shards"], found["colluders"], found["answers"]) == (2, 2, 13)
    assert all(positive(found[key]) for key in ("seconds", "logarithms_seconds", "products_seconds"))
