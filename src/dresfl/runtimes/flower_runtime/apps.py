"""Flower's side of it, through its public API: a ServerApp, a ClientApp, and the Grid as a carrier of bundles.

This file is imported anew for every message that a node gets, so it imports nothing heavy.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from dresfl.errors import MessageError, UsageError

from .post import Failure

try:
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise UsageError(f"{error.name} is not installed", "pip install 'dresfl[flower]'") from error

_TYPE = "query"  # of every message, as Flower sees it
Config = Mapping[str, Any]


class Handler(Protocol):
    """Answers bundles: a FlowerClient, or a connection to its worker."""

    def handle(self, data: bytes) -> bytes: ...


def client_app(open_site: Callable[[Config, Config], Handler]) -> ClientApp:
    """The ClientApp of a client. open_site: called with the node's and the run's configuration, for each message."""

    def answer(message: Message, context: Context) -> Message:
        client = open_site(context.node_config, context.run_config)
        return Message(_content(client.handle(_bundle(message))), reply_to=message)

    app = ClientApp()
    app.query()(answer)
    return app


def server_app(coordinate: Callable[["GridCarrier", Config], object]) -> ServerApp:
    """The ServerApp of a coordinator. coordinate: plays a whole run over a carrier, with the run's configuration."""

    def main(grid: Grid, context: Context) -> None:
        coordinate(GridCarrier(grid), context.run_config)

    app = ServerApp()
    app.main()(main)
    return app


class GridCarrier:
    """Flower's Grid as a `Carrier`."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Collection[int]:
        return list(self._grid.get_node_ids())

    def send(self, bundles: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]:
        messages = [Message(_content(data), node, _TYPE, ttl=ttl) for node, data in bundles]
        ids: list[str | None] = list(self._grid.push_messages(messages))
        return ids if len(ids) == len(bundles) else [None] * len(bundles)

    def fetch(self, flower_id: str) -> bytes | Failure | None:
        for message in self._grid.pull_messages([flower_id]):
            if message.has_error():
                return Failure(f"Flower's error {message.error.code}: {message.error.reason}")
            try:
                return _bundle(message)
            except MessageError as error:
                return Failure(str(error))
        return None


def _content(data: bytes) -> RecordDict:
    """A bundle as the content of a message: as an Array, which Flower sends in chunks and stores once."""
    array = Array(dtype="uint8", shape=(len(data),), stype="dresfl.bundle", data=data)
    return RecordDict({"dresfl": ArrayRecord({"bundle": array})})


def _bundle(message: Message) -> bytes:
    try:
        return bytes(message.content.array_records["dresfl"]["bundle"].data)
    except (KeyError, AttributeError, TypeError, ValueError):
        raise MessageError(
            "a message of Flower came without a bundle", "start the app of `dresfl flower init`"
        ) from None
