"""A real participant's transcript: written if the agreement says so, and in no other case.

Equal agreements are everybody's word. So nobody records what only he wants recorded, and all know that it is done.
"""

from pathlib import Path
from typing import final

from dresfl.federation import Agreement
from dresfl.federation.messages import Answered, Done, Message, Octets, Weights
from dresfl.protocol import Session
from dresfl.storage.transcript import COORDINATOR, EVERYBODY, TranscriptWriter


@final
class WireRecorder:
    """Writes down the weights and answers that one participant sends and receives, if the agreement says so."""

    def __init__(self, agreement: Agreement, folder: Path | None, party: int) -> None:
        """folder: this participant's own; None: it has none, and nothing is written."""
        self._folder = folder if agreement.record else None
        self._party = party
        self._writer: TranscriptWriter | None = None
        self._session_id = b""
        self._last: Octets = b""  # the weights last written: a coordinator sends the same to each client

    def sent_by_coordinator(self, message: Message, session: Session | None) -> None:
        """The coordinator sends this message, or a client receives it."""
        if self._folder is None or session is None or not isinstance(message, Weights | Done):
            return
        if message.task != self._last:
            self._last = message.task
            receiver = EVERYBODY if self._party == COORDINATOR else self._party
            self._writer_of(session, self._folder).write(COORDINATOR, receiver, message.task)

    def sent_by_client(self, client: int, message: Message, session: Session | None) -> None:
        """A client sends this message, or the coordinator receives it."""
        if self._folder is None or session is None or not isinstance(message, Answered):
            return
        self._writer_of(session, self._folder).write(client, COORDINATOR, message.answer)

    def data_from_coordinator(self, data: Octets, session: Session | None) -> None:
        """`sent_by_coordinator` of a message that is still encoded."""
        for kind in (Weights, Done):
            if self._folder is not None and data and data[0] == kind.KIND:
                self.sent_by_coordinator(kind.from_body(memoryview(data)[1:]), session)

    def data_from_client(self, client: int, data: Octets, session: Session | None) -> None:
        """`sent_by_client` of a message that is still encoded, and that has been found to be valid."""
        if self._folder is not None and len(data) > 4 and data[0] == Answered.KIND:
            self.sent_by_client(client, Answered.from_body(memoryview(data)[1:]), session)

    def _writer_of(self, session: Session, folder: Path) -> TranscriptWriter:
        """The file. It is opened with the first message: by then the session is settled."""
        if self._writer is None or session.session_id != self._session_id:
            self._writer, self._session_id = TranscriptWriter(folder, self._party, session), session.session_id
        return self._writer
