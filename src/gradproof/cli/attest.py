"""`gradproof attest`: the stored evidence, as a folder that a stranger can judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import Seconds, baseline, place, with_options

if TYPE_CHECKING:
    from gradproof.core.outcome import Exit
    from gradproof.extras.attest.signing import Signer
    from gradproof.session import Options, Session

MOST = 10


@click.command("attest")
@click.argument("out", metavar="OUT_DIR", type=click.Path(path_type=Path))
@place
@baseline
@click.option("--wheel", type=click.Path(path_type=Path, dir_okay=False), help="The wheel that is to be released.")
@click.option("--no-queries", is_flag=True, help="Do not run proofs again to write their solver queries.")
@click.option(
    "--second-limit",
    type=Seconds(),
    default=20.0,
    show_default=True,
    help="Seconds of the second solver (cvc5) for each check.",
)
@click.option("--jobs", type=click.IntRange(1), help="Checks at a time.  [default: one for each CPU, at most 8]")
@click.option(
    "--sign", type=click.Path(path_type=Path, dir_okay=False), metavar="KEY.pem", help="Sign with this ed25519 key."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@with_options
def command(
    options: Options, out: Path, wheel: Path | None, no_queries: bool, second_limit: float, sign: Path | None,
    quiet: bool,
) -> int:  # fmt: skip
    """Write contracts, sources, evidence, reports, queries and digests to OUT_DIR, whole or not at all.

    Proofs are run again to write their queries as SMT-LIB. The exit code is that of the gate, or 1 where a repeated run
    or a second solver contradicts the evidence. The time stated is SOURCE_DATE_EPOCH where that is set.
    --sign takes a private key in PEM (PKCS#8); where it is encrypted, GRADPROOF_SIGN_PASSPHRASE is its passphrase.
    """
    from gradproof.cli.progress import listening
    from gradproof.cli.show import opened
    from gradproof.core.outcome import EXIT_CODE, Exit, worst
    from gradproof.extras.attest.write import Wanted, attest

    signer = _signer(sign)
    session = opened(options)
    with listening(quiet) as listener:
        made = attest(session, Wanted(out, wheel, not no_queries, second_limit, options.jobs, signer), listener)
    for row in made.manifest.left_out[:MOST]:
        click.echo(f"left out: {row.check}: {row.reason}", err=True)
    if len(made.manifest.left_out) > MOST:
        click.echo(f"left out: {len(made.manifest.left_out) - MOST} more, see MANIFEST.json", err=True)
    click.echo(f"written: {out}, {len(made.manifest.files)} files; sha256 of MANIFEST.json {made.digest}")
    if signer is not None:
        click.echo(f"signed: MANIFEST.dsse.json, with the key {signer.keyid}")
    exits = [Exit(report["verdict"]["exit"]) for report in made.reports.values()]
    exits += _held(session)
    for name, report in made.reports.items():
        click.echo(f"the evidence supports: {name}: {report['verdict']['exit']} (exit {report['verdict']['code']})")
    for words in made.contradictions:
        click.echo(f"contradicted: {words}", err=True)
    return EXIT_CODE[Exit.BROKEN] if made.contradictions else worst(exits)


def _held(session: Session) -> list[Exit]:
    """The verdicts against the baselines, which no bundle carries; none where there is no baseline."""
    from gradproof.core.outcome import Exit

    if not session.options.baselines:
        return []
    reports = session.reports(session.at_hand())
    for report in reports:
        for reason in report["verdict"]["reasons"]:
            click.echo(f"{report['contract']['id']}: {reason}", err=True)
    return [Exit(report["verdict"]["exit"]) for report in reports]


def _signer(path: Path | None) -> Signer | None:
    if path is None:
        return None
    from gradproof.extras.attest.signing import private_key

    return private_key(path)
