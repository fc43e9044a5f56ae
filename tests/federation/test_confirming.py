"""Check C between machines: what the coordinator passes on, and what a client makes of what others say."""

import dataclasses

import pytest

from dresfl.errors import IdentityError, MessageError
from dresfl.federation.confirming import Confirming, sign_confirmed
from dresfl.federation.hidden_work import HiddenWork
from dresfl.federation.messages import Confirmations, HopAnswered, decode
from dresfl.runtimes.local.hidden import HiddenFederation

from .setting import hidden


class Five:
    """Five clients, of whom four must confirm, after the first hop was published truly."""

    def __init__(self):
        self.setting = hidden(5, check="C")
        self.federation = HiddenFederation(dataclasses.replace(self.setting.session, run=bytes(32)), self.setting.rows)
        opened = self.federation.collect()
        self.federation.note(opened.published)
        for client in self.federation.clients:
            client.receive(opened.published)
        self.session, self.position = self.federation.session, self.federation.ledger.position
        self.gathered = Confirming(self.session, self.setting.roster, self.position, grace=0.0)

    def word(self, client, sealed=None):
        """What a client says of the hop; sealed: what it says instead of the truth."""
        sealed = self.federation.clients[client].sealed_check() if sealed is None else bytes(sealed)
        return sign_confirmed(self.setting.clients[client], self.session.run, self.position, sealed)

    def work(self, client):
        work = HiddenWork(self.session, client, self.setting.clients[client], self.setting.roster)
        work._client = self.federation.clients[client]
        return work

    def told(self, *words):
        """The message that tells a client these words, as it comes out of the wire."""
        values = tuple((c, message.signature, message.sealed) for c, message in words)
        return decode(Confirmations(self.position, values).encode(), (Confirmations,))


@pytest.fixture
def five():
    return Five()


def answers(result):
    return [message for message in result.messages if isinstance(message, HopAnswered)]


def test_a_check_value_of_another_length_is_not_passed_on(five):
    """One such value would make a message that nobody can read."""
    for client in range(3):
        five.gathered.add(client, five.word(client), range(5), 0.0)
    true = five.federation.clients[3].sealed_check()
    for sealed in (true[:-1], true + b"\0", b"", bytes(10**6)):
        with pytest.raises(MessageError, match="bytes"):
            five.gathered.add(3, five.word(3, sealed), range(5), 0.0)
    assert not five.gathered.has(3)
    assert five.gathered.add(3, five.word(3), range(4), 0.0)
    assert decode(five.gathered.release().encode(), (Confirmations,)).position == five.position


def test_what_a_client_has_not_signed_is_not_passed_on(five):
    message = dataclasses.replace(five.word(3), signature=five.word(2).signature)
    with pytest.raises(IdentityError):
        five.gathered.add(3, message, range(5), 0.0)


def test_a_client_goes_on_past_a_check_value_that_is_none(five):
    """Client 4 signs residues beyond the primes. The four others confirm the hop to each other all the same."""
    nonsense = b"\xff" * len(five.federation.clients[4].sealed_check())
    words = [(client, five.word(client)) for client in range(4)]
    assert answers(five.work(0).confirm(five.told(*words, (4, five.word(4, nonsense)))))
