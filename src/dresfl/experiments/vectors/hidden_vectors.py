"""Test vectors of the hidden mode: two small runs, hop by hop, as one client plays them, and what must be refused.

Residues and integers are decimal strings, bytes are hexadecimal. Seeds and nonces are hashes of published strings: for
testing and for nothing else.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dresfl.errors import DresError
from dresfl.federation import Agreement, Terms, messages, sharing_nonce
from dresfl.federation.confirming import sign_confirmed
from dresfl.federation.hidden_work import START_PURPOSE
from dresfl.field import SecretSeed
from dresfl.masking import HiddenMasks
from dresfl.model import Dense, Square
from dresfl.optimizers import Optimizer
from dresfl.protocol import (
    Client,
    MemoryTable,
    Session,
    Verdict,
    coin_commitment,
    common_coins,
    held_set_ups,
    seeds_of,
)
from dresfl.protocol.hidden.archive import Archive, encode_history
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import Ledger, Position
from dresfl.protocol.hidden.opening import HopOpening, loss_of
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.protocol.hidden.start import start_text

from .sealing_vectors import fixed_identity, fixed_secret

_CLIENT = 1  # whose answers are shown
_PURPOSES = ("zeros", "key", "key zeros", "key sums", "chi", "pad")


def make_hidden_vectors() -> dict[str, Any]:
    """One run with a shard, check C and validations; one with two shards and a model for clients alone."""
    one = HiddenSettings(schedule="S2", check="C", trusted_dealers=True, validation_every=2, validation_share=0.4)
    two = HiddenSettings(schedule="S4", trusted_dealers=True, honest_clients=True, model_for="clients")
    return {
        "one shard": _run("one shard", 5, 1, (3, 4, 3, 2, 5), 3, one),
        "two shards": _run("two shards", 9, 2, (3, 2, 4, 2, 3, 2, 1, 2, 5), 2, two),
    }


def _run(
    name: str, num_clients: int, num_shards: int, rows: Sequence[int], rounds: int, settings: HiddenSettings
) -> dict[str, Any]:
    agreement = Agreement(
        layers=(Dense(2), Square(), Dense(2)),
        input_shape=(3,),
        num_clients=num_clients,
        rounds=rounds,
        input_bits=2,
        num_shards=num_shards,
        batch_size=2,
        seed=7,
        roster=fixed_secret("hidden roster").hex(),
        mode="hidden",
        hidden=settings,
        optimizer=Optimizer(method="momentum", learning_rate=0.05, schedule="cosine", weight_decay=0.001),
    )
    coins = [fixed_secret(f"hidden coin {i}") for i in range(num_clients)]
    contributions = tuple(
        fixed_secret(f"hidden contribution {i}") + coin_commitment(coin) for i, coin in enumerate(coins)
    )
    own_bytes, run_nonce = fixed_secret(f"hidden own bytes {name}")[:16], fixed_secret(f"hidden run {name}")[:16]
    terms = Terms(sharing_nonce(own_bytes, contributions), run_nonce, own_bytes, tuple(rows), contributions)
    before = terms.session(agreement)
    session = terms.run_session(agreement, before, Verdict(), common_coins(coins))
    data = [_rows(i, count) for i, count in enumerate(rows)]
    tables = _shared(session, data)
    held = [seeds_of(held_set_ups(session, i, table)) for i, table in enumerate(tables)]
    seeds = {number: seed.reveal().hex() for own in held for number, seed in own.items()}
    clients = [_client(session, i, table, held[i]) for i, table in enumerate(tables)]
    plan, sets = session.hidden_plan, session.seed_sets
    played, history, sealed = _play(session, clients, held[_CLIENT])
    model = clients[_CLIENT].model
    encoded = {name: message.encode() for name, message in _messages(session, played, history, sealed).items()}
    return {
        "agreement": agreement.encode().decode("ascii"),
        "client_rows": list(rows),
        "terms": terms.encode().hex(),
        "coins": [coin.hex() for coin in coins],
        "sharing_digest": session.sharing_digest.hex(),
        "run_digest": session.run.hex(),
        "session_id": session.session_id.hex(),
        "moduli": [str(p) for p in plan.moduli],
        "answers_needed": plan.answers_needed,
        "hops": [_planned(session, number) for number in range(rounds)],
        "steps": [
            [[step.shift, step.multiplier, step.keep, step.recall] for step in plan.steps(number)]
            for number in range(rounds)
        ],
        "sets": [list(members) for members in sets.sets],
        "seed_dealers": [sets.dealer(number) for number in range(len(sets.sets))],
        "seeds": [seeds[number] for number in sorted(seeds)],
        "rows": [[[str(x) for x in row] for row in torch.cat(own, 1).tolist()] for own in data],
        "client": _CLIENT,
        "shares": [
            _residues(session, tables[_CLIENT].rows(torch.full((n,), dealer), torch.arange(n)))
            for dealer, n in enumerate(map(session.coded_rows, range(num_clients)))
        ],
        "batches": [_pairs(session, number) for number in range(rounds)],
        "first_weights": [str(w) for w in plan.initial_weights(session.stream).tolist()],
        "played": played,
        "history": history,
        "model": [] if model is None else [str(weight) for weight in model.tolist()],
        "refused": _refused(session, tables[_CLIENT], held[_CLIENT], bytes.fromhex(played[0]["published"])),
        "messages": {name: data.hex() for name, data in encoded.items()},
        "refused_messages": [
            {"expected": name, "what": what, "message": data.hex()} for name, what, data in _refused_messages(encoded)
        ],
    }


def _rows(client: int, count: int) -> tuple[Tensor, Tensor]:
    """Row r of client i: inputs (i + 3r + 0, 1, 2) modulo 5, class (i + r) modulo 2."""
    places = torch.arange(count)
    inputs = (client + 3 * places.view(-1, 1) + torch.arange(3)) % 5
    return inputs.to(torch.int32), torch.nn.functional.one_hot((client + places) % 2, 2).to(torch.int32)


def _shared(session: Session, data: Sequence[tuple[Tensor, Tensor]]) -> list[MemoryTable]:
    tables = [MemoryTable(session) for _ in data]
    dealers = [
        Client(session, i, SecretSeed(fixed_secret(f"hidden client {i}")), *rows, tables[i])
        for i, rows in enumerate(data)
    ]
    everybody = range(session.num_clients)
    for dealer in dealers:
        for share in dealer.deal_to(everybody):
            dealers[share.receiver].receive(share)
        for receiver, values in zip(everybody, dealer.deal_set_up(everybody), strict=True):
            dealers[receiver].receive_set_up(dealer.index, values)
    return tables


def _client(session: Session, index: int, table: MemoryTable, held: dict[int, SecretSeed]) -> HiddenClient:
    client = HiddenClient(session, index, TableRows(session, table), RunSeeds.begin(held, session.run))
    client.start(session.num_clients)
    return client


def _residues(session: Session, elements: Tensor) -> Any:
    p = torch.tensor(session.field.moduli).view(-1, *[1] * (elements.dim() - 1))

    def walk(value: Any) -> Any:
        return [walk(entry) for entry in value] if isinstance(value, list) else str(value)

    return walk((elements.to(torch.int64) % p).tolist())


def _pairs(session: Session, number: int) -> list[list[int]]:
    batch = session.batch_rows(number)
    return [list(pair) for pair in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)]


def _planned(session: Session, number: int) -> list[dict[str, Any]]:
    return [
        {"total": hop.total, "items": [[i.count, i.shift, i.bits if i.shift else None] for i in hop.items]}
        for hop in session.hidden_plan.hops(number)
    ]


def _play(
    session: Session, clients: Sequence[HiddenClient], held: dict[int, SecretSeed]
) -> tuple[list[dict[str, Any]], dict[str, str], list[bytes]]:
    """Every hop as the shown client sees it, the history for one that comes back, and what is sealed for check C."""
    ledger, archive, played = Ledger(session.hidden_plan, session.run), Archive(), []
    history: dict[str, str] = {}
    sealed: list[bytes] = []  # of all clients, after the first hop
    while not ledger.ended:
        opening, own = HopOpening(session, ledger), clients[_CLIENT].answer()
        if own is None:
            raise DresError("the shown client is silent")
        answers = [client.answer() for client in clients]
        found = [opening.add(answer) for answer in answers if answer is not None]
        published = next(opened.published for opened in found if opened is not None)
        entry: dict[str, Any] = {
            "round": ledger.round_number,
            "hop": ledger.hop,
            "chain": ledger.chain.hex(),
            "omega": ledger.weights_digest.hex(),
            "labels": {purpose: ledger.label(purpose.encode()).hex() for purpose in _PURPOSES},
            **_masks(session, ledger, held),
            "answer": own.encode(session.field).hex(),
            "published": published.hex(),
        }
        loss = loss_of(session, ledger, published)
        archive.note(ledger, published)
        ledger.advance(published, loss)
        for client in clients:
            client.receive(published)
        values = {client.index: client.check_value for client in clients if client.check_value is not None}
        if values:
            entry["confirmed"] = [_residues(session, values[index]) for index in sorted(values)]
            sealed = sealed or [client.sealed_check() or b"" for client in clients]
            for client in clients:
                client.confirm(values)
        entry["after"] = {"chain": ledger.chain.hex(), "rho": ledger.after_label(b"rho").hex()}
        entry |= {} if loss is None else {"loss": str(loss)}
        played.append(entry)
        if ledger.round_number == session.hidden_plan.rounds - 1 and ledger.hop == 1:
            data = encode_history(archive.history(ledger))
            history = {"history": data.hex(), "chain": ledger.chain.hex()}
    return played, history, sealed


def _messages(
    session: Session, played: Sequence[dict[str, Any]], history: dict[str, str], sealed: Sequence[bytes]
) -> dict[str, messages.Message]:
    """One message of each kind that a hidden run needs. With check C: of the first hop."""
    identities = [fixed_identity(f"client-{i}") for i in range(session.num_clients)]
    first, second = played[:2]
    starts = [identity.sign(START_PURPOSE, start_text(session.run)) for identity in identities]
    place = Position(second["round"], second["hop"], bytes.fromhex(second["chain"]))
    data = bytes.fromhex(history["history"])
    last = Position(session.hidden_plan.rounds - 1, 1, bytes.fromhex(history["chain"]))
    found: dict[str, messages.Message] = {
        "HopAnswered": messages.HopAnswered(bytes.fromhex(first["answer"])),
        "Standing": messages.Standing.at(place, starts[_CLIENT], holds_check=True, behind=False),
        "Opened": messages.Opened(first["round"], first["hop"], bytes.fromhex(first["published"])),
        "Resume": messages.Resume(*last.order, last.chain, data),
        "Resume of one that is there": messages.Resume(*place.order, place.chain, b""),
        "Alarm": messages.Alarm("the answers of clients [0, 1, 2, 3] to hop 0 of round 1 do not agree"),
        "Started": messages.Started(tuple(enumerate(starts))),
    }
    if sealed:
        confirmed = [
            sign_confirmed(identity, session.run, place, value)
            for identity, value in zip(identities, sealed, strict=True)
        ]
        found["Confirmed"] = confirmed[_CLIENT]
        values = tuple((i, one.signature, one.sealed) for i, one in enumerate(confirmed))
        found["Confirmations"] = messages.Confirmations(place, values)
    return found


def _refused_messages(encoded: dict[str, bytes]) -> list[tuple[str, str, bytes]]:
    """Messages that must be refused where the message named is expected."""
    cases = [
        ("Standing", "a byte less", encoded["Standing"][:-1]),
        ("Standing", "a byte more", encoded["Standing"] + b"\x00"),
        ("Started", "a client less than it says", encoded["Started"][:-66]),
        ("Started", "a byte more", encoded["Started"] + b"\x00"),
        ("Opened", "no hop", encoded["Opened"][:5]),
        ("Resume", "half a chain", encoded["Resume"][:20]),
        ("Alarm", "a text of 1,001 bytes", encoded["Alarm"][:1] + b"x" * 1001),
    ]
    if "Confirmations" in encoded:
        cases.append(("Confirmations", "a byte less", encoded["Confirmations"][:-1]))
    for name, what, data in cases:
        kind = {kind.__name__: kind for kind in (*messages.FROM_CLIENT, *messages.FROM_COORDINATOR)}[name]
        try:
            messages.decode(data, (kind,))
        except DresError:
            continue
        raise DresError(f"{name} with {what} was not refused")
    return cases


def _masks(session: Session, ledger: Ledger, held: dict[int, SecretSeed]) -> dict[str, Any]:
    """What the shown client expands for a hop: the high and low parts of each item's masks, zeros, Q."""
    hop, plan = ledger.current, session.hidden_plan
    seeds = RunSeeds.begin(held, session.run).of(ledger.round_number)
    masks = HiddenMasks(session.field, session.hidden_families, _CLIENT, seeds)
    items = []
    for number, item in enumerate(hop.items):
        if item.shift is None:
            continue
        sizes = {b"high": plan.mask_bits(item), b"low": item.shift}
        shares = {
            purpose.decode(): _residues(
                session, masks.bounded(ledger.label(purpose, number), bits, item.count, total=hop.total)[0]
            )
            for purpose, bits in sizes.items()
        }
        items.append({"item": number, **shares})
    words = 6 * (session.num_shards + 1)
    return {
        "masks": items,
        "zeros": _residues(session, masks.zeros(ledger.label(b"zeros"), hop.count, total=hop.total)),
        "key": _residues(session, masks.common(ledger.label(b"key"), words)),
    }


def _refused(
    session: Session, table: MemoryTable, held: dict[int, SecretSeed], published: bytes
) -> list[dict[str, str]]:
    """First hops that a client must not go on from. `expected`: it refuses the message, or leaves the run for good."""
    largest = session.field.moduli[0].to_bytes(3, "little")
    bad = [
        ("too short", published[:-1], "refused"),
        ("too long", published + b"\0", "refused"),
        ("a residue that is its modulus", largest + published[3:], "refused"),
        ("a value far below the masks", _moved(published, session.field.moduli), "leaves"),
    ]
    found = []
    for what, data, expected in bad:
        client = _client(session, _CLIENT, table, held)
        client.answer()
        try:
            client.receive(data)
        except DresError:
            found.append({"what": what, "published": data.hex(), "expected": expected})
            continue
        raise DresError(f"{what} was not refused")
    return found


def _moved(published: bytes, moduli: Sequence[int]) -> bytes:
    """The first value made −⌊M/4⌋, which no honest hop publishes."""
    size, value, moved = len(published) // len(moduli), -(math.prod(moduli) // 4), bytearray(published)
    for channel, p in enumerate(moduli):
        moved[channel * size : channel * size + 3] = (value % p).to_bytes(3, "little")
    return bytes(moved)
