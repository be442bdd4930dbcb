"""`gradproof attest` and `gradproof verify-bundle`: stored evidence as a folder that a stranger can judge."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import baseline, place, with_options

if TYPE_CHECKING:
    from gradproof.core.outcome import Exit
    from gradproof.extras.attest.manifest import BundleProblem
    from gradproof.extras.attest.verify import Judged
    from gradproof.session import Options, Session

MOST = 10


@click.command("attest")
@click.argument("out", metavar="OUT_DIR", type=click.Path(path_type=Path))
@place
@baseline
@click.option("--wheel", type=click.Path(path_type=Path, dir_okay=False), help="The wheel that is to be released.")
@click.option("--no-queries", is_flag=True, help="Do not run proofs again to write their solver queries.")
@click.option("--jobs", type=click.IntRange(1), help="Checks at a time.  [default: one for each CPU, at most 8]")
@click.option(
    "--sign", type=click.Path(path_type=Path, dir_okay=False), metavar="KEY.pem", help="Sign with this ed25519 key."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@with_options
def command(
    options: Options, out: Path, wheel: Path | None, no_queries: bool, sign: Path | None, quiet: bool,
) -> int:  # fmt: skip
    """Write contracts, sources, evidence, reports, queries and digests to OUT_DIR, whole or not at all.

    Proofs are run again to write their queries as SMT-LIB. The exit code is that of the gate, or 1 where a repeated run
    or a second solver contradicts the evidence. The time stated is SOURCE_DATE_EPOCH where that is set.
    --sign takes a private key in PEM (PKCS#8); where it is encrypted, GRADPROOF_SIGN_PASSPHRASE is its passphrase.
    """
    from gradproof.cli.outputs import open_session
    from gradproof.cli.progress import listening
    from gradproof.core.outcome import EXIT_CODE, Exit, worst
    from gradproof.extras.attest.write import Wanted, attest

    signer = None
    if sign is not None:
        from gradproof.extras.attest.manifest import private_key

        signer = private_key(sign)
    session = open_session(options)
    with listening(quiet) as listener:
        made = attest(session, Wanted(out, wheel, not no_queries, options.jobs, signer), listener)
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
    reports = session.reports(session.stored())
    for report in reports:
        for reason in report["verdict"]["reasons"]:
            click.echo(f"{report['contract']['id']}: {reason}", err=True)
    return [Exit(report["verdict"]["exit"]) for report in reports]


# -- `gradproof verify-bundle`: is a bundle whole, and does its evidence carry its verdicts?

SHOWN = 20


@click.command("verify-bundle")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--rerun", multiple=True, metavar="ID", help="Run this check again from its sources (repeatable).")
@click.option("--ask", "solver", type=click.Choice(["z3", "cvc5"]), help="Put the recorded queries to a solver again.")
@click.option("--sha256", metavar="HEX", help="The digest that MANIFEST.json must have, given to you by other means.")
@click.option("--wheel", type=click.Path(path_type=Path, dir_okay=False), help="The wheel that it must be about.")
@click.option(
    "--key",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PUB.pem",
    help="Demand a signature of this ed25519 key, or of another --key (repeatable).",
)
@click.option("--today", is_flag=True, help="Let waivers and GPU evidence run out by today's date, not the bundle's.")
def verify_bundle(
    folder: Path, rerun: tuple[str, ...], solver: str | None, sha256: str | None, wheel: Path | None,
    paths: tuple[Path, ...], today: bool,
) -> int:  # fmt: skip
    """Judge a bundle that gradproof attest wrote. Offline; executes nothing without --rerun.

    Exit code 1: something is missing, changed, or not carried by the evidence. Otherwise the exit code of its verdicts,
    on the day that the bundle states; what has run out since is reported, and counts with --today.
    """
    from gradproof.cli.outputs import warned
    from gradproof.core.outcome import EXIT_CODE, Exit, worst
    from gradproof.extras.attest.manifest import BundleProblem, entry_of
    from gradproof.extras.attest.verify import verify

    keys = []
    if paths:
        from gradproof.extras.attest.manifest import public_key

        keys = [public_key(path, folder) for path in paths]
    judged = verify(folder, keys)
    found = list(judged.problems)
    digest = entry_of(folder, "MANIFEST.json").sha256
    if sha256 is not None and sha256.lower() != digest:
        found.append(BundleProblem("GP447", "MANIFEST.json", f"its sha256 is {digest}, not the one that was reported"))
    if wheel is not None and not found:
        found = _wheel(judged, wheel)
    if not found:
        found = _again(folder, judged, rerun, solver)
    for problem in found[:SHOWN]:
        click.echo(str(problem), err=True)
    if len(found) > SHOWN:
        click.echo(f"and {len(found) - SHOWN} more", err=True)
    if found or judged.reports is None:
        click.echo(f"not to be relied on: {len(found)} problems")
        return EXIT_CODE[Exit.BROKEN]
    assert judged.carried is not None
    warned(judged.carried.session)
    for name, report in judged.reports.items():
        verdict = report["verdict"]
        click.echo(f"the evidence supports: {name}: {verdict['exit']} (exit {verdict['code']})")
    exits = [Exit(report["verdict"]["exit"]) for report in judged.reports.values()]
    later = _dated(judged)
    click.echo(_signature(judged, folder))
    click.echo(f"{len(judged.manifest.files)} files as listed; sha256 of MANIFEST.json {digest}")
    return worst([*exits, *later] if today else exits)


def _dated(judged: Judged) -> list[Exit]:
    """The day by which a bundle is judged, its waivers, and the verdicts that are others by today's."""
    from gradproof.report.views import waiver_words

    assert judged.carried is not None
    assert judged.reports is not None
    session, found = judged.carried.session, []
    if session.demands.now is not None:
        click.echo(f"judged by the clock of {session.demands.now:%Y-%m-%d %H:%M} UTC")
    for report in judged.reports.values():
        for waiver in report["waivers"]:
            click.echo(f"  {waiver_words(waiver)}")
    if session.options.baselines:
        click.echo("the settings name a baseline: no bundle is held to one, gradproof gate and attest are")
    statuses, now = judged.carried.statuses, session.under(replace(session.demands, now=datetime.now(UTC)))
    then = session.verdicts(statuses, *session.contracts)
    for name, verdict in now.verdicts(statuses, *session.contracts).items():
        if name in judged.reports and verdict.exit is not then[name].exit:
            click.echo(f"today: {name}: {verdict.exit} (exit {verdict.code}): {'; '.join(verdict.reasons)}", err=True)
            found.append(verdict.exit)
    return found


def _signature(judged: Judged, folder: Path) -> str:
    """What is known of who signed a bundle that is good otherwise."""
    from gradproof.extras.attest.manifest import ENVELOPE

    if judged.key is not None:
        return f"signed with the key {judged.key.keyid} ({judged.key.path})"
    if (folder / ENVELOPE).exists():
        return "signed, and nobody checked by whom: --key PUB.pem does"
    return "not signed: whoever could write this folder could have made all of it"


def _wheel(judged: Judged, path: Path) -> list[BundleProblem]:
    """Whether a wheel is the one of the bundle, by content. Raises GradproofError GP442 for one that did not run."""
    from gradproof.extras.attest.manifest import BundleProblem, wheel_of

    assert judged.carried is not None
    stated, named = wheel_of(path, judged.carried.store.files), judged.manifest.wheel
    if named is not None and stated.sha256 == named.sha256:
        return []
    return [
        BundleProblem(
            "GP442", path.name, f"its sha256 is {stated.sha256}, and the bundle is about {named or 'no wheel'}"
        )
    ]


def _again(folder: Path, judged: Judged, names: tuple[str, ...], solver: str | None) -> list[BundleProblem]:
    """What runs and queries find that were asked for; what they confirm is printed."""
    from gradproof.extras.attest import write
    from gradproof.extras.attest.manifest import BundleProblem

    found: list[BundleProblem] = []
    assert judged.carried is not None
    for check in [write.chosen(judged.carried, name) for name in names]:
        stated, problem = write.rerun(folder, judged.carried, check)
        if problem is None:
            click.echo(stated)
        else:
            found.append(problem)
    limits = {check.id: check.time_limit for check in judged.carried.checks()}
    for said in write.ask(folder, solver, 600.0, limits) if solver else ():
        if isinstance(said, BundleProblem):
            found.append(said)
        else:
            click.echo(said)
    return found
