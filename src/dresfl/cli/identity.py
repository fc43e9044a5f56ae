"""Commands for keys, certificates and the roster: what every organisation runs once, before the first training.

`sealing` is imported inside the commands, since it needs the extra `network` and the others do not.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dresfl.errors import IdentityError

from . import display
from .display import JsonOption

if TYPE_CHECKING:
    from dresfl.sealing import Member, Roster

ca = typer.Typer(no_args_is_help=True, help="A local certificate authority, for consortia that have none.")
roster = typer.Typer(no_args_is_help=True, help="The signed list of all participants and their keys.")

SignWith = Annotated[Path, typer.Option(metavar="DIR", help="The maker's identity: the folder of dresfl keygen.")]
RosterArgument = Annotated[Path, typer.Argument(metavar="ROSTER", help="A roster file.")]
RosterOut = Annotated[Path, typer.Option(metavar="FILE", help="Where to write the roster; it must not exist yet.")]


def keygen(
    name: Annotated[str, typer.Argument(help="This participant's name, e.g. hospital-1: a-z, 0-9, hyphen, dot.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the keys; made with mode 0700.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="For a coordinator and an existing authority: a host name or address to request."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make this participant's keys, its certificate request and its public card.

    The secret keys (identity.json, tls.key.pem) stay in the folder and never leave this machine. Send NAME.csr.pem to
    the authority and NAME.card.json to the roster's maker, then compare the fingerprint by telephone.
    """
    from dresfl.files import write_new
    from dresfl.sealing import Identity, certificate_request

    identity = Identity.create(name)
    request = certificate_request(identity, host or ())
    request_file, card_file = out / f"{name}.csr.pem", out / f"{name}.card.json"
    for path in (request_file, card_file):  # before any secret is written; `save` looks after its own files
        if path.exists():
            raise IdentityError(f"{path} exists already and is not written over", "choose another --out")
    identity.save(out)
    write_new(request_file, request, error=IdentityError)
    identity.card.save(card_file)
    display.print_pairs(
        f"{name}: new identity",
        {"name": name, "request": request_file, "card": card_file, "fingerprint": identity.member.fingerprint},
        as_json,
    )


def storage_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the key; it must not exist yet.")],
    as_json: JsonOption = False,
) -> None:
    """Make a storage key, which seals a participant's secret, shares and checkpoints on its disk.

    Name the file as storage_key in fed.toml or site.toml. Keep it on another disk than the folder that it seals, and
    keep a copy: without it nothing that it sealed can be read.
    """
    from dresfl.storage.at_rest import StorageKey

    key = StorageKey.create(file)
    display.print_pairs("new storage key", {"file": file, "mark": key.mark.hex()}, as_json)


@ca.command("init", epilog="Example: `dresfl ca init ca`")
def ca_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the authority's key and certificate.")],
    name: Annotated[str, typer.Option(help="The authority's name.")] = "dresfl-ca",
    days: Annotated[int, typer.Option(help="How long its certificate lasts.")] = 3650,
    as_json: JsonOption = False,
) -> None:
    """Make a certificate authority: ca.key.pem, which stays here, and ca.cert.pem, which every participant gets."""
    from dresfl.sealing import CertificateAuthority
    from dresfl.sealing.certificates import CA_CERTIFICATE_FILE

    CertificateAuthority.create(name, days).save(folder)
    display.print_pairs(f"{name}: new authority", {"name": name, "certificate": folder / CA_CERTIFICATE_FILE}, as_json)


@ca.command(
    "sign",
    epilog="Examples: `dresfl ca sign ca hospital-1.csr.pem --out hospital-1.cert.pem`; for the coordinator "
    "`dresfl ca sign ca coordinator.csr.pem --out coordinator.cert.pem --coordinator fl.example.org`",
)
def ca_sign(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.")],
    request: Annotated[Path, typer.Argument(metavar="CSR", help="A certificate request that dresfl keygen wrote.")],
    out: Annotated[Path, typer.Option(metavar="CERT", help="Where to write the certificate; it must not exist yet.")],
    days: Annotated[int, typer.Option(help="How long the certificate lasts.")] = 365,
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--coordinator",
            "--server",
            metavar="HOST",
            help="The coordinator's host name or address; without it: a client only.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Certify a participant's TLS key. Its name and key are shown: compare them with whoever sent the request."""
    from dresfl.files import read_file, write_new
    from dresfl.sealing import CertificateAuthority
    from dresfl.sealing.certificates import FILE_LIMIT, describe

    authority = CertificateAuthority.load(folder)
    certificate = authority.sign(read_file(request, FILE_LIMIT, error=IdentityError), days=days, server=server or ())
    write_new(out, certificate, error=IdentityError)
    display.print_pairs(f"certificate {out}", describe(certificate), as_json)


@roster.command(
    "create",
    epilog="Example: `dresfl roster create hospital-*.card.json --coordinator coordinator.card.json --sign-with keys "
    "--out roster.json`",
)
def roster_create(
    cards: Annotated[list[Path], typer.Argument(metavar="CARDS…", help="The clients' cards, in the order to keep.")],
    server: Annotated[Path, typer.Option("--coordinator", "--server", metavar="CARD", help="The coordinator's card.")],
    sign_with: SignWith,
    out: RosterOut,
    as_json: JsonOption = False,
) -> None:
    """Put everybody's card into one signed list. The order of the cards numbers the clients.

    Compare each fingerprint with its owner by telephone before you hand the roster out.
    """
    from dresfl.sealing import Card, Identity, Roster

    made = Roster.create(Identity.load(sign_with), Card.load(server), [Card.load(path) for path in cards])
    made.save(out)
    _show_roster(made, out, as_json)


@roster.command(
    "add",
    epilog="Example: `dresfl roster add roster.json hospital-9.card.json --sign-with keys --out roster-2.json`",
)
def roster_add(
    path: RosterArgument,
    cards: Annotated[list[Path], typer.Argument(metavar="CARDS…", help="The new clients' cards.")],
    sign_with: SignWith,
    out: RosterOut,
    as_json: JsonOption = False,
) -> None:
    """Append clients to a roster of one's own. The others keep their numbers; everybody must pin the new digest."""
    from dresfl.sealing import Card, Identity, Roster

    old, maker = Roster.load(path), Identity.load(sign_with)
    if old.maker.member != maker.member:
        raise IdentityError(
            f"{path} was made by {old.maker.member.name} with other keys than those in {sign_with}",
            "only its maker adds to it; or collect all cards and run dresfl roster create",
        )
    made = Roster.create(maker, old.server_card, [*old.client_cards, *(Card.load(card) for card in cards)])
    made.save(out)
    _show_roster(made, out, as_json)


@roster.command(
    "verify",
    epilog="Examples: `dresfl roster verify roster.json`; "
    "`dresfl roster verify roster.json --card keys/hospital-1.card.json --sha256 DIGEST`",
)
def roster_verify(
    path: RosterArgument,
    card: Annotated[Path | None, typer.Option(help="Your own card: it must be listed, with these keys.")] = None,
    sha256: Annotated[str | None, typer.Option(metavar="DIGEST", help="The digest that must come out.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every signature of a roster and show what to compare by telephone.

    A roster that verifies is only as good as the comparison: anybody can make one that verifies.
    """
    from dresfl.sealing import Card, Roster

    found = Roster.load(path, sha256)
    if card is not None:
        mine = Card.load(card).member
        place = "the coordinator" if mine == found.server else f"client {found.index_of(mine)}"
        display.note(f"{mine.name} is {place}, with the keys of {card}")
    _show_roster(found, path, as_json)


def _show_roster(shown: "Roster", path: Path, as_json: bool) -> None:
    if as_json:
        participants = {
            "coordinator": _participant(shown.server),
            "clients": [_participant(member) for member in shown.members],
        }
        digests = {"roster": str(path), "sha256": shown.digest, "fingerprint": shown.fingerprint}
        print(json.dumps({**digests, "maker": _participant(shown.maker.member), **participants}, indent=2))
        return
    listed = [("coordinator", shown.server), *((f"client {i}", member) for i, member in enumerate(shown.members))]
    display.print_table(
        f"{path}: made and signed by {shown.maker.member.name}",
        ["place", "name", "fingerprint"],
        [[place, member.name, member.fingerprint] for place, member in listed],
    )
    print(f"maker's fingerprint:  {shown.maker.member.fingerprint}")
    print(f"roster's fingerprint: {shown.fingerprint}")
    print(f'to pin it: roster_sha256 = "{shown.digest}"')


def _participant(member: "Member") -> dict[str, str]:
    return {"name": member.name, "fingerprint": member.fingerprint}
