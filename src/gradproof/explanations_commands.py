"""Error codes of single commands, GP4xx and GP5xx: what each means and how to mend it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Explanation(NamedTuple):
    """What a code means, and how to mend it."""

    meaning: str
    mend: str


COMMANDS: Mapping[str, Explanation] = {
    "GP401": Explanation(
        "A row of the operator table is refused: the operator has one already, or the row carries no example, so that "
        "nothing would compare it with the real kernel.",
        "Keep one row an operator, and pass examples=[Example(...)] to register.",
    ),
    "GP402": Explanation(
        "The target of gradproof check is not written as FILE.py:FUNCTION.",
        "Write the path of your file, a colon, and the name of the function that trains: train.py:step.",
    ),
    "GP403": Explanation(
        "The file of the target is not there, cannot be read, or is no Python.",
        "Give the path of a .py file that Python itself accepts; the error names the line where it does not.",
    ),
    "GP404": Explanation(
        "The file was imported, and it has no function of this name at its top level.",
        "Mend the name after the colon; the error lists what the file has.",
    ),
    "GP405": Explanation(
        "The training function cannot be called with one argument, or calling it would run nothing.",
        "Write `def step(run): ...` and train with run.accum_steps, run.micro_batch_size and run.windows. "
        "For a whole script use gradproof watch.",
    ),
    "GP406": Explanation(
        "A number or a word of the request is out of range, or the device is not on this machine.",
        "Use a value that the error allows.",
    ),
    "GP407": Explanation(
        "The result could not be written to the place that --out, --format or another option names: it is a folder or "
        "something else that holds no text, or the system refused it.",
        "Name a file in a folder that is there and can be written to, or a stream such as /dev/stdout or a pipe.",
    ),
    "GP408": Explanation(
        "gradproof watch runs one Python script or module, in the interpreter that gradproof is installed in: that is "
        "what a bare `python` means here.",
        "Write it as: gradproof watch -- python train.py ARGS. A launcher has to start gradproof, one for each rank.",
    ),
    "GP409": Explanation(
        "The table of the window protocol, models/window.py, is missing from this installation, so that no order of "
        "backward passes, clips, steps and zeros can be judged.",
        "Install gradproof again from its wheel, or run it from a whole checkout.",
    ),
    "GP410": Explanation(
        "A rank of a data-parallel run ended without a recording, so nothing can be said of any rank.",
        "Run the function on that many ranks by itself; the output of the ranks says what stopped them.",
    ),
    "GP411": Explanation(
        "`gradproof bound` was given something for which there is no bound: a number that is none, an order or a scale "
        "that is not known, or a range in which the sum may overflow.",
        "Give a magnitude and a tolerance as decimals or fractions, and see `gradproof bound --help`.",
    ),
    "GP412": Explanation(
        "gradproof doctor was told to look in a folder that is not there or that it may not read.",
        "Name a folder that you can list.",
    ),
    "GP413": Explanation(
        "`gradproof plan-batch` was given sizes that make no plan: fewer than two of micro-batch, accumulation and "
        "effective batch, a number that is not positive, sizes that disagree, or that leave a rest.",
        "Give two of the three, and an effective batch that micro-batch (or accumulation) times ranks divides.",
    ),
    "GP421": Explanation(
        "A measurement was asked for that would say nothing: lengths of windows that do not rise, too few steps for an "
        "interval, no sample, or ranks on a device that they cannot share.",
        "Use values that the error allows; nothing was run.",
    ),
    "GP422": Explanation(
        "A measured training ended in a loss that is no finite number, so that its document would say nothing.",
        "Use another net or seed, or a smaller learning rate.",
    ),
    "GP430": Explanation(
        "Two outputs of --format go to the same place: both to stdout, where a machine format stands alone, or both to "
        "one file. The format github prints its annotations on stdout.",
        "Give each output but one a path of its own: --format junit=report.xml --format sarif=report.sarif.",
    ),
    "GP431": Explanation(
        "--format names no known format, or a path that is empty.",
        "Use text, json, md, html, junit, sarif, github or ndjson, alone or with =PATH.",
    ),
    "GP432": Explanation(
        "One HTML page was asked for, and the workspace has several contracts.",
        "Put {contract} into the path, which makes a page of each, or name one contract with --contract.",
    ),
    "GP433": Explanation(
        "An option would write a result over something that a run is judged by: what lies in proofs/, models/ or "
        "symbolic/, evidence, pyproject.toml, the baseline, or a YAML, TOML or Python file that is there already.",
        "Name a file elsewhere, such as reports/result.json.",
    ),
    "GP434": Explanation(
        "ndjson is one stream of events for the whole run, so its path cannot have {contract} in it.",
        "Leave {contract} out of the path of ndjson; each event of a verdict names its contract.",
    ),
    "GP440": Explanation(
        "gradproof attest writes a new folder, whole or not at all. This one is not empty, or cannot be written, or "
        "SOURCE_DATE_EPOCH is no time that it could state.",
        "Name a new or an empty folder, and set SOURCE_DATE_EPOCH to whole seconds or not at all.",
    ),
    "GP441": Explanation(
        "There is nothing to attest or to run again: no fresh evidence, a check without evidence in the bundle, or "
        "another engine or machine than the evidence rests on.",
        "Run gradproof verify first; to run a check of a bundle again, install the gradproof that made it.",
    ),
    "GP442": Explanation(
        "The wheel does not hold the engine's files as they were when the checks ran, so the evidence is not about it.",
        "Build the wheel of the sources that ran, or run the checks with that wheel installed.",
    ),
    "GP443": Explanation(
        "The folder has no manifest that can be read, so it is no bundle, or it was cut short.",
        "Name a folder that gradproof attest wrote, whole.",
    ),
    "GP444": Explanation(
        "The manifest is of a version that this gradproof does not know, so it cannot judge the bundle.",
        "Judge it with the release of gradproof that wrote it.",
    ),
    "GP445": Explanation(
        "The manifest lists a file twice, out of order, or at a place that is not inside of the bundle.",
        "Do not rely on the bundle; ask for it again.",
    ),
    "GP446": Explanation(
        "A file of the bundle is missing, is not listed, or is a link or another thing that is no plain file.",
        "Do not rely on the bundle; copy it again, whole and with nothing added.",
    ),
    "GP447": Explanation(
        "A file of the bundle is not the one that the manifest lists: its size or its sha256 differs.",
        "Do not rely on the bundle; copy it again from where it was written.",
    ),
    "GP448": Explanation(
        "Evidence in the bundle is cut short or edited, or its claim disagrees with the contracts, sources or versions "
        "that the bundle carries.",
        "Do not rely on the bundle; run gradproof verify and gradproof attest again.",
    ),
    "GP449": Explanation(
        "The bundle says something that its evidence does not carry: a verdict, a statement, a list, or an answer that "
        "a repeated run or another solver contradicts.",
        "Do not rely on the bundle; the message says what the evidence carries.",
    ),
    "GP450": Explanation(
        "A report could not be written: the disk is full, or the folder of reports may not be written to. Evidence "
        "that could not be written is told with its check, which then counts as not run.",
        "Free the disk, or give the folder its rights, and run again: what was written is reused.",
    ),
    "GP451": Explanation(
        "What a command says could not be written to stdout or stderr: the disk that it goes to is full, or it is no "
        "longer there. Nothing is known of the verdict from this exit code.",
        "Free the disk or send the output elsewhere, and run again; gradproof gate judges the evidence at hand.",
    ),
    "GP470": Explanation(
        "`gradproof init` would overwrite files that are there. Nothing was written.",
        "Name another folder, leave the CI file out with --ci none, or give --force.",
    ),
    "GP471": Explanation(
        "The file that `gradproof init --loop` names has no function of this name at its top level.",
        "Mend the name after the colon, or move the function out of the class or function that it is in.",
    ),
    "GP472": Explanation(
        "The function that `gradproof init --loop` names does not take one argument, so that it could not be called "
        "with micro-batches and with the full batch.",
        "Give the loop one argument, run, and read run.accum_steps, run.micro_batch_size and run.micro_batches there.",
    ),
    "GP473": Explanation(
        "A name given to `gradproof init` cannot be used: a file that Python cannot import by its name, or under whose "
        "name it would import something else (a module of Python, of a package that gradproof needs, or the "
        "workspace's own models/ and symbolic/), a contract whose name is no id, or a folder that a shell would read "
        "as something else.",
        "Rename the file to letters, digits and underscores that nobody else has as a name, or give another folder or "
        "another --name.",
    ),
    "GP474": Explanation(
        "`gradproof init` could not write one of its files. Those that it had written were taken back.",
        "Look at the permissions of the folder and the room on the disk.",
    ),
    "GP475": Explanation(
        "The key that signs a bundle, or that one is judged with, cannot be used: it is no ed25519 key in PEM, it is "
        "encrypted and GRADPROOF_SIGN_PASSPHRASE does not open it, or it lies in the bundle.",
        "Make one with openssl genpkey -algorithm ed25519, write its public half with openssl pkey -pubout, and keep "
        "both outside of the workspace; get a public key by other means than the bundle.",
    ),
    "GP476": Explanation(
        "Signing, and judging a signature, needs securesystemslib with cryptography, and one of them is not installed. "
        "Nothing was signed or judged.",
        "Run python -m pip install 'securesystemslib[crypto]>=1.2', and the command again.",
    ),
    "GP477": Explanation(
        "A signature of the bundle is demanded, by --key or by the envelopes that it lists, and MANIFEST.dsse.json is "
        "missing.",
        "Do not rely on the bundle; ask for the one that gradproof attest --sign wrote.",
    ),
    "GP478": Explanation(
        "An envelope of the bundle is none, or does not hold the statement that this bundle makes: it may belong to "
        "another bundle, or the bundle was changed after it was signed.",
        "Do not rely on the bundle; copy it again, or ask for it again.",
    ),
    "GP479": Explanation(
        "No signature in the envelope is valid and of a key that was given: somebody else signed it, or what was "
        "signed was changed.",
        "Do not rely on the bundle. Where the key was exchanged, get the new public key by other means.",
    ),
    "GP480": Explanation(
        "--shard is not i/n: the number of this part, from 1, and the number of parts.",
        "Write --shard 1/4 on the first of four machines, and 2/4, 3/4 and 4/4 on the others.",
    ),
    "GP481": Explanation(
        "`gradproof diff` was given something that it cannot read: a path without a contract, a report or evidence, a "
        "report that is cut short, or one that concludes more than its parts carry.",
        "Name two contracts, two workspaces, two report.json files or two folders of reports.",
    ),
    "GP482": Explanation(
        "`gradproof verify --watch` prints changes in words until it is interrupted: no document of it is ever whole.",
        "Leave --format out. After each round report.json, report.md and report.html are those of that round.",
    ),
    "GP483": Explanation(
        "Two evidence files answer one claim differently, on the same files and versions. One of them is wrong, or the "
        "check is not deterministic; which, `gradproof merge` cannot know, so it took nothing from any folder.",
        "Run the check again with --no-cache on the machines that the two files came from, and merge again.",
    ),
    "GP484": Explanation(
        "`gradproof merge` was given something that is no folder.",
        "Name folders of reports, such as the ones that a CI job downloaded from its shards.",
    ),
    "GP485": Explanation(
        "--shard-seconds names no report that tells how long checks take. All shards must be cut by the same seconds, "
        "so nothing is guessed in its place.",
        "Give every shard the same report.json of an earlier run, or leave the option out.",
    ),
    "GP486": Explanation(
        "`gradproof merge` could not write evidence into the store, and took back what it had written.",
        "Make room, or make reports/ writable, and merge again.",
    ),
    "GP487": Explanation(
        "The baseline is a report that the workspace's own runs write, so a verdict would be compared with itself.",
        "Copy the reports of a release to a folder of their own, and name that folder as the baseline.",
    ),
    "GP490": Explanation(
        "The workspace's pyproject.toml cannot be read, or is no TOML.",
        "Mend the file at the place that is named; without a table [tool.gradproof] it is not needed at all.",
    ),
    "GP491": Explanation(
        "A key of [tool.gradproof] is unknown, or has a value that it cannot have.",
        "Correct the key or the value; `gradproof config` shows each setting with its source.",
    ),
    "GP492": Explanation(
        "[tool.gradproof] demands or waives something of an obligation that no contract of the workspace has.",
        "Correct the name; `gradproof list` shows the obligations of each check.",
    ),
    "GP493": Explanation(
        "A contract holds a character that turns the direction of text: what a reviewer sees is not what is read.",
        "Remove the character at the place that is named; where a text needs it, write it as an escape in quotes.",
    ),
    "GP501": Explanation(
        "The workspace has no ledger of claims, so there is nothing for gradproof claims to judge.",
        "Write proofs/claims.yaml; docs/claims.md describes its format.",
    ),
    "GP502": Explanation(
        "A row of the ledger names a check that no contract plans. A verdict would rest on nothing.",
        "Write an id that `gradproof list` shows; a test without device and dtype means all of its runs on the CPU.",
    ),
    "GP503": Explanation(
        "A row of the ledger is not decided by what it names: nothing is named, a check is expected to answer the "
        "opposite of what its place in the row needs, or a row that cannot be tested names a test or no reason.",
        "Put a check that is expected to be refuted under refuted_by, others under checks or contradicted_by.",
    ),
    "GP504": Explanation(
        "A row of the ledger names a source that is not among the ledger's sources.",
        "Add the document with its title under sources, or correct the name.",
    ),
    "GP505": Explanation(
        "A figure of the ledger cannot be read or judged: it comes from nowhere or from two places, has no place in "
        "what it comes from, is no arithmetic, or nothing is claimed of it.",
        "Give one of document, evidence, plan and compute, its place, and equals or a limit.",
    ),
}
