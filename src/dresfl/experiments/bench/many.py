"""Many clients and their coordinator in one process, over real TLS on loopback: how long until they train, and a round.

    python -m dresfl.experiments.bench.many --clients 200 --rounds 6
    python -m dresfl.experiments.bench.many --clients 200 --rounds 6 --unblinded

Stores are on the disk. Figures go to stdout as JSON.
"""

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dresfl.federation import Agreement, CoordinatorSettings, Workplace
from dresfl.model import Dense, Square, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import RoundRecord, Session, Training
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.runtimes.grpc_runtime import ConnectSettings, Credentials, GrpcClient, GrpcCoordinator, ListenSettings
from dresfl.runtimes.log import log_to
from dresfl.sealing import CertificateAuthority, Identity, Roster, certificate_request
from dresfl.storage import ShareStore, data_digest

Rows = tuple[Tensor, Tensor]
_FEATURES, _CLASSES = 5, 3


def measure(clients: int, rounds: int, folder: Path, *, blinded: bool = True) -> dict[str, Any]:
    """Seconds from the start until everybody is ready, until the first round has ended, and for each later round."""
    authority, coordinator = CertificateAuthority.create(), Identity.create("coordinator")
    members = [Identity.create(f"site-{i}") for i in range(clients)]
    roster = Roster.create(coordinator, coordinator.card, [member.card for member in members])
    agreement = Agreement(
        layers=(Dense(4), Square(), Dense(_CLASSES)),
        input_shape=(_FEATURES,),
        num_clients=clients,
        rounds=rounds,
        batch_size=8,
        roster=roster.digest,
        rows_can_be_computed="accepted",
    )
    times: dict[str, float] = {}
    ended: list[float] = []
    made: list[Training] = []

    def credentials(identity: Identity) -> Credentials:
        hosts = ["127.0.0.1"] if identity is coordinator else []
        certificate = authority.sign(certificate_request(identity), server=hosts)
        return Credentials(identity, certificate, authority.certificate_pem(), roster)

    def make_training(session: Session) -> Training:
        made.append(Training(session, Optimizer(method="momentum", learning_rate=0.05), rounds))
        return made[-1]

    def watch(record: RoundRecord, answers: int) -> None:
        ended.append(time.monotonic())

    def note(line: str) -> None:
        times.setdefault(json.loads(line)["event"], time.monotonic())

    async def run() -> None:
        log, quiet = log_to(note), log_to(lambda line: None)
        host = CoordinatorHost(
            CoordinatorSettings(), agreement, coordinator, roster, folder / "coordinator", make_training, watch, log
        )
        server = GrpcCoordinator(ListenSettings("127.0.0.1:0"), host, credentials(coordinator), log)
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(server.run(listening.set_result))
        address = f"127.0.0.1:{await listening}"

        async def join(index: int) -> None:
            rows = _rows(index, agreement)
            with ShareStore.open(folder / f"site-{index}", data_digest(*rows), agreement.roster) as store:
                workplace = Workplace(agreement, members[index], roster, store, lambda: rows, blinded=blinded)
                await GrpcClient(
                    ConnectSettings(address), agreement, credentials(members[index]), workplace, quiet
                ).run()

        await asyncio.gather(serving, *(join(index) for index in range(clients)))

    started = time.monotonic()
    asyncio.run(run())
    later = [after - before for before, after in itertools.pairwise(ended)]
    return {
        "clients": clients,
        "blinded": blinded,
        "seconds_until_the_check": times.get("dealers checked", started) - started,
        "seconds_until_the_first_round_has_ended": ended[0] - started,
        "seconds_of_later_rounds": later,
        "weights_sha256": weights_sha256(made[-1].weights),
    }


def _rows(index: int, agreement: Agreement) -> Rows:
    generator = torch.Generator().manual_seed(index)
    count = 9 + index
    inputs = torch.rand((count, _FEATURES), generator=generator)
    labels = torch.randint(_CLASSES, (count,), generator=generator)
    return agreement.quantizer.integers(inputs), torch.nn.functional.one_hot(labels, _CLASSES).to(torch.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--unblinded", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measured = measure(options.clients, options.rounds, Path(name), blinded=not options.unblinded)
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
