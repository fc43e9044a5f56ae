"""A client's run: its rows, its store, and the network."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from dresfl.errors import StoreError
from dresfl.federation import Agreement, Workplace
from dresfl.kernels.threads import torch_threads
from dresfl.model import weights_sha256
from dresfl.protocol import Task
from dresfl.runtimes.grpc_runtime import GrpcClient
from dresfl.runtimes.log import Log
from dresfl.storage import ShareStore, Sharing, data_digest
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.hidden_state import Allowance

from .consent import consented_agreement
from .model import keep_model
from .rows import own_rows
from .serve import stopping_on_signals
from .settings import ClientConfig, load_credentials
from .storage_key import find_storage_key


def join(config: ClientConfig, log: Log, *, blinded: bool = True, share_again: bool = False) -> dict[str, Any]:
    """Take part in a run until it is complete; return what came of it.

    blinded: False in benchmarks only. share_again: the operator allows a new sharing after runs of the hidden mode.
    """
    credentials = load_credentials(config.keys)
    identity, roster = credentials.identity, credentials.roster
    agreement = consented_agreement(config, roster, log)
    rows = own_rows(config.data, agreement, roster.index_of(identity.member))

    async def run(workplace: Workplace) -> tuple[Task | None, int]:
        with stopping_on_signals():
            client = GrpcClient(config.connect_settings(), agreement, credentials, workplace, log, Path(config.folder))
            return await client.run(), client.machine.rounds_answered

    key = find_storage_key(config, log)
    with (
        torch_threads(config.threads),
        ShareStore.open(
            Path(config.folder), data_digest(*rows), agreement.roster, key, allowance_of(agreement), share_again
        ) as store,
    ):
        keep = partial(keep_model, config.model, agreement)
        workplace = Workplace(
            agreement,
            identity,
            roster,
            store,
            lambda: rows,
            device=config.device,
            keep_model=keep,
            blinded=blinded,
        )
        final_task, rounds_answered = asyncio.run(run(workplace))
    return {
        "name": identity.name,
        "client": workplace.index,
        "mode": agreement.mode,
        "rounds": agreement.rounds if final_task is None else final_task.round_number,
        "rounds_answered": rounds_answered,
        "weights_sha256": "" if final_task is None else weights_sha256(final_task.weights),
    }


def allowance_of(agreement: Agreement) -> Allowance | None:
    """How many runs an agreement of the hidden mode allows on one sharing, and what this one is."""
    settings = agreement.hidden
    return None if settings is None else Allowance(settings.runs, settings.trials, settings.trial)


def stored_sharings(config: ClientConfig, forget: str = "") -> list[Sharing]:
    """The sharings in a stopped client's store, after one of them was forgotten, if that is asked for."""
    folder = Path(config.folder)
    if not (folder / "store.json").exists():
        raise StoreError(f"there is no store in {folder}", "a client makes it when it first takes part")
    key = StorageKey.find(config.storage_key)
    with ShareStore.open(folder, data=b"", key=key) as store:  # no rows are needed to look at what others dealt
        if forget:
            store.forget(forget)
        return store.sharings()
