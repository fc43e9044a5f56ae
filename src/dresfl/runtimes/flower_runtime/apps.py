"""Flower's side of it, through its public API: a ServerApp, a ClientApp, and the Grid as a carrier of letters.

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

_ROUND = "answer"  # the one kind of letter that is sent as Flower's "train"; all others are queries
_QUERIES = ("hello", "keep", "deal", "done")
Config = Mapping[str, Any]


class Handler(Protocol):
    """Answers letters: a Site, or a connection to its worker."""

    def handle(self, data: bytes) -> bytes: ...


def client_app(open_site: Callable[[Config, Config], Handler]) -> ClientApp:
    """The ClientApp of a site. open_site: called with the node's and the run's configuration, for each message."""

    def answer(message: Message, context: Context) -> Message:
        site = open_site(context.node_config, context.run_config)
        return Message(_content(site.handle(_letter(message))), reply_to=message)

    app = ClientApp()
    app.train()(answer)
    for kind in _QUERIES:
        app.query(kind)(answer)
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

    def send(self, letters: Sequence[tuple[int, str, bytes]], ttl: float) -> list[str | None]:
        messages = [
            Message(_content(data), node, "train" if kind == _ROUND else f"query.{kind}", ttl=ttl)
            for node, kind, data in letters
        ]
        ids: list[str | None] = list(self._grid.push_messages(messages))
        return ids if len(ids) == len(letters) else [None] * len(letters)

    def fetch(self, message_id: str) -> bytes | Failure | None:
        for message in self._grid.pull_messages([message_id]):
            if message.has_error():
                return Failure(f"Flower's error {message.error.code}: {message.error.reason}")
            try:
                return _letter(message)
            except MessageError as error:
                return Failure(str(error))
        return None


def _content(data: bytes) -> RecordDict:
    """A letter as the content of a message: as an Array, which Flower sends in chunks and stores once."""
    array = Array(dtype="uint8", shape=(len(data),), stype="dresfl.letter", data=data)
    return RecordDict({"dresfl": ArrayRecord({"letter": array})})


def _letter(message: Message) -> bytes:
    try:
        return bytes(message.content.array_records["dresfl"]["letter"].data)
    except (KeyError, AttributeError, TypeError, ValueError):
        raise MessageError(
            "a message of Flower came without a letter", "start the app of `dresfl flower init`"
        ) from None
