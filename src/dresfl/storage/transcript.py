"""A transcript: what one participant sees of the rounds of a run, written down for those who study the protocol.

A run that is recorded has a folder `transcript/` with a file for each recorded participant: `coordinator.transcript`,
`client-3.transcript`. Files have mode 0600. Integers are little-endian and unsigned.

    one line of JSON: format, party, and the public parameters that make the session
    then, in the order seen:  length u32 | sender u16 | receiver u16 | a message of `length` bytes

A message is a Task or an Answer of `dresfl.protocol`, byte by byte as a network carries it. The final weights are a
Task whose round is the number of rounds. Sender and receiver are numbers of clients; 65535 is the coordinator, and
65534 as receiver means all clients. Nothing that the participant does not see is in its file: a client's has its own
answers only, and nobody's has a decoded sum (`Transcript.sums` computes it from the answers, as the coordinator does).
Shares are not in it: a client has them in its store.

A process that is killed may leave the last message cut short: a reader stops there, and a writer cuts it off. A run
that goes on from a checkpoint writes the rounds since then again, and the later message counts.
"""

import contextlib
import dataclasses
import json
import os
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from torch import Tensor

from dresfl.coding import CodeParameters
from dresfl.errors import DresError, MessageError, StoreError, UsageError
from dresfl.field import unpacked
from dresfl.files import disk, make_private_folder, open_private
from dresfl.model import Network, layer_from_dict, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, LocalPlan, Session, Task, decode_answers, make_local_plan
from dresfl.protocol.set_up import fresh_blinding, opening_label

FORMAT = "dresfl transcript 1"
FOLDER = "transcript"
COORDINATOR, EVERYBODY = 2**16 - 1, 2**16 - 2
ALL = "all"
_MESSAGE = struct.Struct("<IHH")
_LONGEST_HEADER = 2**24
_KIND = 1  # the place of the kind in a message of the protocol


def party_name(party: int) -> str:
    """How files and options name a participant.

    >>> party_name(3), party_name(COORDINATOR)
    ('client-3', 'coordinator')
    """
    return "coordinator" if party == COORDINATOR else f"client-{party}"


def party_number(name: str, num_clients: int) -> int:
    """The participant that a name stands for. UsageError if there is none.

    >>> party_number("client-3", 20), party_number("coordinator", 20) == COORDINATOR
    (3, True)
    """
    kind, _, number = name.partition("-")
    if name == "coordinator":
        return COORDINATOR
    if kind != "client" or not number.isdecimal() or int(number) >= num_clients:
        raise UsageError(
            f"{name!r} is no participant that can be recorded",
            f"use {ALL}, coordinator, or client-0 to client-{num_clients - 1}",
        )
    return int(number)


# -- writing ---------------------------------------------------------------------------------------------------------


@final
class TranscriptWriter:
    """One participant's file, which it appends to. A file of another run stays, under another name."""

    def __init__(self, folder: Path, party: int, session: Session) -> None:
        """folder: of the run. It gets a folder `transcript`."""
        make_private_folder(folder / FOLDER)
        self._path = folder / FOLDER / f"{party_name(party)}.transcript"
        header = _header(party, session)
        with disk(self._path, "write"):
            _set_aside_another(self._path, header)
            with open(self._path, "ab", opener=open_private) as file:
                if file.tell():
                    file.truncate(_whole_bytes(self._path, len(header)))
                else:
                    file.write(header)

    def write(self, sender: int, receiver: int, message: bytes | memoryview) -> None:
        """Append one message. A process that is killed later has it in its file."""
        with disk(self._path, "write"), open(self._path, "ab", opener=open_private) as file:
            file.write(_MESSAGE.pack(len(message), sender, receiver))
            file.write(message)


@final
class Recording:
    """The transcripts of a simulated run: of each chosen participant, the messages that a network would carry to it."""

    def __init__(self, folder: Path, names: Collection[str], session: Session) -> None:
        """names: of the participants to record, or `all`."""
        clients = range(session.num_clients)
        chosen = {party_number(name, session.num_clients) for name in names if name != ALL}
        parties = {COORDINATOR, *clients} if ALL in names else chosen
        self._session = session
        self._published = b""  # the digest of the weights last sent
        self._blinding = fresh_blinding(session)
        self._writers = {party: TranscriptWriter(folder, party, session) for party in sorted(parties)}

    def task(self, task: Task) -> None:
        """The coordinator sends weights to all clients."""
        message, self._published = task.encode(self._session), bytes.fromhex(weights_sha256(task.weights))
        for party, writer in self._writers.items():
            writer.write(COORDINATOR, EVERYBODY if party == COORDINATOR else party, message)

    def answer(self, answer: Answer) -> None:
        """A client's answer reaches the coordinator. It is blinded here, as a client on a network blinds it."""
        writers = [self._writers[party] for party in (answer.client, COORDINATOR) if party in self._writers]
        if writers:
            session, number, gradient = self._session, answer.round_number, answer.residues
            label = opening_label(session, number, self._published)
            mask = self._blinding[answer.client].values(label, gradient.shape[1])  # (M,P)
            blinded = session.field.add(unpacked(gradient), mask)
            message = Answer(number, answer.client, blinded).encode(session)
            for writer in writers:
                writer.write(answer.client, COORDINATOR, message)


def _header(party: int, session: Session) -> bytes:
    network = session.network
    values = {
        "format": FORMAT,
        "party": party_name(party),
        "layers": [layer.to_dict() for layer in network.layers],
        "input_shape": network.input_shape,
        "input_bits": network.input_bits,
        "weight_bits": network.weight_bits,
        "input_magnitude": network.input_magnitude,
        "parameters": dataclasses.asdict(session.parameters),
        "client_rows": session.client_rows,
        "seed": session.seed,
        "moduli": session.field.moduli,
        "nonce": session.nonce.hex(),
        "run_nonce": session.run_nonce.hex(),
        "excluded": session.excluded,
        **({} if session.local is None else {"local": session.local.to_dict()}),
    }
    return json.dumps(values, sort_keys=True).encode() + b"\n"


def _set_aside_another(path: Path, header: bytes) -> None:
    """Give a transcript of another run the name of its session."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, "rb") as file:
        found = file.readline(_LONGEST_HEADER)
    if found == header:
        return
    if not found.endswith(b"\n") and header.startswith(found):  # a crash cut the header short
        os.truncate(path, 0)
        return
    try:
        session = _session(json.loads(found))
    except (ValueError, KeyError, TypeError, RecursionError, DresError) as error:
        raise StoreError(f"{path} is no {FORMAT}, or is damaged", f"move it away: mv {path} {path}.damaged") from error
    os.replace(path, path.with_name(f"{path.stem}.{session.session_id.hex()}.transcript"))


def _whole_bytes(path: Path, start: int) -> int:
    """How long a file is up to its last whole message."""
    size, end = path.stat().st_size, start
    with open(path, "rb") as file:
        while end + _MESSAGE.size <= size:
            file.seek(end)
            after = end + _MESSAGE.size + _MESSAGE.unpack(file.read(_MESSAGE.size))[0]
            if after > size:
                break
            end = after
    return end


# -- reading ---------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Transcript:
    """A transcript on the disk. Its messages are read one at a time: it may be larger than the memory.

    >>> import tempfile
    >>> import dresfl as dr
    >>> clients = [([[1.0, 0.0, 0.5]], [1])] * 4
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = dr.simulate(dr.mlp((3, 2), input_bits=4, weight_bits=10), clients, rounds=5, record=folder)
    ...     seen = dr.Transcript(Path(folder) / "transcript" / "client-2.transcript")
    ...     seen.party, sorted(seen.weights())
    ('client-2', [0, 1, 2, 3, 4, 5])
    """

    path: Path

    @cached_property
    def _values(self) -> tuple[dict[str, Any], int]:
        """The header, and how many bytes it takes."""
        with disk(self.path, "read"), open(self.path, "rb") as file:
            line = file.readline(_LONGEST_HEADER)
        try:
            values = json.loads(line)
            if values["format"] == FORMAT:
                return values, len(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise StoreError(f"{self.path} is no {FORMAT}")

    @property
    def party(self) -> str:
        """Whose it is: `coordinator`, or `client-3`."""
        return str(self._values[0]["party"])

    @cached_property
    def session(self) -> Session:
        """The session that the messages belong to."""
        try:
            return _session(self._values[0])
        except (ValueError, KeyError, TypeError, DresError) as error:
            raise StoreError(f"{self.path} has a header that makes no session: {error}") from error

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Sender, receiver and bytes of each message, in the order seen."""
        with disk(self.path, "read"), open(self.path, "rb") as file:
            file.seek(self._values[1])
            while len(head := file.read(_MESSAGE.size)) == _MESSAGE.size:
                length, sender, receiver = _MESSAGE.unpack(head)
                message = file.read(length)
                if len(message) < length:  # a process was killed here
                    return
                yield sender, receiver, message

    def weights(self) -> dict[int, Tensor]:
        """The integer weights (P,) of each round that were sent. The final ones have the number of rounds."""
        found: dict[int, Tensor] = {}
        for _, _, data in self.messages():
            with contextlib.suppress(MessageError):  # what the participant refused is in its file, too
                if data[_KIND : _KIND + 1] == bytes([Task.KIND]):
                    task = Task.decode(data, self.session)
                    found[task.round_number] = task.weights
        return found

    def answers(self) -> Iterator[tuple[int, dict[int, Answer]]]:
        """Each round and its answers by client, as far as this participant saw them, round by round."""
        found: dict[int, Answer] = {}
        number = -1
        for sender, _, data in self.messages():
            if data[_KIND : _KIND + 1] != bytes([Answer.KIND]):
                continue
            try:
                answer = Answer.decode_from(sender, data, self.session)
            except MessageError:  # what the participant refused is in its file, too
                continue
            if answer.round_number != number:
                if found:
                    yield number, found
                found, number = {}, answer.round_number
            found[answer.client] = answer
        if found:
            yield number, found

    def sums(self) -> Iterator[tuple[int, Tensor]]:
        """Each round and its summed gradient (P,), as the coordinator decodes it: integers in float64.

        In a run with local steps it is the summed move.
        """
        session = self.session
        for number, answers in self.answers():
            survivors = tuple(sorted(answers)[: session.recovery_threshold])
            if len(survivors) == session.recovery_threshold:
                coefficients = session.code.sum_decoder(survivors)
                residues = [answers[client].residues for client in survivors]
                yield number, decode_answers(session.field, coefficients, residues)[0]


def _local_plan(network: Network, parameters: CodeParameters, values: dict[str, Any] | None) -> LocalPlan | None:
    """The local steps of a recorded run; None: it had one, as all runs of earlier versions."""
    if values is None:
        return None
    return make_local_plan(network, parameters, Optimizer(**values["optimizer"]), values["rounds"])


def _session(values: dict[str, Any]) -> Session:
    network = Network(
        tuple(layer_from_dict(layer) for layer in values["layers"]),
        tuple(values["input_shape"]),
        values["input_bits"],
        values["weight_bits"],
        values["input_magnitude"],
    )
    parameters = CodeParameters(**values["parameters"])
    return Session(
        network=network,
        parameters=parameters,
        client_rows=tuple(values["client_rows"]),
        seed=values["seed"],
        moduli=tuple(values["moduli"]),
        nonce=bytes.fromhex(values["nonce"]),
        run_nonce=bytes.fromhex(values["run_nonce"]),
        excluded=tuple(values["excluded"]),
        local=_local_plan(network, parameters, values.get("local")),
    )
