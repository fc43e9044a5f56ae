"""Test vectors: one small round in full, envelopes and messages, for other implementations to compare themselves with.

Numbers are decimal strings. Residues lie in [0, p). SPEC.md, section 15, gives the axes of every array. The "secrets"
are hashes of published strings: they are for testing and for nothing else.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.errors import DresError, UsageError
from dresfl.field import Domain, PublicStream, SecretSeed, unpacked
from dresfl.files import write_atomic
from dresfl.model import Dense, Network, Square
from dresfl.protocol import Answer, Client, Session, Share, Task

FORMAT = "dresfl vectors 6"
_ROUND = 3
_ABSENT = 4  # this client does not answer


def make_vectors() -> dict[str, Any]:
    """One round of ten clients: K = 2, T = 1, a 3-2-2 network with one square, row counts that 2 does not divide."""
    from .hidden_vectors import make_hidden_vectors
    from .network_vectors import make_network_vectors  # these two need the extra `network`
    from .sealing_vectors import make_sealing_vectors

    network = Network((Dense(2), Square(), Dense(2)), (3,), input_bits=2, weight_bits=4)
    parameters = CodeParameters(10, num_shards=2, batch_size=3)
    session = Session(network, parameters, client_rows=(2, 3, 1, 2, 2, 3, 2, 2, 1, 2), seed=7)
    field, code = session.field, session.code
    data = [_rows(i, rows) for i, rows in enumerate(session.client_rows)]
    secrets = [hashlib.sha256(b"dresfl vectors client %d" % i).digest() for i in range(session.num_clients)]
    clients = [Client(session, i, SecretSeed(secrets[i]), *data[i]) for i in range(session.num_clients)]
    shares: list[list[Share]] = [[dealer.deal(j) for j in range(session.num_clients)] for dealer in clients]
    for dealt in shares:
        for receiver, share in zip(clients, dealt, strict=True):
            receiver.receive(share)
    weights = network.initial_weights(session.stream)
    task = Task(_ROUND, weights)
    answers: list[Answer] = [client.answer(task) for client in clients]
    survivors = [j for j in range(session.num_clients) if j != _ABSENT][: session.recovery_threshold]
    decoded = code.decode_sum(torch.stack([unpacked(answers[j].residues) for j in survivors], 1), survivors)
    masks = []
    for i in range(session.num_clients):
        rows = torch.arange(session.coded_rows(i))
        keys = SecretSeed(secrets[i]).mask_key(session.sharing_id).expand(len(rows), 8)
        masks.append(field.uniform(keys, rows, session.max_colluders * session.row_width))  # (M,rows,T·W)
    batch = session.batch_rows(_ROUND)

    def residues(elements: Tensor) -> Any:
        p = torch.tensor(field.moduli).view(-1, *[1] * (elements.dim() - 1))
        return _strings(elements.to(torch.int64) % p)

    return {
        "format": FORMAT,
        "num_clients": session.num_clients,
        "num_shards": session.num_shards,
        "max_colluders": session.max_colluders,
        "batch_size": session.batch_size,
        "layers": ["dense 2", "square", "dense 2"],
        "input_size": network.input_size,
        "input_bits": network.input_bits,
        "weight_bits": network.weight_bits,
        "gradient_degree": network.gradient_degree,
        "recovery_threshold": session.recovery_threshold,
        "seed": session.seed,
        "round": _ROUND,
        "sharing_id": session.sharing_id.hex(),
        "session_id": session.session_id.hex(),
        "moduli": [str(p) for p in field.moduli],
        "data_points": list(code.data_points),
        "mask_points": list(code.mask_points),
        "client_points": list(code.client_points),
        "inputs": [_strings(inputs) for inputs, _ in data],
        "targets": [_strings(targets) for _, targets in data],
        "coded_rows": [session.shard_rows(i).tolist() for i in range(session.num_clients)],
        "secrets": [secret.hex() for secret in secrets],
        "masks": [residues(mask) for mask in masks],
        "shares": [[residues(unpacked(share.residues)) for share in dealt] for dealt in shares],
        "weights": _strings(weights),
        "batch": [list(pair) for pair in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)],
        "answers": [residues(unpacked(answer.residues)) for answer in answers],
        "survivors": survivors,
        "decoded": [str(x) for x in field.lift_exact(decoded)],
        "messages": {
            "share": shares[1][2].encode(session).hex(),
            "task": task.encode(session).hex(),
            "answer": answers[0].encode(session).hex(),
        },
        "sealing": make_sealing_vectors(),
        "network": make_network_vectors(),
        "hidden": make_hidden_vectors(),
    }


def write_vectors(path: Path) -> None:
    """Write the vectors as JSON."""
    write_atomic(path, (json.dumps(make_vectors(), indent=1) + "\n").encode())


def check_vectors(path: Path) -> int:
    """Recompute the round and compare every number with the file's; return how many agreed.

    Raises DresError naming the first place that differs.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the vectors {path}: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path} does not hold {FORMAT!r}", "write fresh ones with dresfl vectors --out FILE")
    return _compare(json.loads(json.dumps(make_vectors())), found, "")


def _compare(wanted: Any, found: Any, where: str) -> int:
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        return sum(_compare(wanted[key], found[key], f"{where}.{key}".lstrip(".")) for key in wanted)
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return sum(_compare(w, f, f"{where}[{i}]") for i, (w, f) in enumerate(zip(wanted, found, strict=True)))
    if type(wanted) is not type(found) or wanted != found:
        raise DresError(
            f"{where or 'the file'} differs: {_short(wanted)} expected, {_short(found)} found",
            "the file was altered, or one of the two implementations is wrong",
        )
    return 1


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _rows(client: int, rows: int) -> tuple[Tensor, Tensor]:
    """Small integer inputs and one-hot targets."""
    words = PublicStream(1000 + client).words(Domain.EXAMPLES, 0, 4 * rows).view(rows, 4)
    return (words[:, :3] % 5).to(torch.int32), torch.nn.functional.one_hot(words[:, 3] % 2, 2).to(torch.int32)


def _strings(values: Tensor) -> Any:
    def walk(value: Any) -> Any:
        return [walk(entry) for entry in value] if isinstance(value, list) else str(value)

    return walk(values.tolist())
