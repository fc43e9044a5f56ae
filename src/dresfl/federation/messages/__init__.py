"""The messages between the coordinator and a client, byte by byte. Integers are little-endian and unsigned.

    kind u8 | body, where the body is, by kind

    From a client
     1 Hello     version u8 | rows u32 | contribution 64 | held nonce 32 (zeros: none) | challenge 16 | instance 8 |
                 agreement, JSON
     2 Holding   dealer u16 | a bit for each slice, low first      one for each dealer: what is on this client's disk
     3 Ready     sharing 16 | coin 32                              this client holds every share
     4 Slice     receiver u16 | slice u32 | sealed bytes           a slice that was asked for
     5 Ack       dealer u16 | slice u32                            this slice is on this client's disk
     6 Reject    dealer u16 | slice u32 | text                     this slice did not open
     7 Answered  round u32 | an Answer                             the value of an opening at this client's point
     8 Informed  rounds u32                                        this client has kept the final weights
     9 Declined  round u32 | text                                  this client will not answer that round
    10 Checked   n u16 | n hashes of seeds, 16 each | residues     this client's check values, dealer by dealer
    Hidden mode
    11 Attested  signature 64 | body of a Checked                  the same, for all clients to see
    12 HopAnswered  a HopAnswer                                    the value of a hop at this client's point
    13 Standing  round u32 | hop u16 | chain 32 | flags u8 | signature 64    where this client stands, and that it signs
                 the run; flags: 1 it can answer, 2 an earlier process of it was further
    14 Confirmed round u32 | hop u16 | chain 32 | signature 64 | residues    check C: its check value of the hop before
    A sum over clients
    32 Counted   sum 16 | n u16 | n · (receiver u16, length u32, sealed)      a share of this client's vector for each
    33 SetSigned sum 16 | signature 64 | n u16 | n dealers u16     this client signs this set of dealers and no other
    34 Added     sum 16 | residues                                 what this client added of a set that was released

    From the coordinator
    16 Wait      text                                              what the coordinator waits for
    17 Begin     signature 64 | terms                              what makes a session of the agreement
    18 Request   receiver u16 | slice u32                          deal this slice for that receiver
    19 Relayed   dealer u16 | slice u32 | sealed bytes             a slice that another client dealt
    20 Weights   a Task                                            the round's weights
    21 Delta     round u32 | base round u32 | width u8 (1, 2, 4) | sha256 32 | zlib of P signed differences
    22 Done      a Task                                            the final weights; its round is the number of rounds
    23 Check     N coins, 32 each; zeros: not there                check the dealers' shares with these coins
    24 Judged    n u16 | n dealers u16 | n u16 | n clients u16     dealers that are excluded, clients that deviate
    Hidden mode
    25 Attestations  N u16 | N coins, 32 each | n u16 | n · (client u16, length u32, body of an Attested)
    26 Opened    round u32 | hop u16 | residues                    what a hop has published
    27 Resume    round u32 | hop u16 | chain 32 | a history        where the run stands, and what a client has missed
    28 Confirmations  round u32 | hop u16 | chain 32 | n u16 | length u32 | n · (client u16, signature 64, residues)
    29 Alarm     text                                              something was falsified: the run is over
    A sum over clients
    40 DealersOf sum 16 | n u16 | n dealers u16 | n u16 | n · (dealer u16, length u32, sealed)   the set to be summed
    41 Release   sum 16 | n u16 | n dealers u16 | n u16 | n · (client u16, signature 64) | shares as in DealersOf
                                                                   who has signed the set
    42 TotalsOf  sum 16 | n u16 | n dealers u16 | totals, 8 each, signed      what came of it; no dealers: nothing
    30 Started   n u16 | n · (client u16, signature 64)            who has signed the run

Shares, Tasks, Answers, HopAnswers and histories are the protocol's own (`dresfl.protocol`). A message of another kind,
length or version than may come is refused with MessageError before anything of it is used.
"""

from dresfl.errors import MessageError

from .dealers import Attestations, Attested, Check, Checked, Judged
from .ending import ANY_ROUND, Alarm, Declined, Informed
from .form import HEAD_BYTES, HOLDING_BYTES, TEXT_BYTES, Message, Octets, Plain
from .hidden_mode import Confirmations, Confirmed, HopAnswered, Opened, Resume, Standing, Started
from .limits import largest_message
from .meeting import AGREEMENT_BYTES, NO_INSTANCE, VERSION, Begin, Hello, Wait
from .open_mode import Answered, Delta, Done, Weights
from .sharing import Ack, Holding, Ready, Reject, Relayed, Request, Slice
from .sums import Added, Counted, DealersOf, Release, SetSigned, TotalsOf

FROM_CLIENT: tuple[type[Message], ...] = (
    Hello,
    Holding,
    Ready,
    Slice,
    Ack,
    Reject,
    Answered,
    Informed,
    Declined,
    Checked,
    Attested,
    HopAnswered,
    Standing,
    Confirmed,
    Counted,
    SetSigned,
    Added,
)
FROM_COORDINATOR: tuple[type[Message], ...] = (
    Wait,
    Begin,
    Request,
    Relayed,
    Weights,
    Delta,
    Done,
    Check,
    Judged,
    Attestations,
    Opened,
    Resume,
    Confirmations,
    Alarm,
    Started,
    DealersOf,
    Release,
    TotalsOf,
)


def decode(data: Octets, kinds: tuple[type[Message], ...]) -> Message:
    """A message of one of the kinds that may come.

    >>> decode(Ready(bytes(16), bytes(32)).encode(), FROM_CLIENT) == Ready(bytes(16), bytes(32))
    True
    """
    if not data:
        raise MessageError("an empty message came")
    for kind in kinds:
        if data[0] == kind.KIND:
            return kind.from_body(memoryview(data)[1:])
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise MessageError(f"a message of kind {data[0]} came where {wanted} was expected")
