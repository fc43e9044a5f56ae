"""The federation machine: from "the clients know each other" to "everybody has the model". No I/O, no clock.

Both modes. agreement.py: what all hold alike. terms.py: what makes a session of it. messages/: what travels.
actions.py: what the machines ask of a runtime. enrolment.py, relay.py, checking.py, rounds.py: the parts of
coordinator.py. sealed_slices.py: slices of shares in their envelopes. site.py: a client. answering.py: its side of the
rounds. workplace.py: where its work is done.

Open mode. open_rounds.py, opening.py: the coordinator's rounds. open_work.py: a client's answers.

Hidden mode. hidden_rounds.py, confirming.py: the coordinator's hops. hidden_answering.py, hidden_work.py: a client's.
attesting.py: the check of the dealers, signed.
"""

from .agreement import Agreement, make_session, sharing_nonce
from .coordinator import Coordinator
from .coordinator_state import CoordinatorSettings
from .messages import NO_INSTANCE, largest_message
from .opening import RoundTiming
from .relay import Windows
from .sealed_slices import SealedSlices, most_sealed_bytes, sealed_bytes
from .site import NO_CHALLENGE, Site
from .terms import NO_NONCE, Introduction, Terms
from .workplace import HiddenMemory, Rows, Store, Workplace
