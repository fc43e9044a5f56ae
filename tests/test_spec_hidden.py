"""Section 17 of SPEC.md against the test vectors: a second reader (reference/hidden.py), made of the page alone.

The second reader plays each run of the vectors hop by hop and must send the same bytes.
"""

import hmac
import json
import math
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from reference.hidden import Array, Chain, Expansion, Families, HiddenClient, Plan, run_digest
from reference.masks import common_coins
from reference.spec import Invalid, joined, label, mask, read, sha256, sharing_text

ROOT = Path(__file__).parents[1]
RUNS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "vectors" / "round.json").read_text())["hidden"]
NAMES = sorted(RUNS)


@cache
def plan_of(name: str) -> Plan:
    return Plan(json.loads(RUNS[name]["agreement"]), RUNS[name]["client_rows"])


def shares_of(run: dict[str, Any]) -> dict[tuple[int, int], list[list[int]]]:
    """What the shown client holds of coded row (dealer, row), channel by channel."""
    return {
        (dealer, row): [[int(x) for x in channel[row]] for channel in channels]
        for dealer, channels in enumerate(run["shares"])
        for row in range(len(channels[0]))
    }


def client_of(name: str) -> HiddenClient:
    run, plan = RUNS[name], plan_of(name)
    index = run["client"]
    held = {s: bytes.fromhex(run["seeds"][s]) for s, members in enumerate(run["sets"]) if index not in members}
    return HiddenClient(plan, index, bytes.fromhex(run["run_digest"]), held, shares_of(run))


def integers(values: Any) -> Array:
    return np.array(values, dtype=object).astype(int).astype(object)


def secret(what: str) -> bytes:
    return sha256(label("dresfl vectors "), what.encode())


# -- 17.2 and 17.3 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_plan(name: str) -> None:
    run, plan = RUNS[name], plan_of(name)
    assert [str(p) for p in plan.moduli] == run["moduli"]
    assert plan.needed == run["answers_needed"]
    for number, hops in enumerate(run["hops"]):
        found = plan.hops(number)
        assert [hop.total for hop in found] == [hop["total"] for hop in hops]
        for hop, wanted in zip(found, hops, strict=True):
            assert [[i.count, i.shift, i.bits if i.shift else None] for i in hop.items] == wanted["items"]
    assert [[list(step) for step in plan.steps_of(number)] for number in range(plan.rounds)] == run["steps"]


@pytest.mark.parametrize("name", NAMES)
def test_seeds(name: str) -> None:
    run, families = RUNS[name], Families(plan_of(name))
    assert [list(members) for members in families.sets] == run["sets"]
    assert families.dealers == run["seed_dealers"]
    assert all(families.is_certified(p) for p in families.plan.moduli)
    for s, dealer in enumerate(families.dealers):
        own = secret(f"hidden client {dealer}")
        purpose = label("dresfl derive") + label("mask seed") + struct.pack("<I", s)
        assert hmac.digest(own, purpose, "sha256").hex() == run["seeds"][s]


@pytest.mark.parametrize("name", NAMES)
def test_identities(name: str) -> None:
    run, plan = RUNS[name], plan_of(name)
    agreement, terms = plan.agreement, bytes.fromhex(run["terms"])
    assert agreement["roster"] == secret("hidden roster").hex()
    text = json.loads(sharing_text(agreement, run["client_rows"], plan.moduli, terms[16:48].hex()))
    text["opening"], text["hidden"] = [plan.R, plan.A], [plan.d, plan.Td]
    sharing = sha256(json.dumps(text, sort_keys=True).encode())
    assert sharing.hex() == run["sharing_digest"]
    coins = common_coins([bytes.fromhex(coin) for coin in run["coins"]])
    found = run_digest(agreement["roster"], sharing, run["agreement"].encode(), terms, coins)
    assert found.hex() == run["run_digest"]
    chosen = {"schedule": f"S{plan.d}", "mask_degree": plan.Td}
    chosen |= {"weight_bits": plan.lw, "value_bits": plan.f, "error_bits": plan.fe}
    layers = [{**layer, "weight_bits": None} if "units" in layer else layer for layer in agreement["layers"]]
    session = {
        "sharing": sharing.hex(),
        "layers": layers,
        "network": [agreement["input_shape"], plan.lw],
        "batch_size": plan.B,
        "seed": agreement["seed"],
        "run_nonce": terms[:16].hex(),
        "excluded": [],
        "hidden": {
            "settings": {**agreement["hidden"], **chosen},
            "optimizer": agreement["optimizer"],
            "rounds": plan.rounds,
            "run": run["run_digest"],
        },
    }
    assert sha256(json.dumps(session, sort_keys=True).encode())[:16].hex() == run["session_id"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_dealt_with_their_masks(name: str) -> None:
    run, plan = RUNS[name], plan_of(name)
    families, width = Families(plan), plan.inputs + plan.units[-1]
    sharing_id = bytes.fromhex(run["sharing_digest"])[:16]
    for dealer, rows in enumerate(run["rows"]):
        assert [[int(x) for x in row] for row in rows] == [
            [(dealer + 3 * r + c) % 5 for c in range(3)] + [int((dealer + r) % 2 == c) for c in range(2)]
            for r in range(len(rows))
        ]
        seed = secret(f"hidden client {dealer}")
        for m, p in enumerate(plan.moduli):
            hidden = [int(rows[k][0]) for k in range(plan.K)] if len(rows) >= plan.K else [int(rows[0][0])] * plan.K
            noise = [mask(seed, sharing_id, p, 0, (m * plan.Td + t) * width) for t in range(plan.Td)]
            points, z = range(1, plan.K + plan.Td + 1), families.point(run["client"])
            value = 0
            for k, known in zip(points, hidden + noise, strict=True):
                above = math.prod(z - j for j in points if j != k)
                value += known * above * pow(math.prod(k - j for j in points if j != k), -1, p)
            assert str(value % p) == run["shares"][dealer][m][0][0]


# -- 17.4 to 17.7 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_hop(name: str) -> None:
    run, client = RUNS[name], client_of(name)
    plan, chain = client.plan, client.chain
    assert [str(w) for w in client.lifted(client.weights).tolist()] == run["first_weights"]
    for number, pairs in enumerate(run["batches"]):
        assert [list(pair) for pair in plan.drawn(client.stream, number)] == pairs
    for played in run["played"]:
        assert (chain.round, chain.hop, chain.chain.hex(), chain.omega.hex()) == (
            played["round"],
            played["hop"],
            played["chain"],
            played["omega"],
        )
        assert {purpose: chain.label(purpose).hex() for purpose in played["labels"]} == played["labels"]
        _compare_masks(client, played)
        answer = client.answer()
        assert answer is not None
        assert answer.hex() == played["answer"]
        shapes = {"moduli": plan.moduli, "M": len(plan.moduli), "E": chain.current.count}
        assert read("HopAnswer", answer, **shapes)["chain"] == chain.chain
        losses = len(chain.losses)
        client.receive(bytes.fromhex(played["published"]))
        assert chain.chain.hex() == played["after"]["chain"]
        assert chain.after_label("rho").hex() == played["after"]["rho"]
        assert [str(loss) for loss in chain.losses[losses:]] == ([played["loss"]] if "loss" in played else [])
        if "confirmed" in played:
            assert client.own is not None
            assert (client.own == integers(played["confirmed"][client.index])).all()
    assert chain.ended
    assert client.model == [int(weight) for weight in run["model"]]


def _compare_masks(client: HiddenClient, played: dict[str, Any]) -> None:
    plan, chain, own = client.plan, client.chain, client.expansion
    hop = chain.current
    for masks in played["masks"]:
        item = hop.items[masks["item"]]
        assert item.shift is not None
        for purpose, bits in (("high", item.bits + plan.kappa - item.shift), ("low", item.shift)):
            found = own.bounded(chain.label(purpose, masks["item"]), bits, item.count, total=hop.total)
            assert (found == integers(masks[purpose])).all()
    assert (own.zeros(chain.label("zeros"), hop.count, total=hop.total) == integers(played["zeros"])).all()
    assert (client.key()[0].reshape(len(plan.moduli), -1) == integers(played["key"])).all()


def interpolated(plan: Plan, values: dict[int, Array], at: int) -> Array:
    """The polynomials of degree below R through R clients' values (M,n), at a point."""
    first = plan.K + plan.Td + 1
    clients = sorted(values)[: plan.R]
    found: Any = 0
    for i in clients:
        z, others = first + i, [first + j for j in clients if j != i]
        words = [
            [math.prod(at - x for x in others) * pow(math.prod(z - x for x in others), -1, p)] for p in plan.moduli
        ]
        found = found + np.array(words, dtype=object) * values[i]
    return plan.mod(found)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_hop_is_opened(name: str) -> None:
    """All clients' answers, from all seeds: the key, its tag, the pads, and what is published."""
    run, plan, played = RUNS[name], plan_of(name), RUNS[name]["played"][0]
    families, chain = Families(plan), Chain(plan, bytes.fromhex(run["run_digest"]))
    shards, keys = range(1, plan.K + 1), {}
    for i in range(plan.N):
        client = client_of(name)
        held = {s: bytes.fromhex(seed) for s, seed in enumerate(run["seeds"])}
        client.index = i
        client.expansion = Expansion(families, i, client_seeds(held, chain.run))
        keys[i] = client.key()[1]
    q = np.stack([interpolated(plan, {i: key[:, :6] for i, key in keys.items()}, k) for k in shards], 1)
    last = plan.mod(sum(interpolated(plan, {i: key[:, 6:] for i, key in keys.items()}, k) for k in shards))
    q = np.concatenate([q, last[:, None]], 1)
    assert (q.reshape(len(plan.moduli), -1) == integers(played["key"])).all()
    pad_key = sha256(joined("pad key", {"Q": client_of(name).packed(q)}))
    tag = sha256(joined("tag", {"label": chain.label("pad"), "pad key": pad_key}))[:16]
    shapes = {"moduli": plan.moduli, "M": len(plan.moduli), "E": chain.current.count}
    assert read("HopAnswer", bytes.fromhex(played["answer"]), **shapes)["tag"] == tag


def client_seeds(seeds: dict[int, bytes], run: bytes) -> dict[int, bytes]:
    from reference.hidden import first_seeds

    return first_seeds(seeds, run)


def test_check_values_agree_and_vanish() -> None:
    run, plan = RUNS["one shard"], plan_of("one shard")
    for played in run["played"]:
        values = {i: integers(d) for i, d in enumerate(played["confirmed"])}
        hop = plan.final if played["round"] == plan.rounds else plan.hops(played["round"])[played["hop"]]
        assert not interpolated(plan, values, 1).any(), hop
        for i in range(plan.R, plan.N):  # the others lie on the same polynomials
            own = {j: value for j, value in values.items() if j < plan.R}
            assert (interpolated(plan, own, plan.K + plan.Td + 1 + i) == values[i]).all()


@pytest.mark.parametrize("name", NAMES)
def test_coming_back(name: str) -> None:
    run, client = RUNS[name], client_of(name)
    client.catch_up(bytes.fromhex(run["history"]["history"]))
    assert client.chain.chain.hex() == run["history"]["chain"]
    place = client.chain.round, client.chain.hop
    played = next(hop for hop in run["played"] if (hop["round"], hop["hop"]) == place)
    answer = client.answer()
    assert answer is not None
    assert answer.hex() == played["answer"]


@pytest.mark.parametrize("name", NAMES)
def test_a_false_history_leads_to_another_chain(name: str) -> None:
    run, data = RUNS[name], bytearray.fromhex(RUNS[name]["history"]["history"])
    plan, (first, *_) = plan_of(name), read("history", bytes(data))["broadcasts"]
    start, count = 5 + 78 + len(first[6]), len(first[7]) // len(plan.moduli)  # after the counts and its head
    for m, p in enumerate(plan.moduli):  # W_prev is moved by one
        place = slice(start + m * count, start + m * count + 3)
        data[place] = ((int.from_bytes(data[place], "little") + 1) % p).to_bytes(3, "little")
    client = client_of(name)
    client.catch_up(bytes(data))
    assert client.chain.chain.hex() != run["history"]["chain"]


@pytest.mark.parametrize("name", NAMES)
def test_hops_that_must_be_refused(name: str) -> None:
    assert {bad["expected"] for bad in RUNS[name]["refused"]} == {"refused", "leaves"}
    for bad in RUNS[name]["refused"]:
        with pytest.raises(AssertionError):
            client_of(name).receive(bytes.fromhex(bad["published"]))


# -- 17.8 and 17.12: messages ---------------------------------------------------------------------------------------


def sizes_of(name: str) -> dict[str, Any]:
    plan = plan_of(name)
    return {"moduli": plan.moduli, "M": len(plan.moduli)}


@pytest.mark.parametrize("name", NAMES)
def test_messages(name: str) -> None:
    run = RUNS[name]
    found = {what: read(what.split()[0], bytes.fromhex(data)) for what, data in run["messages"].items()}
    first, second = run["played"][:2]
    assert found["HopAnswered"]["answer"].hex() == first["answer"]
    assert found["Opened"]["published"].hex() == first["published"]
    assert (found["Resume"]["history"].hex(), found["Resume"]["chain"].hex()) == (
        run["history"]["history"],
        run["history"]["chain"],
    )
    assert found["Resume of one that is there"]["history"] == b""
    standing = found["Standing"]
    assert (standing["round"], standing["hop"], standing["chain"].hex()) == (
        second["round"],
        second["hop"],
        second["chain"],
    )
    assert standing["flags"] == 1
    start = joined("start text", {"run digest": bytes.fromhex(run["run_digest"])})
    signatures = dict(found["Started"]["signatures"])
    assert list(signatures) == list(range(plan_of(name).N))
    assert signatures[run["client"]] == standing["signature"]
    for client, signature in signatures.items():
        check_signature(client, "hidden start", start, signature)


def check_signature(client: int, purpose: str, message: bytes, signature: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(secret(f"signing client-{client}")).public_key()
    terms = {"length of purpose u8": bytes([len(purpose)]), "purpose": label(purpose), "message": message}
    key.verify(signature, joined("signature(purpose, message)", terms))


def test_confirmations_are_signed_and_open_for_clients() -> None:
    run, client = RUNS["one shard"], client_of("one shard")
    found = read("Confirmations", bytes.fromhex(run["messages"]["Confirmations"]))
    assert found["values"][client.index][1:] == [
        read("Confirmed", bytes.fromhex(run["messages"]["Confirmed"]))[key] for key in ("signature", "sealed")
    ]
    client.answer()
    client.receive(bytes.fromhex(run["played"][0]["published"]))
    for sender, signature, sealed in found["values"]:
        terms = {
            "run digest": client.run,
            "round u32": struct.pack("<I", found["round"]),
            "hop u16": struct.pack("<H", found["hop"]),
            "chain": found["chain"],
            "sealed": sealed,
        }
        check_signature(sender, "confirmed", joined("confirmed text", terms), signature)
        assert (client.opened_check(sender, sealed) == integers(run["played"][0]["confirmed"][sender])).all()


@pytest.mark.parametrize("name", NAMES)
def test_messages_that_must_be_refused(name: str) -> None:
    for case in RUNS[name]["refused_messages"]:
        with pytest.raises(Invalid):
            read(case["expected"], bytes.fromhex(case["message"]), **sizes_of(name))
