"""A site's run: its rows, its store, and the network."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from dresfl.errors import StoreError
from dresfl.kernels.threads import torch_threads
from dresfl.model import weights_sha256
from dresfl.protocol import Task
from dresfl.runtimes.grpc_runtime import Log, Site
from dresfl.storage import ShareStore, Sharing, data_digest

from .model import keep_model
from .rows import site_rows
from .serve import stopping_on_signals
from .settings import SiteConfig, load_agreement, load_credentials


def run_site(config: SiteConfig, log: Log) -> dict[str, Any]:
    """Take part in a run until it is complete; return what came of it."""
    credentials = load_credentials(config.keys)
    agreement = load_agreement(config, credentials.roster)
    rows = site_rows(config.data, agreement, credentials.roster.index_of(credentials.identity.member))

    async def run(site: Site) -> Task:
        with stopping_on_signals():
            return await site.run()

    with (
        torch_threads(config.threads),
        ShareStore.open(Path(config.folder), data_digest(*rows), agreement.roster) as store,
    ):
        keep = partial(keep_model, config.model, agreement)
        site = Site(config.site_settings(), agreement, credentials, store, rows, log, keep)
        final_task = asyncio.run(run(site))
    return {
        "name": credentials.identity.name,
        "client": site.index,
        "rounds": final_task.round_number,
        "rounds_answered": site.rounds_answered,
        "weights_sha256": weights_sha256(final_task.weights),
    }


def stored_sharings(config: SiteConfig, forget: str = "") -> list[Sharing]:
    """The sharings in a stopped site's store, after one of them was forgotten, if that is asked for."""
    folder = Path(config.folder)
    if not (folder / "store.json").exists():
        raise StoreError(f"there is no store in {folder}", "a site makes it when it first takes part")
    with ShareStore.open(folder, data=b"") as store:  # no rows are needed to look at what others dealt
        if forget:
            store.forget(forget)
        return store.sharings()
