"""Peak memory of a client's gradient and of the coordinator's decoding, without what they are given.

On a GPU torch's allocator counts. On a CPU it does not, so a fresh process is asked: every large block is its own
mapping there (freed memory goes back at once), and Linux keeps the peak of the resident pages since its last reset.
"""

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, Session, Training

from . import stages
from .timing import Call

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # glibc's


def measure_memory(setting: stages.Setting, device: str, threads: int) -> dict[str, Any]:
    """Bytes; None where the system does not tell.

    `client_gradient`: what a gradient takes in addition to its coded rows. `server_decode`: what decoding and stepping
    take in addition to the R answers. `server_decode_over_uploads`: the same, as a part of the answers' own bytes.
    """
    if torch.device(device).type == "cuda":
        return _measure(setting, device, threads)
    before = os.environ.get(_THRESHOLD)
    os.environ[_THRESHOLD] = "65536"
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            return fresh.submit(_measure, setting, device, threads).result()
    finally:
        if before is None:
            del os.environ[_THRESHOLD]
        else:
            os.environ[_THRESHOLD] = before


def _measure(setting: stages.Setting, device: str, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    session = setting.session(device)
    gradient = stages.gradient(session)
    gradient()  # libraries set themselves up on a first call
    client = _peak(gradient, device)
    # the same from every client: a constant polynomial, which decodes
    ones = torch.ones(session.network.num_parameters, dtype=torch.int64)
    residues = [session.field.embed(ones) for _ in range(session.recovery_threshold)]
    answers = [Answer(0, client, answer) for client, answer in enumerate(residues)]
    uploads = sum(answer.nbytes for answer in residues)
    _peak(_last_answer(session, answers), device)
    server = _peak(_last_answer(session, answers), device)
    return {
        "client_gradient": client,
        "client_rows": stages.residues(session.field, session.batch_size, session.row_width).nbytes,
        "server_decode": server,
        "uploads": uploads,
        "server_decode_over_uploads": None if server is None else server / uploads,
    }


def _last_answer(session: Session, answers: list[Answer]) -> Call:
    """The R-th answer's arrival at a coordinator that has the others: it decodes and steps."""
    training = Training(session, Optimizer(), rounds=1)
    for answer in answers[:-1]:
        training.receive(answer)
    return lambda: training.receive(answers[-1])


def _peak(call: Call, device: str) -> int | None:
    """Bytes that were in use at the peak of a call beyond those before it."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        _CLEAR.write_text("5")  # the peak is now what is resident now
        before = resident("VmRSS")
    except (OSError, KeyError):
        return None
    call()
    return max(0, resident("VmHWM") - before)


def resident(name: str) -> int:
    """Bytes of this process that are in memory: VmRSS now, VmHWM at the peak."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="utf-8").splitlines() if ":" in line)
    return 1024 * int(lines[name].split()[0])
