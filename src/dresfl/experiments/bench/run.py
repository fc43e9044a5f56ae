"""One run of everything: from settings to the results as a dictionary of plain values, ready for JSON."""

import datetime
import functools
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, final

import torch
from threadpoolctl import threadpool_limits

from dresfl import __version__
from dresfl.coding import CodeParameters
from dresfl.errors import UsageError
from dresfl.kernels.threads import torch_threads
from dresfl.protocol import Session, expand_masks

from . import stages
from .growth import Sweep, measure_growth
from .memory import measure_memory
from .page import FORMAT
from .peers import PEERS, Shape
from .products import against_fastest, byte_product, product_200_bits, shape_name
from .stages import Setting
from .timing import Call, interleaved

Note = Callable[[str], None]

_PACKAGES = ("torch", "numpy", "numba", "triton", "python-flint", "galois")
_GPU_BYTES = 30  # primes below 256
_MNIST = Setting()


def _sweeps(*, full: bool) -> tuple[Sweep, ...]:
    base = Setting(code=CodeParameters(num_clients=20, batch_size=16), rows_per_client=20)
    many = Setting(code=CodeParameters(num_clients=70, batch_size=16))  # enough answers for 8 shards or colluders
    most = Setting((64, 32, 32, 10), CodeParameters(num_clients=1000, batch_size=16), rows_per_client=32)
    return (
        Sweep("clients", (10, 20, 50, 100, 200, 1000) if full else (10, 50, 1000), base),
        Sweep("shards", (1, 2, 4, 8) if full else (1, 4), many),
        Sweep("colluders", (1, 2, 4, 8) if full else (1, 4), many),
        Sweep("shards and colluders", (1, 4, 8, 16, 32) if full else (1, 8, 32), most),  # up to R = 505
        Sweep("width", (32, 64, 128, 256, 512) if full else (32, 256), base),
        Sweep("batch", (16, 32, 64, 128, 256) if full else (16, 128), base),
    )


@final
@dataclass(frozen=True)
class Settings:
    """What a run measures, and how long it takes over it."""

    setting: Setting = _MNIST
    shapes: tuple[Shape, ...] = ((64, 784, 64), (256, 784, 256))
    byte_shapes: tuple[Shape, ...] = ((1280, 25088, 4096), (1280, 4096, 4096))  # on a GPU
    seconds: float = 6.0  # for each comparison
    sweep_seconds: float = 3.0  # for each stage of each sweep
    slow_products: int = 256 * 784 * 256  # multiplications that peers of Python objects are still asked for
    sweeps: tuple[Sweep, ...] = _sweeps(full=True)
    quick: bool = False


FULL = Settings()
QUICK = Settings(seconds=1.0, sweep_seconds=0.3, slow_products=64 * 784 * 64, sweeps=_sweeps(full=False), quick=True)


def measure(
    settings: Settings, *, device: str = "cpu", threads: int = 1, note: Note = lambda text: None
) -> dict[str, Any]:
    """Measure everything on a device with a number of CPU threads."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"unknown device {device!r}", "use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA GPU here", "use --device cpu, or a torch built for CUDA and a free GPU")
    if threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    with torch_threads(threads), threadpool_limits(threads):  # the latter: NumPy's BLAS
        measured = json.dumps(_measure(settings, device, threads, note))
    # floats to six digits: more of a timing is noise
    rounded: dict[str, Any] = json.loads(measured, parse_float=lambda digits: float(f"{float(digits):.6g}"))
    return rounded


def _measure(settings: Settings, device: str, threads: int, note: Note) -> dict[str, Any]:
    results: dict[str, Any] = {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device,
        "threads": threads,
        "quick": settings.quick,
        "machine": machine(),
        "versions": _versions(),
        "not_installed": [peer.name for peer in PEERS if not peer.installed],
        "gemm": {},
        "int8": {},
    }
    for shape in settings.shapes:
        note(f"exact product {shape_name(shape)}")
        results["gemm"][shape_name(shape)] = product_200_bits(
            shape, device=device, threads=threads, seconds=settings.seconds, slow_products=settings.slow_products
        )
    for shape in settings.byte_shapes if device == "cuda" else ():
        note(f"int8 product {shape_name(shape)}")
        found, _ = byte_product(shape, channels=_GPU_BYTES, device=device, seconds=settings.seconds)
        results["int8"][shape_name(shape)] = found
    session = settings.setting.session(device)
    note("gradient")
    results["gradient"] = _gradient(settings, session)
    note("encode, decode, lift, masks")
    results["stages"] = _stages(session, settings.seconds / 2)
    note("round")
    results["round"] = _round(settings, session)
    results["growth"] = {}
    for sweep in settings.sweeps:
        note(f"growth with {sweep.name}: {', '.join(map(str, sweep.sizes))}")
        results["growth"][sweep.name] = measure_growth(sweep, device, settings.sweep_seconds)
    note("memory")
    results["memory"] = measure_memory(settings.setting, device, threads)
    return results


def _gradient(settings: Settings, session: Session) -> dict[str, Any]:
    bare = stages.bare_gradient(session)
    step = stages.torch_step(settings.setting, session.device)
    calls = {"exact": stages.gradient(session), **bare, "fp32 step": step}
    timings = interleaved(calls, settings.seconds, device=session.device)
    return {
        "layers": list(settings.setting.layers),
        "batch": session.batch_size,
        "channels": len(session.field.moduli),
        **against_fastest(timings, bare),
        "torch_fp32_seconds": timings["fp32 step"].median,
        "ratio_to_torch_fp32": timings["exact"].median / timings["fp32 step"].median,
    }


def _stages(session: Session, seconds: float) -> dict[str, Any]:
    """Each stage against copies of the larger of what it reads and what it writes, fresh and in place."""
    field, code, needed = session.field, session.code, session.recovery_threshold
    survivors = range(needed)
    answers = stages.residues(field, needed, session.network.num_parameters)  # (M,R,P)
    total = answers[:, 0].contiguous()
    rows = torch.arange(session.batch_size)
    keys = rows.to(torch.int32).view(-1, 1).repeat(1, 8)  # as good as secret ones, for a clock
    encode = stages.encode(session, survivors)
    shares = field.embed(torch.zeros(needed, session.batch_size, session.row_width, dtype=torch.int64))
    calls: dict[str, tuple[Call, torch.Tensor]] = {
        "encode": (encode, shares),
        "decode": (lambda: code.decode_sum(answers, survivors), answers),
        "lift": (lambda: field.lift_checked(total), total),
        "decode_and_lift": (stages.decode(session), answers),
        "masks": (lambda: expand_masks(session, keys, rows), expand_masks(session, keys, rows).contiguous()),
    }
    found: dict[str, Any] = {}
    for name, (call, moved) in calls.items():
        copy_into_place = functools.partial(torch.empty_like(moved).copy_, moved)
        three: dict[str, Call] = {"stage": call, "copy": moved.clone, "copy_into": copy_into_place}
        timings = interleaved(three, seconds, device=session.device)
        stage, copy, copy_into = (timings[key].median for key in ("stage", "copy", "copy_into"))
        found[name] = {
            "seconds": stage,
            "copy_seconds": copy,
            "bytes": moved.nbytes,
            "gb_per_s": moved.nbytes / stage / 1e9,
            "copy_gb_per_s": moved.nbytes / copy / 1e9,
            "copy_into_gb_per_s": moved.nbytes / copy_into / 1e9,
            "ratio_to_copy": stage / copy,
        }
    return found


def _round(settings: Settings, session: Session) -> dict[str, Any]:
    call, count = stages.rounds(session)
    bare = stages.bare_round(session)
    timings = interleaved({"exact": call, **bare}, settings.seconds, device=session.device)
    return {
        "clients": session.num_clients,
        "answers_computed": session.recovery_threshold,
        **against_fastest({**timings, "exact": timings["exact"].per(count)}, bare),
    }


def machine() -> dict[str, Any]:
    """What was measured on; nothing that names the machine itself."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {package: found.version for package in _PACKAGES for found in metadata.distributions(name=package)}
    return {"dresfl": __version__, "python": platform.python_version(), **found}
