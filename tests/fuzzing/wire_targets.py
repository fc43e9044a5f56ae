"""What comes over a network, and the keys and certificates by which its senders are known."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from dresfl.errors import IdentityError, MessageError, Refused, SealError
from dresfl.federation import Terms, messages
from dresfl.federation.messages import (
    FROM_CLIENT,
    FROM_COORDINATOR,
    Attestations,
    Attested,
    Begin,
    Check,
    Checked,
    Confirmations,
    Counted,
    DealersOf,
    Delta,
    Hello,
    Judged,
    Message,
    Release,
    SetSigned,
    Standing,
    Started,
    TotalsOf,
    Weights,
)
from dresfl.federation.terms import _digest as terms_digest
from dresfl.protocol import Answer, Share, Task, Verdict
from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.archive import decode_history, encode_history
from dresfl.protocol.hidden.check import KEY_WORDS
from dresfl.protocol.hidden.ledger import History, Position, WeightBroadcast
from dresfl.protocol.hidden.published import num_values, unpack_published
from dresfl.runtimes.flower_runtime.bundles import Reply, Request
from dresfl.runtimes.grpc_runtime.streams import bundle, unbundle
from dresfl.runtimes.grpc_runtime.weights import WeightReceiver, WeightSender
from dresfl.sealing import (
    Card,
    CertificateAuthority,
    Identity,
    Roster,
    SealContext,
    certificate_request,
    open_sealed,
    seal,
)
from dresfl.sealing.certificates import check_certificate, describe, valid_until
from dresfl.sealing.identity import IDENTITY_FILE, TLS_KEY_FILE, load_tls_key, private_pem

from .setting import AGREED, CLIENTS, COORDINATOR, HIDDEN_SESSION, INTRODUCTION, ROSTER, SESSION, TERMS, WEIGHTS
from .target import Target, folder, written

TEXT = 400  # bytes of memory for a byte of text that is parsed: "[]," makes a list
REQUEST = b"a request"
REFUSED = (IdentityError,)


# -- the machine's messages -----------------------------------------------------------------------------------


_FOUND = Checked((b"h" * 16, b"i" * 16), b"values")
_PLACE = Position(3, 1, b"c" * 32)
HIDDEN_SAMPLES: tuple[Message, ...] = (
    Attested(b"s" * 64, _FOUND),
    Attestations((b"c" * 32, b"d" * 32), ((0, Attested(b"s" * 64, _FOUND)), (1, Attested(b"t" * 64, _FOUND)))),
    Standing.at(_PLACE, b"s" * 64, holds_check=True, behind=False),
    Started(((0, b"s" * 64), (2, b"t" * 64))),
    Confirmations(_PLACE, ((0, b"s" * 64, b"values"), (2, b"t" * 64, b"valuer"))),
    Counted(b"i" * 16, ((1, b"sealed"), (2, b"sealed too"))),
    SetSigned(b"i" * 16, b"s" * 64, (0, 2)),
    DealersOf(b"i" * 16, (0, 1, 2), ((0, b"sealed"), (1, b"sealed too"))),
    Release(b"i" * 16, (0, 1), ((0, b"s" * 64), (1, b"t" * 64)), ((0, b"sealed"), (1, b"sealed too"))),
    TotalsOf(b"i" * 16, (0, 1), (5, -6)),
)


def message_samples(kind: type[Message]) -> list[bytes]:
    """Bodies of a kind of message that are valid, or nearly so: kinds of fixed fields describe themselves."""
    if kind is Hello:
        hello = Hello(INTRODUCTION, b"x" * 16, AGREED.encode(), b"i" * 8)
        return [hello.encode()[1:]]
    if kind is Begin:
        return [Begin(b"s" * 64, TERMS).encode()[1:]]
    if kind is Checked:
        return [Checked((b"h" * 16, b"i" * 16), b"values").encode()[1:], Checked((), b"").encode()[1:]]
    if kind is Check:
        return [Check((b"c" * 32, b"d" * 32)).encode()[1:]]
    if kind is Judged:
        return [Judged(Verdict((0, 2), (1,))).encode()[1:], Judged(Verdict()).encode()[1:]]
    for sample in HIDDEN_SAMPLES:
        if type(sample) is kind:
            return [sample.encode()[1:]]
    if issubclass(kind, messages.Plain):
        fixed = bytes(range(1, kind.FORM.size + 1))
        return [fixed + rest for rest in (b"", b"text that follows", Task(3, WEIGHTS).encode(SESSION))]
    return [bytes(size) for size in (0, 16, 100)]


def message_decoder(kind: type[Message], kinds: tuple[type[Message], ...]) -> Callable[[bytes], None]:
    def decoded(body: bytes) -> None:
        message = messages.decode(bytes([kind.KIND]) + body, kinds)
        if (
            getattr(kind, "REST", "") != "text"
            and messages.decode(message.encode(), kinds).encode() != message.encode()
        ):
            raise ValueError(f"a {kind.__name__} is another one when it was encoded")

    return decoded


def machine_targets() -> Iterator[Target]:
    for kinds in (FROM_CLIENT, FROM_COORDINATOR):
        for kind in kinds:
            yield Target(
                f"message {kind.__name__}", message_decoder(kind, kinds), message_samples(kind), (MessageError, Refused)
            )
    yield Target("terms", Terms.decode, [TERMS.encode()], (MessageError,))
    yield Target("agreement differences", AGREED.differences, [AGREED.encode()], (), TEXT)
    yield Target("terms.json", lambda data: Terms.from_json(data, AGREED), [TERMS.to_json(AGREED)], each_byte=TEXT)
    yield Target("terms.json, digest", _terms_with_digest, [TERMS.to_json(AGREED)], each_byte=TEXT)


def _terms_with_digest(data: bytes) -> Terms:
    """Terms whose digest is right whatever they say."""
    try:
        fields = json.loads(data)
        fields["sha256"] = terms_digest({key: value for key, value in fields.items() if key != "sha256"})
        data = json.dumps(fields).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # no object: as it is
    return Terms.from_json(data, AGREED)


# -- the protocol's own messages, and how they travel ---------------------------------------------------------


def _residues(*shape: int) -> torch.Tensor:
    return SESSION.field.embed(torch.arange(torch.Size(shape).numel()).view(shape))


def travelling_targets() -> Iterator[Target]:
    parameters = SESSION.network.num_parameters
    head = Share(0, 0, 0, _residues(1, SESSION.row_width)).encode(SESSION)[:18]
    for kind, sample in (
        (Share, Share(3, 2, 1, _residues(3, SESSION.row_width)).encode(SESSION)),
        (Task, Task(7, WEIGHTS).encode(SESSION)),
        (Answer, Answer(7, 2, _residues(parameters)).encode(SESSION)),
    ):
        decoder = lambda data, kind=kind: kind.decode(data, SESSION)  # noqa: E731
        yield Target(f"protocol {kind.__name__}", decoder, [sample], (MessageError,))
    body = Share(3, 2, 1, _residues(3, SESSION.row_width)).encode(SESSION)[18:]
    yield Target("share body", lambda data: Share.decode(head + data, SESSION), [body], (MessageError,))
    sent = [message_samples(kind) for kind in FROM_CLIENT[:3]]
    bundled = bundle([messages.decode(bytes([FROM_CLIENT[i].KIND]) + s[0], FROM_CLIENT) for i, s in enumerate(sent)])
    yield Target("grpc bundle", unbundle, [bundled, bytes(4)], (MessageError,), each_byte=250)
    yield Target("grpc weights", _follow, _deltas(), (MessageError,), each_byte=8)
    yield from hop_targets()
    yield from flower_targets()


def hop_targets() -> Iterator[Target]:
    """What the hidden mode's messages carry: an answer to a hop, what a hop published, and a history."""
    plan, field = HIDDEN_SESSION.hidden_plan, HIDDEN_SESSION.field
    hop, moves = plan.hops(1)[0], next(hop for hop in plan.hops(1) if hop.moves_weights)
    moduli, values = len(field.moduli), num_values(hop)
    key, residues = (field.embed(torch.arange(count)) for count in (2 * KEY_WORDS, values))
    answer = HopAnswer(2, _PLACE, b"t" * 16, key, residues)
    decoded = lambda data: HopAnswer.decode_from(2, data, HIDDEN_SESSION, hop)  # noqa: E731
    yield Target("hop answer", decoded, [answer.encode(field)], (MessageError,))
    published = field.pack(torch.zeros(moduli, 1, values, dtype=field.dtype))
    unpacked = lambda data: unpack_published(HIDDEN_SESSION, hop, data)  # noqa: E731
    yield Target("hop published", unpacked, [published], (MessageError,))
    weights = field.pack(torch.zeros(moduli, 1, num_values(moves), dtype=field.dtype))
    broadcast = WeightBroadcast(Position(1, plan.hops(1).index(moves), b"c" * 32), b"w" * 32, (5, 6), weights)
    history = encode_history(History((broadcast, broadcast), (b"h" * 32,), (published, published)))
    yield Target("history", decode_history, [history, encode_history(History())], (MessageError,), each_byte=64)


def _weights_messages() -> tuple[Weights, Weights]:
    first, second = (Task(number, WEIGHTS + number).encode(SESSION) for number in (0, 1))
    return Weights(first), Weights(second)


def _deltas() -> list[bytes]:
    first, second = _weights_messages()
    sender = WeightSender()
    _, base = sender.message(first, None)
    message, _ = sender.message(second, base)
    if not isinstance(message, Delta):
        raise RuntimeError("the sender prefers the weights in full")
    return [message.encode(), second.encode(), replace(message, width=4).encode()]


def _follow(data: bytes) -> None:
    receiver = WeightReceiver()
    receiver.take(_weights_messages()[0].encode())
    receiver.take(data)


def flower_targets() -> Iterator[Target]:
    request = Request((b"one", b"another"), TERMS, b"n" * 16).encode(COORDINATOR, ROSTER)
    yield Target("flower request", lambda data: Request.decode(data, ROSTER), [request])
    reply = Reply(2, (b"one", b"another")).encode(CLIENTS[2], ROSTER, REQUEST)
    refusal = Reply(2, refusal="no").encode(CLIENTS[2], ROSTER, REQUEST)
    yield Target("flower reply", lambda data: Reply.decode(data, ROSTER, REQUEST, 10**6), [reply, refusal])
    yield Target("flower request, signed", _signed_request, [request[:-64]], each_byte=250)
    yield Target("flower reply, signed", _signed_reply, [reply[:-64], refusal[:-64]], each_byte=250)


def _signed_request(data: bytes) -> Request:
    signature = COORDINATOR.sign("flower request", bytes.fromhex(ROSTER.digest) + data)
    return Request.decode(data + signature, ROSTER)


def _signed_reply(data: bytes) -> Reply:
    client = CLIENTS[data[1] % len(CLIENTS)] if len(data) > 1 else CLIENTS[0]
    bound = bytes.fromhex(ROSTER.digest) + hashlib.sha256(REQUEST).digest()
    return Reply.decode(data + client.sign("flower reply", bound + data), ROSTER, REQUEST, 10**6)


# -- sealing --------------------------------------------------------------------------------------------------

_CONTEXT = SealContext(SESSION.sharing_id, 1, 2, 0, 3)


def sealing_targets() -> Iterator[Target]:
    sealed = seal(CLIENTS[1], CLIENTS[2].member, _CONTEXT, b"a share")
    opened = lambda data: open_sealed(CLIENTS[2], CLIENTS[1].member, _CONTEXT, data)  # noqa: E731
    yield Target("envelope", opened, [sealed], (SealError,))
    place = folder() / "sealing"
    place.mkdir(exist_ok=True)
    for name, value, load in (("card", CLIENTS[1].card, Card.load), ("roster", ROSTER, Roster.load)):
        value.save(place / f"{name}.json")
        decoder = lambda data, name=name, load=load: load(written(f"sealing/read.{name}", data))  # noqa: E731
        yield Target(name, decoder, [(place / f"{name}.json").read_bytes()], REFUSED, TEXT)
    CLIENTS[1].save(folder() / "identity")
    identity = (folder() / "identity" / IDENTITY_FILE).read_bytes()
    yield Target("identity", _identity, [identity], REFUSED, TEXT)
    key = _der(private_pem(CLIENTS[1].tls_key))
    yield Target("tls key", lambda data: load_tls_key(written("tls.pem", _pem("PRIVATE KEY", data))), [key], REFUSED)
    yield Target("tls key, PEM", lambda data: load_tls_key(written("tls.pem", data)), [private_pem(CLIENTS[1].tls_key)])
    authority = CertificateAuthority.create()
    request = certificate_request(CLIENTS[1], ["one.example", "127.0.0.1"])
    certificate = authority.sign(request, server=["one.example"])
    yield Target("certificate", lambda data: _look_at(_pem("CERTIFICATE", data)), [_der(certificate)], REFUSED)
    yield Target("certificate, PEM", _look_at, [certificate], REFUSED)
    asked = lambda data: authority.sign(_pem("CERTIFICATE REQUEST", data))  # noqa: E731
    yield Target("certificate request", asked, [_der(request)], REFUSED)


def _identity(data: bytes) -> Identity:
    written(f"identity/{IDENTITY_FILE}", data)
    written(f"identity/{TLS_KEY_FILE}", private_pem(CLIENTS[1].tls_key))
    return Identity.load(folder() / "identity")


def _look_at(certificate: bytes) -> None:
    """All that is asked of a certificate. Each question gets its answer, whatever came of the others."""
    member: Any = CLIENTS[1].member
    refused: IdentityError | None = None
    for question in (lambda data: check_certificate(data, member), valid_until, describe):
        try:
            question(certificate)
        except IdentityError as error:
            refused = error
    if refused is not None:
        raise refused


def _der(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(line for line in pem.splitlines() if not line.startswith(b"-----")))


def _pem(label: str, der: bytes) -> bytes:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n".encode()


def wire_targets() -> Iterator[Target]:
    yield from machine_targets()
    yield from travelling_targets()
    yield from sealing_targets()
