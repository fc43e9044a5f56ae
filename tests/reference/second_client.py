"""A second client, written from SPEC.md alone: for dense networks with squares, in Python integers, in memory.

It uses gRPC as a library and nothing of the package. What a real client must keep on its disk, it keeps nowhere. It
speaks both modes; in the hidden mode for one colluder, without range proofs and without a sum at the end.
"""

import asyncio
import hmac
import itertools
import json
import math
import re
import secrets
import zlib
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from . import hidden
from .masks import codeword, combinations, common_coins, dealers, factors, is_certified, windows
from .spec import (
    SPEC,
    Reader,
    blinding_word,
    derived,
    drawn,
    hidden_rows,
    hkdf,
    joined,
    label,
    mask,
    pack,
    read,
    session_text,
    sha256,
    sharing_text,
    table,
    weights_sha256,
)

FROM_COORDINATOR = ("Wait", "Begin", "Request", "Relayed", "Weights", "Delta", "Done", "Check", "Judged")
FROM_COORDINATOR += ("Attestations", "Opened", "Resume", "Confirmations", "Alarm", "Started")
KINDS = {int(dict(table(name))["kind"].split("=")[1]): name for name in FROM_COORDINATOR}

PATH = re.findall(r"bidirectional stream, `(/[\w./]+)`", SPEC)[0]


class SecondClient:
    """One client of a federation, for one connection."""

    def __init__(self, roster: Path, identity: Path, agreement: str, rows: list[list[int]]) -> None:
        """roster and identity: files of dresfl; agreement: its JSON; rows: integer inputs, then targets."""
        listed, own = json.loads(roster.read_text()), json.loads(identity.read_text())
        self._server = _member(listed["server"])
        self._members = [_member(card) for card in listed["clients"]]
        self._names = [card["name"] for card in listed["clients"]]
        self.server_name = listed["server"]["name"]
        self.index = self._names.index(own["name"])
        self._sealing = X25519PrivateKey.from_private_bytes(bytes.fromhex(own["sealing_key"]))
        self._signing = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(own["signing_key"]))
        self._text, self._agreement, self._rows = agreement, json.loads(agreement), rows
        self._secret = secrets.token_bytes(32)
        self._shares: dict[tuple[int, int], list[list[int]]] = {}  # dealer, coded row -> channel -> values
        self.answered = 0
        self._came: list[bytes] = []  # messages of the last bundle that were not looked at yet

    # -- the session -----------------------------------------------------------------------------------------

    async def run(self, target: str, credentials: grpc.ChannelCredentials) -> list[int]:
        """Take part from Hello to Done; the final weights."""
        options = [("grpc.ssl_target_name_override", self.server_name), ("grpc.max_receive_message_length", 2**23)]
        async with grpc.aio.secure_channel(target, credentials, options) as channel:
            self._call = channel.stream_stream(PATH)()
            challenge = secrets.token_bytes(16)
            self._coin = secrets.token_bytes(32)
            commitment = sha256(joined("coin digest", {"coin": self._coin}))
            contribution = sha256(b"any tag", self._secret)[:16] + secrets.token_bytes(16) + commitment
            hello = {"rows": len(self._rows), "contribution": contribution, "held_nonce": bytes(32)}
            await self._send("Hello", **hello, challenge=challenge, instance=bytes(8), agreement=self._text.encode())
            kind, data = await self._next()
            while kind == "Wait":
                kind, data = await self._next()
            assert kind == "Begin"
            self._accept(data, challenge, contribution)
            await self._report()
            return await self._serve()

    async def _send(self, name: str, **fields: Any) -> None:
        message = pack(name, **fields)
        await self._call.write(len(message).to_bytes(4, "little") + message)

    async def _next(self) -> tuple[str, bytes]:
        if not self._came:
            data = await self._call.read()
            assert data is not grpc.aio.EOF, "the coordinator closed the stream"
            while data:
                end = 4 + int.from_bytes(data[:4], "little")
                self._came.append(data[4:end])
                data = data[end:]
        message = self._came.pop(0)
        return KINDS[message[0]], message

    def _accept(self, data: bytes, challenge: bytes, contribution: bytes) -> None:
        begin, agreement = read("Begin", data), self._agreement
        roster = bytes.fromhex(agreement["roster"])
        number = self.index.to_bytes(2, "little")
        signed = joined(
            "signed",
            {
                "challenge of the Hello": challenge,
                "number of the client u16": number,
                "roster digest": roster,
                "all that follows the signature": data[65:],
            },
        )
        self._verify(self._server, "begin", signed, begin["signature"])
        self._terms = data[65:]
        parts = [part for _, part in begin["clients"]]
        assert parts[self.index] == contribution
        fresh = {"own bytes": begin["own_bytes"], "contribution 0": parts[0], "contribution 1": parts[1]}
        assert begin["nonce"] == sha256(joined("sharing nonce", {**fresh, "…": b"".join(parts[2:])}))
        self._client_rows = [rows for rows, _ in begin["clients"]]
        self._commitments = [part[32:] for part in parts]
        self._plan = None
        if agreement["mode"] == "hidden":
            self._plan = hidden.Plan(agreement, self._client_rows)
            threshold, self._moduli, self._parameters = self._plan.R, tuple(self._plan.moduli), self._plan.P
        else:
            threshold, self._moduli, self._parameters = derived(agreement)
        self._run_nonce = begin["run_nonce"].hex()
        text = sharing_text(agreement, self._client_rows, list(self._moduli), begin["nonce"].hex())
        if self._plan is not None:
            own_text = {**json.loads(text), "opening": [threshold, agreement["max_liars"]]}
            text = json.dumps({**own_text, "hidden": [self._plan.d, self._plan.Td]}, sort_keys=True)
        self._digest = digest = sha256(text.encode())
        self._sharing_id = digest[:16]
        self._mask_seed = hmac.digest(self._secret, digest, "sha256")
        shards = agreement["num_shards"]
        self._coded = [len(hidden_rows(rows, shards)) for rows in self._client_rows]
        self._width = math.prod(agreement["input_shape"]) + agreement["layers"][-1]["units"]
        self._bytes = -(-max(self._moduli).bit_length() // 8)
        self._per_slice = max(1, 2**20 // (len(self._moduli) * self._width * self._bytes))
        self._sizes = {"moduli": self._moduli, "M": len(self._moduli), "P": self._parameters, "W": self._width}
        if self._plan is not None:
            families = hidden.Families(self._plan)
            self._sets, self._dealers = families.sets, families.dealers
            assert all(families.is_certified(p) for p in self._moduli)
        else:
            self._sets = windows(agreement["num_clients"], threshold)
            assert all(is_certified(self._sets, agreement, threshold, p) for p in self._moduli)
            self._dealers = dealers(self._sets, agreement["num_clients"])
        self._own_seeds = {s: secrets.token_bytes(32) for s, dealer in enumerate(self._dealers) if dealer == self.index}
        self._seeds = dict(self._own_seeds)
        more = 1 if self._plan is None else 2 ** min(self._plan.N, 64) * self._plan.N * len(self._moduli)
        self._combinations = combinations(agreement, self._moduli[0], more)
        points = agreement["num_shards"] + agreement["max_colluders"]
        self._check_values = [
            [[secrets.randbelow(p) for _ in range(self._combinations)] for _ in range(points)] for p in self._moduli
        ]
        self._check_shares = {self.index: self._check_share(self.index)}  # dealer -> channel -> values

    @staticmethod
    def _signed(purpose: str, message: bytes) -> bytes:
        terms = {"length of purpose u8": bytes([len(purpose)]), "purpose": label(purpose), "message": message}
        return joined("signature(purpose, message)", terms)

    def _verify(self, member: bytes, purpose: str, message: bytes, signature: bytes) -> None:
        key = Ed25519PublicKey.from_public_bytes(read("member", member)["signing_key"])
        key.verify(signature, self._signed(purpose, message))

    # -- shares ----------------------------------------------------------------------------------------------

    def _slices(self, dealer: int) -> int:
        return -(-self._coded[dealer] // self._per_slice)

    def _slice(self, dealer: int, number: int) -> range:
        return range(number * self._per_slice, min((number + 1) * self._per_slice, self._coded[dealer]))

    def _coded_row(self, row: int, receiver: int) -> list[list[int]]:
        """What a receiver is to hold of one of our coded rows, channel by channel."""
        agreement = self._agreement
        shards, masks = agreement["num_shards"], agreement["max_colluders"]
        hidden = [self._rows[i] for i in hidden_rows(len(self._rows), shards)[row]]
        out = []
        for channel, p in enumerate(self._moduli):
            basis, values = self._basis(receiver, p), []
            for column in range(self._width):
                word = [(channel * masks + t) * self._width + column for t in range(masks)]
                noise = [mask(self._mask_seed, self._sharing_id, p, row, j) for j in word]
                known = [shard[column] for shard in hidden] + noise
                values.append(sum(a * b for a, b in zip(known, basis, strict=True)) % p)
            out.append(values)
        return out

    def _basis(self, receiver: int, p: int) -> list[int]:
        """What the values at the shards' and masks' points count for at a receiver's point."""
        hidden = self._agreement["num_shards"] + self._agreement["max_colluders"]
        at, basis = hidden + 1 + receiver, []
        for k in range(1, hidden + 1):
            above, below = 1, 1
            for j in range(1, hidden + 1):
                if j != k:
                    above, below = above * (at - j) % p, below * (k - j) % p
            basis.append(above * pow(below, -1, p) % p)
        return basis

    def _check_share(self, receiver: int) -> list[list[int]]:
        """A receiver's share of our check values, channel by channel."""
        out = []
        for p, values in zip(self._moduli, self._check_values, strict=True):
            basis = self._basis(receiver, p)
            columns = zip(*values, strict=True)
            out.append([sum(a * b for a, b in zip(column, basis, strict=True)) % p for column in columns])
        return out

    def _packed(self, residues: list[list[int]]) -> bytes:
        return b"".join(x.to_bytes(self._bytes, "little") for channel in residues for x in channel)

    def _set_up(self, receiver: int) -> bytes:
        """What our last slice holds for a receiver besides rows."""
        seeds = [seed if receiver not in self._sets[s] else bytes(32) for s, seed in self._own_seeds.items()]
        return b"".join(seeds) + self._packed(self._check_share(receiver))

    def _keep_set_up(self, dealer: int, data: bytes) -> None:
        dealt = [s for s, by in enumerate(self._dealers) if by == dealer]
        found = read("set-up", data, **self._sizes, G=len(dealt), t=self._combinations)
        for s, (seed,) in zip(dealt, found["seeds"], strict=True):
            if self.index not in self._sets[s]:
                assert seed != bytes(32)
                self._seeds[s] = seed
        self._check_shares[dealer] = found["check"]

    def _checked(self, coins: bytes) -> dict[str, Any]:
        """Our part of the check of the dealers."""
        shown = [coins[i : i + 32] for i in range(0, len(coins), 32)]
        self._coins = shown
        assert [sha256(joined("coin digest", {"coin": coin})) for coin in shown] == self._commitments
        common, t = common_coins(shown), self._combinations
        values: list[list[list[int]]] = [[] for _ in self._moduli]  # channel -> dealer -> combination
        for dealer, count in enumerate(self._coded):
            columns, rows = factors(self._digest, common, t, self._width, count)
            for m, p in enumerate(self._moduli):
                share = [self._shares[dealer, row][m] for row in range(count)]
                values[m].append(
                    [
                        self._check_shares[dealer][m][s]
                        + sum(
                            rho * sum(a * b for a, b in zip(columns[s], row, strict=True))
                            for rho, row in zip(rows[s], share, strict=True)
                        )
                        for s in range(t)
                    ]
                )
                values[m][-1] = [value % p for value in values[m][-1]]
        hashes = []
        for s, seed in sorted(self._seeds.items()):
            terms = {"sharing digest": self._digest, "number of the set u32": s.to_bytes(4, "little"), "seed": seed}
            hashes.append(sha256(joined("seed digest", terms))[:16])
        packed = self._packed([[x for dealer in channel for x in dealer] for channel in values])
        return {"n": len(hashes), "hashes": b"".join(hashes), "values": packed}

    def _take_verdict(self, message: dict[str, Any]) -> None:
        excluded = [dealer for (dealer,) in message["excluded"]]
        assert not excluded, "this client does not leave dealers out"
        assert self.index not in [client for (client,) in message["deviating"]]
        text = session_text(self._agreement, self._digest.hex(), self._run_nonce)
        self._session_id = sha256(text.encode())[:16]

    def _blinding(self, number: int, weights: list[int]) -> list[list[int]]:
        """Our part of a round's masks, channel by channel."""
        terms = {"session_id": self._session_id, "round u32": number.to_bytes(4, "little")}
        opening = joined("opening label", {**terms, "weights_sha256": weights_sha256(weights)})
        keys = {s: hmac.digest(seed, label("dresfl blinding") + opening, "sha256") for s, seed in self._seeds.items()}
        out = []
        for m, p in enumerate(self._moduli):
            words = {s: codeword(self._sets[s], self.index, self._agreement, p) for s in keys}
            terms_of = [
                [c * blinding_word(keys[s], p, m, j) for s, c in words.items()] for j in range(self._parameters)
            ]
            out.append([sum(found) % p for found in terms_of])
        return out

    def _context(self, dealer: int, receiver: int, number: int) -> bytes:
        place = {"dealer": dealer, "receiver": receiver, "slice_number": number, "num_slices": self._slices(dealer)}
        return pack("context", sharing_id=self._sharing_id, **place)

    def _key(self, secret: tuple[bytes, bytes], ephemeral: bytes, dealer: int, receiver: int, context: bytes) -> bytes:
        both = joined("secret", {"X25519(e, R)": secret[0], "X25519(s, R)": secret[1]})
        members = {"sender's member": self._members[dealer], "receiver's member": self._members[receiver]}
        return hkdf(both, joined("info", {"E": ephemeral, **members, "context": context}))

    def _sealed(self, receiver: int, number: int) -> bytes:
        rows = self._slice(self.index, number)
        coded = [self._coded_row(row, receiver) for row in rows]
        packed = b"".join(
            x.to_bytes(self._bytes, "little") for m in range(len(self._moduli)) for row in coded for x in row[m]
        )
        if number == self._slices(self.index) - 1:
            packed += self._set_up(receiver)
        place = {"dealer": self.index, "receiver": receiver, "first_row": rows.start, "rows": len(rows)}
        header = self._head("Share", sharing_id=self._sharing_id, **place)
        fresh, theirs = X25519PrivateKey.generate(), _sealing_key(self._members[receiver])
        context, public = self._context(self.index, receiver, number), fresh.public_key().public_bytes_raw()
        key = self._key((fresh.exchange(theirs), self._sealing.exchange(theirs)), public, self.index, receiver, context)
        ciphertext = ChaCha20Poly1305(key).encrypt(bytes(12), header + packed, context)
        return pack("envelope", ephemeral=public, ciphertext=ciphertext)

    @staticmethod
    def _head(name: str, **fields: Any) -> bytes:
        """The fields of a table before its residues."""
        return pack(name, residues=b"", **fields)

    def _keep(self, dealer: int, number: int, sealed: bytes) -> None:
        found, context = read("envelope", sealed), self._context(dealer, self.index, number)
        own = self._sealing
        fresh = own.exchange(X25519PublicKey.from_public_bytes(found["ephemeral"]))
        standing = own.exchange(_sealing_key(self._members[dealer]))
        key = self._key((fresh, standing), found["ephemeral"], dealer, self.index, context)
        plaintext = ChaCha20Poly1305(key).decrypt(bytes(12), found["ciphertext"], context)
        if number == self._slices(dealer) - 1:
            seeds = sum(by == dealer for by in self._dealers)
            size = 32 * seeds + len(self._moduli) * self._combinations * self._bytes
            self._keep_set_up(dealer, plaintext[len(plaintext) - size :])
            plaintext = plaintext[: len(plaintext) - size]
        share, rows = read("Share", plaintext, **self._sizes), self._slice(dealer, number)
        assert (share["dealer"], share["receiver"]) == (dealer, self.index)
        assert (share["first_row"], share["rows"]) == (rows.start, len(rows))
        for i, row in enumerate(rows):
            place = slice(i * self._width, (i + 1) * self._width)
            self._shares[dealer, row] = [channel[place] for channel in share["residues"]]

    async def _report(self) -> None:
        """Say which slices are held: of the own ones all, of the others none."""
        for row in range(self._coded[self.index]):
            self._shares[self.index, row] = self._coded_row(row, self.index)
        for dealer in range(len(self._coded)):
            count = self._slices(dealer) if dealer == self.index else 0
            await self._send("Holding", dealer=dealer, held=(2**count - 1).to_bytes(-(-count // 8), "little"))

    # -- from the terms to the end ---------------------------------------------------------------------------

    async def _serve(self) -> list[int]:
        """Deal, collect and answer, as the coordinator's messages come, until the final weights are there."""
        weights: list[int] = []
        last = -1
        while True:
            kind, data = await self._next()
            message = read(kind, data)
            if kind == "Request":
                place = {"receiver": message["receiver"], "slice": message["slice"]}
                await self._send("Slice", **place, sealed=self._sealed(place["receiver"], place["slice"]))
                continue
            if kind == "Relayed":
                self._keep(message["dealer"], message["slice"], message["sealed"])
                await self._send("Ack", dealer=message["dealer"], slice=message["slice"])
                if len(self._shares) == sum(self._coded):
                    await self._send("Ready", sharing_id=self._sharing_id, coin=self._coin)
                continue
            if kind == "Check":
                checked = await asyncio.to_thread(self._checked, message["coins"])
                if self._plan is None:
                    await self._send("Checked", **checked)
                else:
                    text = self._attested_text(self.index, message["coins"], pack("Checked", **checked))
                    await self._send("Attested", signature=self._signing.sign(self._signed("checked", text)), **checked)
                continue
            if kind == "Attestations":
                return await self._play(message)
            if kind == "Judged":
                self._take_verdict(message)
                continue
            if kind == "Delta":
                assert message["base_round"] == last
                weights, last = self._moved(weights, message), message["round"]
            else:
                task = read("Task", message["task"], **self._sizes)
                assert task["session_id"] == self._session_id
                weights, last = [w for (w,) in task["weights"]], task["round"]
            if kind == "Done":
                assert last == self._agreement["rounds"]
                await self._send("Informed", rounds=last)
                assert await self._call.read() is grpc.aio.EOF
                return weights
            packed = await asyncio.to_thread(self._gradient, weights, last)
            answer = self._head("Answer", session_id=self._session_id, round=last, client=self.index) + packed
            assert read("Answer", answer, **self._sizes)["client"] == self.index
            await self._send("Answered", round=last, answer=answer)
            self.answered += 1

    # -- the hidden mode -------------------------------------------------------------------------------------

    def _attested_text(self, client: int, coins: bytes, checked: bytes) -> bytes:
        common = common_coins([coins[i : i + 32] for i in range(0, len(coins), 32)])
        terms = {"sharing digest": self._digest, "common coins": common}
        return joined(
            "attested text", {**terms, "number of the client u16": client.to_bytes(2, "little"), "Checked": checked}
        )

    def _judge(self, message: dict[str, Any]) -> None:
        """Our own verdict: everybody has signed, and all check values lie on polynomials of degree below K + T_d."""
        coins = b"".join(coin for (coin,) in message["coins"])
        assert coins == b"".join(self._coins)
        kind = bytes([int(dict(table("Checked"))["kind"].split("=")[1])])
        values: dict[int, list[list[int]]] = {}  # client -> channel -> dealer and combination
        for client, _, body in message["attested"]:
            text = self._attested_text(client, coins, kind + body[64:])
            self._verify(self._members[client], "checked", text, body[:64])
            checked = read("Checked", kind + body[64:])
            count = len(self._members) * self._combinations
            shapes = {**self._sizes, "N": len(self._members), "t": self._combinations}
            flat = read_residues(checked["values"], count, **shapes)
            values[client] = flat
        assert sorted(values) == list(range(len(self._members))), "this client knows no others than all"
        hidden_points = self._agreement["num_shards"] + self._agreement["max_colluders"]
        for m, p in enumerate(self._moduli):
            for place in range(len(self._members) * self._combinations):
                column = [values[client][m][place] for client in sorted(values)]
                assert on_polynomial(column, hidden_points, p), "a dealer would have to be excluded"

    async def _play(self, message: dict[str, Any]) -> list[int]:
        """All hops of a hidden run; the final weights."""
        assert self._plan is not None
        await asyncio.to_thread(self._judge, message)
        agreement = self._agreement
        run = hidden.run_digest(
            agreement["roster"], self._digest, self._text.encode(), self._terms, common_coins(self._coins)
        )
        client = hidden.HiddenClient(self._plan, self.index, run, self._seeds, self._shares)
        start = joined("start text", {"run digest": run})
        place = {"round": 0, "hop": 0, "chain": client.chain.chain, "flags": 0}
        await self._send("Standing", **place, signature=self._signing.sign(self._signed("hidden start", start)))
        signed: set[int] = set()
        while not client.chain.ended:
            kind, data = await self._next()
            found = read(kind, data)
            if kind == "Started":
                for other, signature in found["signatures"]:
                    self._verify(self._members[other], "hidden start", start, signature)
                    signed.add(other)
                assert 2 * len(signed) > agreement["num_clients"] + agreement["max_colluders"]
                continue
            if kind == "Resume":
                if found["history"]:
                    await asyncio.to_thread(client.catch_up, found["history"])
                assert found["chain"] == client.chain.chain
            elif kind == "Opened":
                assert (found["round"], found["hop"]) == (client.chain.round, client.chain.hop)
                await asyncio.to_thread(client.receive, found["published"])
            elif kind == "Confirmations":
                self._confirm(client, found)
            else:
                raise AssertionError(f"{kind} came in a hidden run")
            if agreement["hidden"]["check"] == "C" and kind == "Opened":
                await self._tell(client)
                continue
            answer = await asyncio.to_thread(client.answer) if signed else None
            if answer is not None:
                await self._send("HopAnswered", answer=answer)
                self.answered += 1
        await self._send("Informed", rounds=agreement["rounds"])
        await asyncio.sleep(0)
        assert client.model is not None
        return client.model

    async def _tell(self, client: "hidden.HiddenClient") -> None:
        """Check C: what this client says of the hop that was published last."""
        sealed, chain = await asyncio.to_thread(client.sealed_check), client.chain
        place = {"round": chain.round, "hop": chain.hop, "chain": chain.chain}
        text = self._confirmed_text(client, sealed)
        await self._send(
            "Confirmed", **place, signature=self._signing.sign(self._signed("confirmed", text)), sealed=sealed
        )

    @staticmethod
    def _confirmed_text(client: "hidden.HiddenClient", sealed: bytes) -> bytes:
        chain = client.chain
        terms = {"run digest": client.run, **chain.place, "chain": chain.chain, "sealed": sealed}
        return joined("confirmed text", terms)

    def _confirm(self, client: "hidden.HiddenClient", found: dict[str, Any]) -> None:
        """Check C: enough clients agree that the last hop was published as they sent it."""
        assert found["chain"] == client.chain.chain
        values = {}
        for sender, signature, sealed in found["values"]:
            self._verify(self._members[sender], "confirmed", self._confirmed_text(client, sealed), signature)
            values[sender] = client.opened_check(sender, sealed)
        assert client.agrees(values)

    def _moved(self, weights: list[int], delta: dict[str, Any]) -> list[int]:
        """The weights that a Delta leads to."""
        raw, width = zlib.decompress(delta["packed"]), delta["width"]
        moves = [int.from_bytes(raw[i : i + width], "little", signed=True) for i in range(0, len(raw), width)]
        moved = [weight + move for weight, move in zip(weights, moves, strict=True)]
        assert weights_sha256(moved) == delta["weights_sha256"]
        return moved

    def _gradient(self, weights: list[int], number: int) -> bytes:
        agreement = self._agreement
        batch = drawn(self._client_rows, agreement["batch_size"], agreement["num_shards"], agreement["seed"], number)
        out = []
        for channel, (p, masks) in enumerate(zip(self._moduli, self._blinding(number, weights), strict=True)):
            rows = [self._shares[dealer, row][channel] for dealer, row in batch]
            total = _gradient(agreement, weights, rows, p)
            out.append([(x + y) % p for x, y in zip(total, masks, strict=True)])
        return self._packed(out)


def read_residues(data: bytes, count: int, **sizes: Any) -> list[list[int]]:
    """Packed residues (M, count)."""
    reader = Reader(data, sizes)
    found = reader.residues(count)
    assert not reader.data
    return found


def on_polynomial(values: list[int], degree: int, p: int) -> bool:
    """Whether values at consecutive points lie on a polynomial of degree below `degree`: all differences vanish."""
    for _ in range(degree):
        values = [(b - a) % p for a, b in itertools.pairwise(values)]
    return not any(values)


def _member(card: dict[str, str]) -> bytes:
    keys = {key: bytes.fromhex(card[key]) for key in ("sealing_key", "signing_key", "tls_spki_sha256")}
    return pack("member", length=len(card["name"]), name=card["name"].encode(), **keys)


def _sealing_key(member: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(read("member", member)["sealing_key"])


def _gradient(agreement: dict[str, Any], weights: list[int], rows: list[list[int]], p: int) -> list[int]:
    """Section 14 for dense layers and squares: the gradient over some coded rows, modulo p."""
    size, layers, start = math.prod(agreement["input_shape"]), [], 0
    width, s = size, agreement["input_bits"]
    for layer in agreement["layers"]:
        if layer["kind"] == "square":
            layers.append(("square", s, 0, 0))
            s *= 2
        else:
            layers.append(("dense", s, start, layer["units"]))
            start += (width + 1) * layer["units"]
            width, s = layer["units"], s + (layer["weight_bits"] or agreement["weight_bits"])
    total = [0] * len(weights)
    for row in rows:
        x, kept = row[:size], []
        for kind, scale, at, units in layers:
            kept.append(x)
            if kind == "square":
                x = [v * v % p for v in x]
            else:
                bias = at + len(x) * units
                x = [
                    (sum(v * weights[at + i * units + o] for i, v in enumerate(x)) + 2**scale * weights[bias + o]) % p
                    for o in range(units)
                ]
        delta = [2 * (z - 2**s * y) % p for z, y in zip(x, row[size:], strict=True)]
        for (kind, scale, at, units), x in zip(reversed(layers), reversed(kept), strict=True):
            if kind == "square":
                delta = [2 * v * d % p for v, d in zip(x, delta, strict=True)]
                continue
            for o, d in enumerate(delta):
                for i, v in enumerate(x):
                    total[at + i * units + o] += v * d
                total[at + len(x) * units + o] += 2**scale * d
            delta = [sum(weights[at + i * units + o] * d for o, d in enumerate(delta)) % p for i in range(len(x))]
    return [value % p for value in total]
