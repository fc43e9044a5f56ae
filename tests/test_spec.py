"""SPEC.md against the test vectors: a second reader (reference/spec.py), made of the page alone.

Byte layouts are not written here but parsed from SPEC.md, and labels are looked up there: a wrong table or label on the
page makes these tests fail. Only the last tests compare the page with the package itself.
"""

import hmac
import importlib
import inspect
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dresfl.federation import Windows, messages
from dresfl.federation.agreement import FORMAT as agreement_format
from dresfl.federation.terms import FORMAT as terms_format
from dresfl.protocol.messages import VERSION as protocol_version
from dresfl.runtimes.grpc_runtime.streams import METHOD, SERVICE
from dresfl.storage.checkpoint import FORMAT as CHECKPOINT_FORMAT
from dresfl.storage.share_store import FORMAT as store_format
from reference import masks
from reference.spec import (
    SPEC,
    Invalid,
    block,
    derived,
    digits,
    drawn,
    hidden_rows,
    hkdf,
    joined,
    label,
    mask,
    pack,
    public_key,
    read,
    session_text,
    sha256,
    sharing_text,
    table,
    weights_sha256,
    word,
)

ROOT = Path(__file__).parents[1]
VECTORS: dict[str, Any] = json.loads((ROOT / "tests" / "vectors" / "round.json").read_text())
NETWORK, SEALING = VECTORS["network"], VECTORS["sealing"]

MESSAGES = ["Hello", "Holding", "Ready", "Slice", "Ack", "Reject", "Answered", "Informed", "Declined", "Checked"]
MESSAGES += ["Wait", "Begin", "Request", "Relayed", "Weights", "Delta", "Done", "Check", "Judged"]
HIDDEN = ["Attested", "HopAnswered", "Standing", "Confirmed", "Counted", "SetSigned", "Added"]
HIDDEN += ["Attestations", "Opened", "Resume", "Confirmations", "Alarm", "Started", "DealersOf", "Release", "TotalsOf"]


# -- section 2: participants ----------------------------------------------------------------------------------------


def secret(what: str) -> bytes:
    return sha256(label("dresfl vectors "), what.encode())


def member(name: str) -> bytes:
    """The public bytes of a participant of the vectors, from the secrets that the page tells."""
    scalar = int.from_bytes(secret(f"tls {name}"), "big")
    tls = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    return pack(
        "member",
        length=len(name),
        name=name.encode(),
        sealing_key=X25519PrivateKey.from_private_bytes(secret(f"sealing {name}")).public_key().public_bytes_raw(),
        signing_key=Ed25519PrivateKey.from_private_bytes(secret(f"signing {name}")).public_key().public_bytes_raw(),
        tls_spki_sha256=sha256(tls.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)),
    )


def signed(name: str, purpose: str, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret(f"signing {name}")).sign(to_sign(purpose, message))


def to_sign(purpose: str, message: bytes) -> bytes:
    terms = {"length of purpose u8": bytes([len(purpose)]), "purpose": label(purpose), "message": message}
    return joined("signature(purpose, message)", terms)


def roster_digest(maker: str, server: str, clients: list[str]) -> bytes:
    first, second, *rest = [*map(member, clients), b""]
    terms = {"maker": member(maker), "server": member(server), "number of clients u32": struct.pack("<I", len(clients))}
    return sha256(joined("roster body", {**terms, "client 0": first, "client 1": second, "…": b"".join(rest)}))


def test_the_page_names_the_vectors_format() -> None:
    assert f'`format` is "{VECTORS["format"]}"' in SPEC


def test_parties() -> None:
    for participant in SEALING["participants"]:
        own = member(participant["name"])
        assert own.hex() == participant["public_bytes"]
        assert signed(participant["name"], "card", own).hex() == participant["card_signature"]
        assert digits(sha256(joined("fingerprint of a member", {"member": own}))) == participant["fingerprint"]
        found = read("member", own)
        assert found["name"].decode() == participant["name"]
        for key in ("sealing_key", "signing_key", "tls_spki_sha256"):
            assert found[key].hex() == participant[key]


def test_rosters() -> None:
    roster = SEALING["roster"]
    digest = roster_digest(roster["maker"], roster["server"], roster["clients"])
    assert (digest.hex(), digits(digest)) == (roster["digest"], roster["fingerprint"])
    assert signed(roster["maker"], "roster", digest).hex() == roster["signature"]
    assert roster_digest("coordinator", "coordinator", NETWORK["clients"]).hex() == NETWORK["roster_sha256"]


# -- sections 4 to 6: agreement and identities -----------------------------------------------------------------


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def test_the_agreement() -> None:
    assert f'| `format` | "{json.loads(NETWORK["agreement"])["format"]}" |' in SPEC
    assert block("agreement") == NETWORK["agreement"] == canonical(json.loads(NETWORK["agreement"]))
    assert sha256(NETWORK["agreement"].encode()).hex() == NETWORK["agreement_sha256"]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", SPEC, re.M))))
    assert set(json.loads(NETWORK["agreement"])) <= named


def test_layers_are_as_the_page_lists_them() -> None:
    for layer in json.loads(NETWORK["agreement"])["layers"]:
        row = re.search(rf"^\| `{layer['kind']}` \|(.*)\|$", SPEC, re.M)
        assert row
        assert set(re.findall(r"`(\w+)`", row[1])) == set(layer) - {"kind"}


def test_identities() -> None:
    contributions = [bytes.fromhex(contribution) for contribution in NETWORK["contributions"]]
    terms = {"own bytes": bytes.fromhex(NETWORK["own_bytes"]), "contribution 0": contributions[0]}
    terms |= {"contribution 1": contributions[1], "…": b"".join(contributions[2:])}
    nonce = sha256(joined("sharing nonce", terms))
    assert nonce.hex() == NETWORK["nonce"]
    agreement, moduli = json.loads(NETWORK["agreement"]), list(map(int, NETWORK["moduli"]))
    sharing = sharing_text(agreement, NETWORK["client_rows"], moduli, NETWORK["nonce"])
    assert block("sharing") == sharing
    digest = sha256(sharing.encode())
    assert (digest.hex(), digest[:16].hex()) == (NETWORK["sharing_digest"], NETWORK["sharing_id"])
    session = session_text(agreement, digest.hex(), NETWORK["run_nonce"])
    assert block("session") == session
    assert sha256(session.encode())[:16].hex() == NETWORK["session_id"]


def round_agreement() -> dict[str, Any]:
    """The other vectors, of one round in one process, as an agreement: no nonces, default layers."""
    dense = {"kind": "dense", "units": 2, "weight_bits": None, "init": None}
    same = ("num_clients", "num_shards", "max_colluders", "batch_size", "input_bits", "weight_bits", "seed")
    return {
        **{key: VECTORS[key] for key in same},
        "layers": [dense, {"kind": "square"}, dense],
        "input_shape": [3],
        "input_bound": 1.0,
    }


def test_identities_of_the_round() -> None:
    rows = [len(inputs) for inputs in VECTORS["inputs"]]
    digest = sha256(sharing_text(round_agreement(), rows, list(map(int, VECTORS["moduli"])), "").encode())
    assert digest[:16].hex() == VECTORS["sharing_id"]
    assert sha256(session_text(round_agreement(), digest.hex(), "").encode())[:16].hex() == VECTORS["session_id"]


# -- section 5: numbers that follow ----------------------------------------------------------------------------


def test_derived_numbers() -> None:
    for agreement, vectors in ((json.loads(NETWORK["agreement"]), NETWORK), (round_agreement(), VECTORS)):
        threshold, moduli, _ = derived(agreement)
        assert (threshold, [str(p) for p in moduli]) == (vectors["recovery_threshold"], vectors["moduli"])


def sizes() -> dict[str, Any]:
    """What the tables of the network's messages refer to."""
    agreement = json.loads(NETWORK["agreement"])
    threshold, moduli, parameters = derived(agreement)
    return {"moduli": moduli, "M": len(moduli), "P": parameters, "W": 5, "R": threshold}


def test_coded_rows_and_points() -> None:
    shards, masks = VECTORS["num_shards"], VECTORS["max_colluders"]
    assert VECTORS["coded_rows"] == [hidden_rows(len(rows), shards) for rows in VECTORS["inputs"]]
    assert VECTORS["data_points"] == list(range(1, shards + 1))
    assert VECTORS["mask_points"] == list(range(shards + 1, shards + masks + 1))
    assert VECTORS["client_points"] == [shards + masks + 1 + j for j in range(VECTORS["num_clients"])]


# -- section 7: messages ---------------------------------------------------------------------------------------


def test_messages_of_the_round() -> None:
    _, moduli, parameters = derived(round_agreement())
    known = {"moduli": moduli, "M": len(moduli), "P": parameters, "W": 5}
    share, task, answer = (bytes.fromhex(VECTORS["messages"][kind]) for kind in ("share", "task", "answer"))
    found = read("Share", share, **known)
    assert found["sharing_id"].hex() == VECTORS["sharing_id"]
    place = VECTORS["shares"][found["dealer"]][found["receiver"]]
    assert found["residues"] == [[int(x) for row in channel for x in row] for channel in place]
    found = read("Task", task, **known)
    assert (found["session_id"].hex(), found["round"]) == (VECTORS["session_id"], VECTORS["round"])
    assert [str(weight) for (weight,) in found["weights"]] == VECTORS["weights"]
    found = read("Answer", answer, **known)
    assert found["residues"] == [list(map(int, channel)) for channel in VECTORS["answers"][found["client"]]]
    for name, data in (("Share", share), ("Task", task), ("Answer", answer)):
        for wrong in (data[:-1], data + b"\0", b"\1" + data[1:], data[:1] + b"\4" + data[2:]):
            with pytest.raises(Invalid):
                read(name, wrong, **known)
    with pytest.raises(Invalid):
        read("Answer", answer[:-3] + b"\xff\xff\xff", **known)


# -- section 8: envelopes --------------------------------------------------------------------------------------


def opened(sender: str, receiver: str, context: bytes, envelope: bytes) -> bytes:
    found = read("envelope", envelope)
    own = X25519PrivateKey.from_private_bytes(secret(f"sealing {receiver}"))
    theirs = read("member", member(sender))["sealing_key"]
    try:
        fresh, standing = (own.exchange(X25519PublicKey.from_public_bytes(key)) for key in (found["ephemeral"], theirs))
        both = joined("secret", {"X25519(e, R)": fresh, "X25519(s, R)": standing})
        members = {"sender's member": member(sender), "receiver's member": member(receiver)}
        info = joined("info", {"E": found["ephemeral"], **members, "context": context})
        return ChaCha20Poly1305(hkdf(both, info)).decrypt(bytes(12), found["ciphertext"], context)
    except (InvalidTag, ValueError) as error:
        raise Invalid("it does not open") from error


def test_envelopes() -> None:
    for case in SEALING["envelopes"]:
        place = {key: case[key] for key in ("dealer", "slice_number", "num_slices")}
        context = pack(
            "context", sharing_id=bytes.fromhex(case["sharing_id"]), receiver=case["receiver_number"], **place
        )
        assert context.hex() == case["context"]
        sealed = bytes.fromhex(case["sealed"])
        assert opened(case["sender"], case["receiver"], context, sealed).hex() == case["plaintext"]
        assert len(sealed) == len(case["plaintext"]) // 2 + 49


def test_envelopes_that_must_not_open() -> None:
    for case in SEALING["refused"]:
        with pytest.raises(Invalid):
            opened(case["sender"], case["receiver"], bytes.fromhex(case["context"]), bytes.fromhex(case["sealed"]))


# -- section 9: messages ---------------------------------------------------------------------------------------


def message(name: str) -> dict[str, Any]:
    return read(name.split()[0], bytes.fromhex(NETWORK["messages"][name]), **sizes())


def test_every_message_of_the_vectors_has_a_table() -> None:
    assert {name.split()[0] for name in NETWORK["messages"]} == set(MESSAGES)
    for name in NETWORK["messages"]:
        message(name)


def test_messages_that_must_be_refused() -> None:
    for case in NETWORK["refused"]:
        with pytest.raises(Invalid):
            read(case["expected"], bytes.fromhex(case["message"]), **sizes())


@pytest.mark.parametrize(("name", "most"), [("Hello", 65536), ("Holding", 65536), ("Wait", 1000), ("Reject", 1000)])
def test_fields_at_the_end_have_a_limit(name: str, most: int) -> None:
    data = bytes.fromhex(NETWORK["messages"][name])
    last = message(name)[table(name)[-1][0]]
    head = data[: len(data) - len(last)]
    read(name, head + bytes(most), **sizes())
    with pytest.raises(Invalid):
        read(name, head + bytes(most + 1), **sizes())


def test_hello_and_begin() -> None:
    hello, begin = message("Hello"), message("Begin")
    place = NETWORK["challenged"]
    assert hello["agreement"].decode() == NETWORK["agreement"]
    assert (hello["challenge"].hex(), hello["rows"]) == (NETWORK["challenge"], NETWORK["client_rows"][place])
    assert hello["contribution"].hex() == NETWORK["contributions"][place]
    assert hello["held_nonce"] == bytes(32)
    assert [rows for rows, _ in begin["clients"]] == NETWORK["client_rows"]
    assert [contribution.hex() for _, contribution in begin["clients"]] == NETWORK["contributions"]
    for field in ("run_nonce", "nonce", "own_bytes"):
        assert begin[field].hex() == NETWORK[field]
    follows = bytes.fromhex(NETWORK["messages"]["Begin"])[1 + 64 :]
    terms = {"challenge of the Hello": hello["challenge"], "number of the client u16": struct.pack("<H", place)}
    terms |= {"roster digest": bytes.fromhex(NETWORK["roster_sha256"]), "all that follows the signature": follows}
    key = Ed25519PublicKey.from_public_bytes(read("member", member("coordinator"))["signing_key"])
    whole = to_sign("begin", joined("signed", terms))
    key.verify(begin["signature"], whole)
    with pytest.raises(InvalidSignature):
        key.verify(begin["signature"], whole[:-1] + b"\0")


def test_the_relay() -> None:
    assert message("Ready")["sharing_id"].hex() == NETWORK["sharing_id"]
    request, dealt, sent, ack = (message(name) for name in ("Request", "Slice", "Relayed", "Ack"))
    assert (dealt["receiver"], dealt["slice"]) == (request["receiver"], request["slice"])
    assert (sent["dealer"], sent["slice"]) == (ack["dealer"], ack["slice"]) == (message("Reject")["dealer"], 0)
    dealer, receiver = sent["dealer"], request["receiver"]
    assert receiver == NETWORK["challenged"]
    context = pack(
        "context",
        sharing_id=bytes.fromhex(NETWORK["sharing_id"]),
        dealer=dealer,
        receiver=receiver,
        slice_number=0,
        num_slices=1,
    )
    names = NETWORK["clients"]
    content = opened(names[dealer], names[receiver], context, sent["sealed"])
    assert dealt["sealed"] == sent["sealed"]
    assert content.hex() == NETWORK["share"] + NETWORK["set_ups"][dealer]  # it is the dealer's last slice
    share = bytes.fromhex(NETWORK["share"])
    found = read("Share", share, **sizes())
    assert (found["dealer"], found["receiver"], found["first_row"]) == (dealer, receiver, 0)
    assert found["rows"] == NETWORK["client_rows"][dealer]
    held = message("Holding")["held"]
    assert [8 * a + b for a, byte in enumerate(held) for b in range(8) if byte >> b & 1] == NETWORK["held"]
    assert message("Holding nothing")["held"] == b""
    assert message("Reject")["reason"] == b"it does not open"
    assert message("Wait")["reason"] == b"2 of 5 clients are missing"


def test_weights_and_delta() -> None:
    first = read("Task", message("Weights")["task"], **sizes())
    delta, width = message("Delta"), message("Delta")["width"]
    assert (delta["base_round"], first["session_id"].hex()) == (first["round"], NETWORK["session_id"])
    raw = zlib.decompress(delta["packed"])
    assert len(raw) == sizes()["P"] * width
    moves = [int.from_bytes(raw[i : i + width], "little", signed=True) for i in range(0, len(raw), width)]
    weights = [weight + move for (weight,), move in zip(first["weights"], moves, strict=True)]
    assert weights_sha256(weights) == delta["weights_sha256"]
    assert delta["weights_sha256"].hex() == NETWORK["later_weights_sha256"]
    later = read("Task", bytes.fromhex(NETWORK["later_task"]), **sizes())
    assert (later["round"], [weight for (weight,) in later["weights"]]) == (delta["round"], weights)
    done = read("Task", message("Done")["task"], **sizes())
    assert done["round"] == message("Informed")["rounds"] == json.loads(NETWORK["agreement"])["rounds"]


def test_answered() -> None:
    answered = message("Answered")
    answer = read("Answer", answered["answer"], **sizes())
    assert (answer["round"], answer["client"]) == (answered["round"], NETWORK["challenged"])
    assert answer["session_id"].hex() == NETWORK["session_id"]


# -- section 13: randomness ------------------------------------------------------------------------------------


def test_batches() -> None:
    rows = [len(inputs) for inputs in VECTORS["inputs"]]
    got = drawn(rows, VECTORS["batch_size"], VECTORS["num_shards"], VECTORS["seed"], VECTORS["round"])
    assert got == VECTORS["batch"]


def test_masks_and_shares_of_the_round() -> None:
    sharing_id, width = bytes.fromhex(VECTORS["sharing_id"]), 5
    for dealer, coded in enumerate(VECTORS["coded_rows"][:4]):
        seed = bytes.fromhex(VECTORS["secrets"][dealer])
        for channel, p in enumerate(map(int, VECTORS["moduli"])):
            for row in range(len(coded)):
                found = [mask(seed, sharing_id, p, row, channel * width + column) for column in range(width)]
                assert [str(x) for x in found] == VECTORS["masks"][dealer][channel][row]


def test_masks_are_rejection_sampled() -> None:
    """A modulus just above 2^31 rejects half of the words."""
    p = 2**31 + 11
    values = [mask(bytes(32), bytes(16), p, 0, j) for j in range(16)]
    assert all(value < p for value in values)
    key = hmac.digest(bytes(32), b"dresfl masks" + bytes(16), "sha256")
    assert any(value != word(key, "masks", 0, j) % p for j, value in enumerate(values))


def own_rows(count: int) -> list[list[int]]:
    """A client's rows in the network's vectors: inputs that count up modulo 5, targets that alternate."""
    return [[(3 * i + j) % 5 for j in range(3)] + [int(i % 2 == c) for c in range(2)] for i in range(count)]


def dealt(dealer: int, receiver: int, p: int, channel: int) -> list[list[int]]:
    """Section 14, for K = T = 1: the line through (1, row) and (2, mask), at the receiver's point."""
    seed, sharing_id = bytes.fromhex(NETWORK["mask_secrets"][dealer]), bytes.fromhex(NETWORK["sharing_id"])
    out, step = [], 3 + receiver - 1
    for r, row in enumerate(own_rows(NETWORK["client_rows"][dealer])):
        masks = [mask(seed, sharing_id, p, r, channel * 5 + column) for column in range(5)]
        out.append([(x + (u - x) * step) % p for x, u in zip(row, masks, strict=True)])
    return out


def test_the_dealt_share() -> None:
    share = read("Share", bytes.fromhex(NETWORK["share"]), **sizes())
    for channel, p in enumerate(sizes()["moduli"]):
        rows = dealt(share["dealer"], share["receiver"], p, channel)
        assert share["residues"][channel] == [x for row in rows for x in row]


def test_the_answer() -> None:
    """A whole client in a few lines: its shares of the batch, and the gradient of dense 2, square, dense 2 on them."""
    answered, agreement = message("Answered"), json.loads(NETWORK["agreement"])
    answer = read("Answer", answered["answer"], **sizes())
    w = [weight for (weight,) in read("Task", message("Weights")["task"], **sizes())["weights"]]
    w1, b1, w2, b2 = [w[0:2], w[2:4], w[4:6]], w[6:8], [w[8:10], w[10:12]], w[12:14]
    s0 = agreement["input_bits"]
    s1 = 2 * (s0 + agreement["weight_bits"])
    out = s1 + agreement["layers"][2]["weight_bits"]
    batch = drawn(NETWORK["client_rows"], agreement["batch_size"], 1, agreement["seed"], answered["round"])
    for channel, p in enumerate(sizes()["moduli"]):
        total = [0] * len(w)
        for dealer, row in batch:
            coded = dealt(dealer, answer["client"], p, channel)[row]
            x, y = coded[:3], coded[3:]
            z = [sum(x[i] * w1[i][h] for i in range(3)) + 2**s0 * b1[h] for h in range(2)]
            f = [sum(z[h] ** 2 * w2[h][c] for h in range(2)) + 2**s1 * b2[c] for c in range(2)]
            d = [2 * (f[c] - 2**out * y[c]) for c in range(2)]
            e = [2 * z[h] * sum(w2[h][c] * d[c] for c in range(2)) for h in range(2)]
            gradient = [x[i] * e[h] for i in range(3) for h in range(2)] + [2**s0 * e[h] for h in range(2)]
            gradient += [z[h] ** 2 * d[c] for h in range(2) for c in range(2)] + [2**s1 * d[c] for c in range(2)]
            total = [a + b for a, b in zip(total, gradient, strict=True)]
        masks = blinding(answer["client"], answered["round"], w, channel, p)
        assert answer["residues"][channel] == [(value + mask) % p for value, mask in zip(total, masks, strict=True)]


def set_up(dealer: int) -> dict[str, Any]:
    """What client `challenged` was dealt besides rows."""
    dealt = NETWORK["seed_dealers"].count(dealer)
    data = bytes.fromhex(NETWORK["set_ups"][dealer])
    return read("set-up", data, **sizes(), G=dealt, t=NETWORK["combinations"])


def held_seeds() -> dict[int, bytes]:
    """The seeds that client `challenged` holds, by the number of their set."""
    found, place = {}, NETWORK["challenged"]
    for dealer in range(len(NETWORK["clients"])):
        numbers = [s for s, by in enumerate(NETWORK["seed_dealers"]) if by == dealer]
        for number, (seed,) in zip(numbers, set_up(dealer)["seeds"], strict=True):
            assert (seed == bytes(32)) == (place in NETWORK["mask_sets"][number])
            if seed != bytes(32):
                found[number] = seed
    return dict(sorted(found.items()))


def blinding(client: int, number: int, weights: list[int], channel: int, p: int) -> list[int]:
    terms = {"session_id": bytes.fromhex(NETWORK["session_id"]), "round u32": struct.pack("<I", number)}
    opening = joined("opening label", {**terms, "weights_sha256": weights_sha256(weights)})
    agreement, total = json.loads(NETWORK["agreement"]), [0] * len(weights)
    for s, seed in held_seeds().items():
        key = hmac.digest(seed, label("dresfl blinding") + opening, "sha256")
        factor = masks.codeword(tuple(NETWORK["mask_sets"][s]), client, agreement, p)
        total = [x + factor * masks.blinding_word(key, p, channel, j) for j, x in enumerate(total)]
    return total


def test_the_mask_family() -> None:
    agreement, sizes_ = json.loads(NETWORK["agreement"]), sizes()
    sets = masks.windows(agreement["num_clients"], NETWORK["recovery_threshold"])
    assert [list(members) for members in sets] == NETWORK["mask_sets"]
    assert masks.dealers(sets, agreement["num_clients"]) == NETWORK["seed_dealers"]
    for p in sizes_["moduli"]:
        assert masks.is_certified(sets, agreement, NETWORK["recovery_threshold"], p)


def test_the_check_of_the_dealers() -> None:
    agreement, checked = json.loads(NETWORK["agreement"]), message("Checked")
    t = masks.combinations(agreement, sizes()["moduli"][0])
    assert t == NETWORK["combinations"]
    coins = [secret(f"coin {name}") for name in NETWORK["clients"]]
    assert message("Check")["coins"] == b"".join(coins)
    assert message("Ready")["coin"] == coins[NETWORK["challenged"]]
    commitments = [sha256(joined("coin digest", {"coin": coin})).hex() for coin in coins]
    assert commitments == [contribution[64:] for contribution in NETWORK["contributions"]]
    digest, width, place = bytes.fromhex(NETWORK["sharing_digest"]), sizes()["W"], NETWORK["challenged"]
    expected: list[list[int]] = [[] for _ in sizes()["moduli"]]
    for dealer, count in enumerate(NETWORK["client_rows"]):
        columns, rows = masks.factors(digest, masks.common_coins(coins), t, width, count)
        for channel, p in enumerate(sizes()["moduli"]):
            share = dealt(dealer, place, p, channel)
            for s in range(t):
                inner = [sum(a * b for a, b in zip(columns[s], row, strict=True)) for row in share]
                total = sum(rho * x for rho, x in zip(rows[s], inner, strict=True))
                expected[channel].append((total + set_up(dealer)["check"][channel][s]) % p)
    size = -(-max(sizes()["moduli"]).bit_length() // 8)
    assert checked["values"] == b"".join(x.to_bytes(size, "little") for row in expected for x in row)
    hashes = []
    for number, seed in held_seeds().items():
        terms = {"sharing digest": digest, "number of the set u32": struct.pack("<I", number), "seed": seed}
        hashes.append(sha256(joined("seed digest", terms))[:16])
    assert [found for (found,) in checked["hashes"]] == hashes
    judged = message("Judged")
    assert ([x for (x,) in judged["excluded"]], [x for (x,) in judged["deviating"]]) == ([2], [0, 4])


def initial(agreement: dict[str, Any]) -> list[int]:
    key, size, number, out = public_key(agreement["seed"]), math.prod(agreement["input_shape"]), 0, list[int]()
    for layer in agreement["layers"]:
        if layer["kind"] != "dense":
            continue
        init = layer["init"] if layer["init"] is not None else (0.5 if number else 1.0)
        bits = layer["weight_bits"] or agreement["weight_bits"]
        for i in range(size * layer["units"]):
            u = (word(key, "weights", number, i) + 0.5) * 2.0**-32
            out.append(round((u * 2 - 1) * (init * math.sqrt(3.0 / size)) * 2.0**bits))
        out += [0] * layer["units"]
        size, number = layer["units"], number + 1
    return out


def test_initial_weights() -> None:
    assert [str(weight) for weight in initial(round_agreement())] == VECTORS["weights"]
    first = read("Task", message("Weights")["task"], **sizes())
    assert [[weight] for weight in initial(json.loads(NETWORK["agreement"]))] == first["weights"]


# -- section 15: the vectors' file -------------------------------------------------------------------------------


def rows_under(section: str, head: str) -> list[list[str]]:
    """The cells of every line of the tables with this first line, in one section of SPEC.md."""
    text = re.search(rf"^## {section} .*?(?=^## )", SPEC, re.M | re.S)
    assert text, f"SPEC.md has no section {section}"
    tables = re.findall(rf"^{re.escape(head)}\n\|[-|]+\n((?:\|.*\n)+)", text[0], re.M)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for found in tables for line in found.splitlines()]


def test_axes_of_every_array() -> None:
    axes = {name.strip("`"): axes.split(", ") for name, axes, _ in rows_under("15", "| array | axes | an entry is |")}
    assert set(axes) == {key for key, value in VECTORS.items() if isinstance(value, list)} - {"layers"}
    _, moduli, parameters = derived(round_agreement())
    counts = {"client": 10, "receiver": 10, "channel": len(moduli), "shard": 2, "mask": 1, "weight": parameters}
    counts |= {"input": 3, "class": 2, "column": 5, "mask and column": 5, "draw": 3, "pair": 2, "answer": 9}

    def check(value: Any, left: list[str]) -> None:
        assert isinstance(value, list) == bool(left)
        if left:
            assert len(value) == counts.get(left[0], len(value)), left
            for entry in value:
                check(entry, left[1:])

    for name, order in axes.items():
        check(VECTORS[name], order)


def test_what_stands_for_secrets_and_chance() -> None:
    listed = " ".join(what for what, _ in rows_under("15", "| what | is |"))
    for number, text in enumerate(VECTORS["secrets"]):
        assert text == secret(f"client {number}").hex()
    for number, text in enumerate(NETWORK["mask_secrets"]):
        assert text == secret(f"masks {number}").hex()
    for name, text in zip(NETWORK["clients"], NETWORK["contributions"], strict=True):
        commitment = sha256(joined("coin digest", {"coin": secret(f"coin {name}")}))
        assert text == (secret(f"contribution {name}") + commitment).hex()
    for what in ("own bytes", "run nonce", "challenge"):
        assert NETWORK[what.replace(" ", "_")] == secret(what)[:16].hex()
    for envelope in SEALING["envelopes"]:
        assert envelope["ephemeral_secret"] == secret(f"ephemeral {envelope['slice_number']}").hex()
        assert envelope["sharing_id"] == secret("sharing")[:16].hex()
    ephemeral = X25519PrivateKey.from_private_bytes(secret("ephemeral network")).public_key().public_bytes_raw()
    assert read("envelope", message("Slice")["sealed"])["ephemeral"] == ephemeral
    for what in (
        "client NUMBER",
        "masks NUMBER",
        "contribution NAME",
        "coin NAME",
        "own bytes",
        "run nonce",
        "challenge",
    ):
        assert f"`{what}`" in listed
    for what in ("ephemeral NUMBER", "ephemeral network", "sharing", "sealing NAME", "signing NAME", "tls NAME"):
        assert f"`{what}`" in listed


def test_rows_of_the_round_are_drawn_as_the_page_says() -> None:
    for client, (inputs, targets) in enumerate(zip(VECTORS["inputs"], VECTORS["targets"], strict=True)):
        key = public_key(1000 + client)
        for r, (row, one_hot) in enumerate(zip(inputs, targets, strict=True)):
            drawn_words = [word(key, "examples", 0, 4 * r + j) for j in range(4)]
            assert row == [str(value % 5) for value in drawn_words[:3]]
            assert one_hot == [str(int(drawn_words[3] % 2 == c)) for c in range(2)]


# -- section 10: the machines and their files ------------------------------------------------------------------

MACHINES = re.findall(r"^### 10\.\d [^\n]*: `([\w/.]+)`\n(.*?)(?=^##)", SPEC, re.M | re.S)
FINAL = {"judged", "left", "refused", "ended", "informed"}


def machine_tables(text: str) -> list[list[list[str]]]:
    head = r"^\| state \| event \| method \| [^|\n]* \| next state \|\n\|[-|]+\n((?:\|.*\n)+)"
    tables = re.findall(head, text, re.M)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines()] for found in tables]


def machine_class(file: str) -> type:
    """The one class of a machine's file that has the name of the file, or is named on the page."""
    name = {"site": "Site", "coordinator": "Coordinator", "enrolment": "Enrolment", "relay": "Relay"}
    stem = Path(file).stem
    module = importlib.import_module(f"dresfl.federation.{stem}")
    found = getattr(module, name.get(stem, stem.title().replace("_", "")))
    assert isinstance(found, type)
    return found


def test_every_machine_is_a_file_and_every_file_a_machine() -> None:
    assert [Path(file).stem for file, _ in MACHINES] == [
        "site",
        "coordinator",
        "enrolment",
        "relay",
        "opening",
        "checking",
        "hidden_rounds",
    ]
    for file, text in MACHINES:
        assert (ROOT / file).is_file()
        assert machine_tables(text)


@pytest.mark.parametrize(("file", "text"), MACHINES, ids=[Path(file).stem for file, _ in MACHINES])
def test_methods_of_a_machine_are_those_of_its_tables(file: str, text: str) -> None:
    own = machine_class(file)
    named = set()
    for _, _, method, *_ in (line for rows in machine_tables(text) for line in rows):
        if method == "the runtime":
            continue
        found = re.fullmatch(r"`(?:(\w+)\.)?(\w+)`", method)
        assert found, method
        owner = machine_class(f"{found[1].lower()}.py") if found[1] else own
        assert callable(vars(owner)[found[2]]), method
        named |= {found[2]} if owner is own else set()
    public = {name for name, value in vars(own).items() if not name.startswith("_") and inspect.isfunction(value)}
    assert named == public


@pytest.mark.parametrize(("file", "text"), MACHINES, ids=[Path(file).stem for file, _ in MACHINES])
def test_states_lead_somewhere(file: str, text: str) -> None:
    for rows in machine_tables(text):
        begun = {state for state, *_ in rows}
        reached = {state for *_, after in rows for state in after.split(", ")}
        assert reached - begun <= FINAL
        assert begun - reached - {"any"} <= {rows[0][0]}  # where it begins


def test_every_message_is_an_event_of_its_receivers_machine() -> None:
    texts = {Path(file).stem: text for file, text in MACHINES}
    events = {name: " ".join(line[1] for rows in machine_tables(text) for line in rows) for name, text in texts.items()}
    from_client, from_coordinator = messages.FROM_CLIENT, messages.FROM_COORDINATOR
    for kind in from_client:
        assert re.search(rf"\b{kind.__name__}\b", events["coordinator"]), kind
    for kind in from_coordinator:
        assert re.search(rf"\b{kind.__name__}\b", events["site"]), kind
    for kind in (messages.Holding, messages.Slice, messages.Ack, messages.Reject):
        assert re.search(rf"\b{kind.__name__}\b", events["relay"]), kind
    row = rows_under("9", "| from a client | from the coordinator |")[0]
    assert [cell.split(", ") for cell in row] == [
        [k.__name__ for k in from_client],
        [k.__name__ for k in from_coordinator],
    ]


def test_windows_of_the_relay() -> None:
    windows = Windows()
    assert "stay within 2 MiB (2·2^20 bytes)" in SPEC
    assert "stay within 16 MiB, this one included" in SPEC
    assert "max(16 MiB, 4 GiB / N)" in SPEC
    assert (windows.asked_bytes, windows.sent_bytes, windows.stored_bytes) == (2 * 2**20, 16 * 2**20, 4 * 2**30)


# -- the page against the package ------------------------------------------------------------------------------


def test_every_message_of_the_package_has_its_table() -> None:
    kinds = {kind.__name__: kind.KIND for kind in messages.FROM_CLIENT + messages.FROM_COORDINATOR}
    assert kinds == {name: int(dict(table(name))["kind"].split("=")[1]) for name in MESSAGES + HIDDEN}
    stated = {name: int(dict(table(name))["version"].split("=")[1]) for name in ("Hello", "Share", "Task", "Answer")}
    assert set(stated.values()) == {messages.VERSION, protocol_version}
    assert f"`{SERVICE}/{METHOD}`" in SPEC.replace("`/", "`")


def test_formats_are_those_of_the_package() -> None:
    for name in (agreement_format, terms_format, store_format, CHECKPOINT_FORMAT):
        assert f"`{name}`" in SPEC or f'"{name}"' in SPEC


@pytest.mark.parametrize("hidden", [(), (8,), (32, 16), (1100, 1000)])
@pytest.mark.parametrize(("activation", "shards"), [("square", 1), ("quadratic", 2)])
def test_derived_numbers_are_the_packages(hidden: tuple[int, ...], activation: str, shards: int) -> None:
    from dresfl.federation import Agreement, make_session
    from dresfl.model import Dense, Quadratic, Square

    layers: list[Any] = []
    for units in hidden:
        layers += [Dense(units), Square() if activation == "square" else Quadratic()]
    agreement = Agreement(
        (*layers, Dense(10, weight_bits=9)),
        (784,),
        num_clients=40,
        rounds=5,
        num_shards=shards,
        input_bound=3.0,
        batch_size=32,
        seed=3,
    )
    session = make_session(agreement, (7,) * 40, b"n", b"r")
    found = derived(json.loads(agreement.encode()))
    assert found == (session.recovery_threshold, session.field.moduli, session.network.num_parameters)


@pytest.mark.parametrize("activation", ["square", "quadratic"])
@pytest.mark.parametrize(("stride", "padding", "pool"), [(1, 2, 2), (2, 0, None), (3, 1, 1)])
def test_derived_numbers_of_images(activation: str, stride: int, padding: int, pool: int | None) -> None:
    from dresfl.federation import Agreement, make_session
    from dresfl.model import Conv2d, Dense, Flatten, Quadratic, Square, SumPool

    bent = Square() if activation == "square" else Quadratic()
    layers = (Conv2d(4, 3, stride, padding, weight_bits=7), bent, SumPool(2, pool), Flatten(), Dense(5))
    agreement = Agreement(layers, (13, 11, 2), num_clients=9, rounds=5, input_bound=2.5, batch_size=20)
    session = make_session(agreement, (7,) * 9, b"n", b"r")
    found = derived(json.loads(agreement.encode()))
    assert found == (session.recovery_threshold, session.field.moduli, session.network.num_parameters)


def test_batches_are_the_packages() -> None:
    from dresfl.federation import Agreement, make_session
    from dresfl.model import Dense

    rows = (5, 11, 1, 8, 3)
    agreement = Agreement((Dense(2),), (3,), num_clients=5, rounds=5, num_shards=2, batch_size=7, seed=2**40)
    batch = make_session(agreement, rows, b"", b"").batch_rows(4)
    pairs = zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
    assert drawn(list(rows), 7, 2, 2**40, 4) == [list(pair) for pair in pairs]


@pytest.mark.parametrize("seed", [0, 7])
def test_who_answers_in_a_simulation(seed: int) -> None:
    """Domains 5, 6 and 8 of section 13: rates, absences, and the order of arrival."""
    from dresfl.runtimes.local import paper

    clients, key = 20, public_key(seed)

    def uniform(domain: str, index: int, j: int) -> float:
        return (word(key, domain, index, j) + 0.5) / 2**32

    high, low = (
        float(number) for number in re.findall(r"rate i is ([\d.]+) if u_\{2i\} < ½, else ([\d.]+) ·", SPEC)[0]
    )
    rates = [
        high if uniform("dropout_rates", 0, 2 * i) < 0.5 else low * uniform("dropout_rates", 0, 2 * i + 1)
        for i in range(clients)
    ]
    found = paper(clients, seed)
    assert found.rates == tuple(rates)
    for number in (0, 1, 33):
        present = [i for i in range(clients) if uniform("dropouts", number, i) >= rates[i]]
        assert found.answering(number) == sorted(present, key=lambda i: (word(key, "arrivals", number, i), i))


@pytest.mark.parametrize("shift", [0.0, 0.25])
def test_integer_rows(shift: float) -> None:
    """Section 14: halves to even, and one-hot targets."""
    import numpy as np
    import torch

    from dresfl.data import DataSet
    from dresfl.data.rows import integer_rows
    from dresfl.quantize import Quantizer

    reals = [k / 64 for k in range(65)] + [0.1, 1 / 3, 0.7]
    inputs = np.array(reals, np.float32).reshape(-1, 1, 1, 1)
    labels = np.arange(len(reals)) % 3
    rows, targets = integer_rows(DataSet(inputs, labels, 3, "any"), Quantizer(4, shift), np.arange(len(reals)))
    assert rows.flatten().tolist() == [round(2**4 * (float(x) + shift)) for x in inputs.flatten()]
    assert targets.equal(torch.tensor([[int(y == c) for c in range(3)] for y in labels.tolist()], dtype=torch.int32))


def test_the_range_of_decoded_values() -> None:
    """Section 5's value moduli, and section 14's range: the headroom is the fewest largest moduli above 2^20."""
    from dresfl.federation import Agreement, make_session
    from dresfl.model import Dense, Square

    for units, batch in (((4,), 64), ((1100, 1000), 64), ((32, 32), 20_000)):
        layers = [layer for size in units for layer in (Dense(size), Square())]
        agreement = Agreement((*layers, Dense(10)), (784,), num_clients=40, rounds=5, batch_size=batch)
        field = make_session(agreement, (7,) * 40, b"", b"").field
        kept = list(field.moduli)
        headroom = 1
        while headroom < 2**20:
            headroom *= kept.pop()
        assert field.value_bound == (math.prod(kept) - 1) // 2


def test_the_most_rows_of_a_client() -> None:
    from dresfl.errors import Refused
    from dresfl.federation import Agreement, make_session
    from dresfl.model import Dense
    from dresfl.protocol import slice_rows

    assert "⌊min(2^31 − 1, ⌊(2^62 − 1) / B⌋) / N⌋ rows at most, and no more than 2^19 · Q" in SPEC
    for clients, batch, width in ((3, 64, 3), (20, 64, 3), (3, 64, 3_000_000)):
        agreement = Agreement((Dense(2),), (width,), num_clients=clients, rounds=5, batch_size=batch)
        per_slice = slice_rows(make_session(agreement, (1,) * clients, b"", b""))
        most = min(min(2**31 - 1, (2**62 - 1) // batch) // clients, 2**19 * per_slice)
        agreement.check_row_count(most)
        with pytest.raises(Refused):
            agreement.check_row_count(most + 1)


def test_limits() -> None:
    """The formulas of section 11, as the page writes them."""
    from dresfl.federation import Agreement, largest_message, make_session, most_sealed_bytes
    from dresfl.model import Dense
    from dresfl.protocol import num_combinations, slice_rows

    formula = re.search(r"message, either way \| (\d+ \+ max\(.*?\)) bytes", SPEC)
    sealed = re.search(r"sealed slice \| (\S.*?) bytes", SPEC)
    assert formula
    assert sealed
    for size, clients in ((3, 5), (50_000, 5), (3, 500)):
        agreement = Agreement((Dense(2),), (size,), num_clients=clients, rounds=5)
        session = make_session(agreement, (1,) * clients, b"", b"")
        moduli, width, c = len(session.field.moduli), size + 2, session.field.residue_bytes
        most = max(1, 2**20 // (moduli * width * c))
        assert most == slice_rows(session)
        family, t = session.mask_family, num_combinations(session)
        most_dealt = max(len(family.seed_sets.dealt_by(dealer)) for dealer in range(clients))
        names = {
            "S": len(family.sets),
            "D": most_dealt,
            "t": t,
            "M": moduli,
            "P": session.network.num_parameters,
            "c": c,
            "Q": most,
            "W": width,
            "N": clients,
        }

        def value(text: str, names: dict[str, int] = names) -> int:
            return int(eval(text.replace("·", "*"), {"max": max}, names))  # noqa: S307 - a formula of our own page

        assert value(formula[1]) == largest_message(agreement)
        assert value(sealed[1]) == most_sealed_bytes(session)


def test_files_of_cards_and_rosters(tmp_path: Path) -> None:
    from dresfl.sealing import Identity, Roster

    pattern = r'A card has `format` = "([^"]*)",(.*?)\. A roster has `format` = "([^"]*)",(.*?)\. In a roster'
    found = re.search(pattern, SPEC, re.S)
    assert found
    coordinator, client = Identity.create("coordinator"), Identity.create("client")
    Roster.create(coordinator, coordinator.card, [client.card]).save(tmp_path / "roster.json")
    roster = json.loads((tmp_path / "roster.json").read_text())
    for file, name, keys in ((roster, found[3], found[4]), (roster["clients"][0], found[1], found[2])):
        assert file["format"] == name
        assert set(file) == {"format", *re.findall(r"`(\w+)`", keys)}
