"""The work of answering in the open mode: a client's coded gradient, blinded by its seeds."""

from typing import final

from dresfl.masking import Blinding
from dresfl.protocol import (
    AnsweredRounds,
    Session,
    ShareTable,
    Task,
    blinding_of,
    check_complete,
    encoded_answer,
    held_set_ups,
    seeds_of,
)


@final
class OpenWork:
    """Answers tasks from the shares that a client holds. It needs none of the client's own rows."""

    def __init__(self, index: int, blinded: bool = True) -> None:
        self._index, self._blinded = index, blinded
        self._blinding: Blinding | None = None  # of the first session that is answered in: there is only one

    def answer(self, session: Session, table: ShareTable, answered: AnsweredRounds, task: Task) -> bytes:
        """Note the round as answered for these weights, on the disk, and compute the answer."""
        if self._blinded and self._blinding is None:
            check_complete(session, self._index, table)
            self._blinding = blinding_of(session, self._index, seeds_of(held_set_ups(session, self._index, table)))
        return encoded_answer(session, self._index, table, answered, task, self._blinding)
