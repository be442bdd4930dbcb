"""Every stable error code: what it means and how to fix it. `gradproof explain CODE` prints a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Explanation(NamedTuple):
    """What a code means, and how to fix it."""

    meaning: str
    help: str


EXPLANATIONS: Mapping[str, Explanation] = {
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
        "Correct the name after the colon; the error lists what the file has.",
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
        "The command needs a package that is not installed where gradproof runs. gradproof-light brings no PyTorch; Z3 "
        "and CrossHair are its extra proofs, Hypothesis is its extra tests.",
        "Run what the message names. PyTorch for a GPU is installed as pytorch.org says.",
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
        "gradproof doctor was asked to look in a folder that is not there or that it may not read.",
        "Name a folder that you can list.",
    ),
    "GP413": Explanation(
        "`gradproof plan-batch` was given sizes that make no plan: fewer than two of micro-batch, accumulation and "
        "effective batch, a number that is not positive, sizes that disagree, or that leave a rest.",
        "Give two of the three, and an effective batch that micro-batch (or accumulation) times ranks divides.",
    ),
    "GP414": Explanation(
        "A law that register_law was given makes no sense, or it is not true of the operator: a run with numbers tried "
        "it on the kernel, and the results differ.",
        "Correct the law: docs/own-loop.md says what its letters mean. A wrong law could prove what is false.",
    ),
    "GP415": Explanation(
        "The file is no certificate of a step, or no whole one: it is cut, or its digest is not that of its records.",
        "Write it again with gradproof check --certificate FILE, and copy it whole.",
    ),
    "GP416": Explanation(
        "A script of `gradproof check --script` cannot be compared: a run of it failed or made too few steps, or the "
        "arguments of --accum-arg and --batch-arg did not make N micro-batches of one window the full batch.",
        "The error names the run and what it did. Correct the name or the value of the argument.",
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
        "that could not be written is reported with its check, which then counts as not run.",
        "Free the disk, or give the folder its rights, and run again: what was written is reused.",
    ),
    "GP451": Explanation(
        "What a command says could not be written to stdout or stderr: the disk that it goes to is full, or it is no "
        "longer there. Nothing is known of the verdict from this exit code.",
        "Free the disk or send the output elsewhere, and run again; gradproof gate judges the stored evidence.",
    ),
    "GP470": Explanation(
        "`gradproof init` would overwrite files that are there. Nothing was written.",
        "Name another folder, leave the CI file out with --ci none, or give --force.",
    ),
    "GP471": Explanation(
        "The file that `gradproof init --loop` names has no function of this name at its top level.",
        "Correct the name after the colon, or move the function out of the class or function that it is in.",
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
        "Correct the file at the place that is named; without a table [tool.gradproof] it is not needed at all.",
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
    "GP495": Explanation(
        "No scheduler answers at the address of --scheduler, or it went away during the run (exit code 6). Evidence "
        "that had come back is kept.",
        "Start one with `dask scheduler`, name its address, and run the command again: it goes on where it ended.",
    ),
    "GP496": Explanation(
        "No worker of the scheduler can run anything (exit code 6): there is none, or each was lost, hangs, or has "
        "another gradproof, torch, solver or Python, with which its evidence would not count here.",
        "Install the same versions there, as the message lists them, and start again what hangs.",
    ),
    "GP497": Explanation(
        "The workspace is too big to be sent to workers. Every file is sent that a check might read.",
        "Move what no check reads out of the workspace, or into a folder whose name begins with a dot.",
    ),
    "GP498": Explanation(
        "--engine dask and --scheduler belong together: one was given without the other.",
        "Write --engine dask --scheduler tcp://host:8786, or leave both out.",
    ),
    "GP499": Explanation(
        "The workspace has a symbolic link that leads out of it. A link counts as the file that it leads to, so a file "
        "that is none of the workspace's would be sent to every worker.",
        "Put a copy in its place, or move the link into a folder whose name begins with a dot, which is not sent.",
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
    "GP101": Explanation(
        "The contract has a key that its dialect does not know. An unknown key is never skipped: it may be a claim.",
        "Correct the spelling (the nearest known key is suggested) or remove the key.",
    ),
    "GP102": Explanation(
        "A key stands twice in one mapping. YAML readers keep one of the two silently, so half of the text is lost.",
        "Remove or rename one of the two.",
    ),
    "GP103": Explanation(
        "A key that the clause needs is missing, or its value is blank or an empty list.",
        "Add the key. A contract that uses any key of gradproof's dialect is held to all of them.",
    ),
    "GP104": Explanation(
        'A value has the wrong type. Nothing is converted: the text "4" is no number, and true is no number either.',
        "Write the value with the type that is expected, with or without quotes.",
    ),
    "GP105": Explanation(
        "A value is none of the words that are allowed in its place.", "Use one of the words that the error lists."
    ),
    "GP106": Explanation(
        "A bound has no name or no reason. A number alone does not say what is limited or why the limit is enough.",
        "Give the bound a name and say in its reason why it has this value and what reaching it means.",
    ),
    "GP107": Explanation(
        "A number is out of range: bounds are whole and positive, tolerances positive, finite and decimal.",
        "Write a number in the range that the error states.",
    ),
    "GP108": Explanation(
        "Two clauses have the same id. Evidence is filed under ids, so one would be taken for the other.",
        "Give one of the two another id.",
    ),
    "GP109": Explanation(
        "A check or a gate criterion names an obligation that the contract does not have, so it would check nothing.",
        "Correct the name or add the obligation.",
    ),
    "GP110": Explanation(
        "A harness rests on a stub that the contract does not declare, so nobody would check the stub.",
        "Correct the name or declare the stub under stubs.",
    ),
    "GP111": Explanation(
        "A tolerance does not say for which dtype it holds. One number cannot be right for fp32 and for fp16.",
        "Write a list with dtype, value and metric for each dtype.",
    ),
    "GP112": Explanation(
        "A harness's bound differs from its named bound (micro_batches, or the first one), so one of them is not used.",
        "Write the same number in both places.",
    ),
    "GP113": Explanation(
        "No harness and no falsification test names this obligation, so nothing could discharge it.",
        "Add a check that names it, or remove the obligation.",
    ),
    "GP114": Explanation(
        "A gate check has no criteria: nothing says which obligations decide it.",
        "Add its name to qa_gate.criteria with the ids of its obligations.",
    ),
    "GP115": Explanation(
        "The contract is empty or states no obligation. Nothing claimed is not the same as everything proved.",
        "State at least one obligation under proof_obligations.",
    ),
    "GP116": Explanation(
        "The contract's top level is a list or a single value.",
        "Start the file with metadata: and the other sections at the left margin.",
    ),
    "GP117": Explanation(
        "The file is not YAML 1.2. Only the first such mistake can be seen; the rest of the file was not read.",
        "Look at the place for an open quote or bracket, a tab, or a wrong indentation.",
    ),
    "GP118": Explanation(
        "The file is not UTF-8 text, or an escape in it makes half of a surrogate pair, which UTF-8 cannot write.",
        "Save it as UTF-8, and write a character itself or with one escape of eight digits, such as \\U0001F600.",
    ),
    "GP119": Explanation(
        "The contract cannot be read: it is not there, it is a folder, or it may not be opened.",
        "Give the path of a contract.yaml that can be read.",
    ),
    "GP120": Explanation(
        "The contract uses an anchor, an alias, a merge key, an explicit tag, a directive or a second document. "
        "A clause must mean what stands in its place.",
        "Write the value out where it belongs, in one plain document.",
    ),
    "GP121": Explanation(
        "The contract is too large or nested too deeply to be read safely.", "Split it into several contracts."
    ),
    "GP122": Explanation(
        "A name has the wrong form: ids become file names, and a harness or subject is module.path:attribute.",
        "Write the name in the form that the error states.",
    ),
    "GP123": Explanation(
        "Warning: the contract builds on one that is not beside it, which counts as not discharged and keeps it open.",
        "Add the other contract's folder under proofs/, or remove it from depends_on.",
    ),
    "GP124": Explanation(
        "Warning: an obligation has no id. One was made from the contract's name and the obligation's position.",
        "Write an id down: a made one changes when obligations are reordered.",
    ),
    "GP125": Explanation(
        "Warning: a tolerance is one number without dtype and metric. It is kept, and nothing is gated on it.",
        "Write a list with dtype, value and metric for each dtype.",
    ),
    "GP126": Explanation(
        "Warning: a bound has no name and no reason.", "Add bounds with a name, a value and a reason."
    ),
    "GP127": Explanation(
        "Warning: a check names nothing that gradproof can run, so it counts as NOT_RUN.",
        "Write harness: module.path:attribute.",
    ),
    "GP128": Explanation(
        "The number of obligations that the contract states by hand is not the number that it has.",
        "Correct the number or remove it.",
    ),
    "GP129": Explanation(
        "A list names the same thing twice, so a count of it would be too high, or two entries could disagree.",
        "Remove one of the two.",
    ),
    "GP130": Explanation(
        "The gate has criteria for a name that is not among its checks, so they would decide nothing.",
        "Add the name to qa_gate.checks, or remove the criteria.",
    ),
    "GP131": Explanation(
        "No check of the contract has to kill the gate's seeded bug, so the gate could not turn red on it.",
        "Name a mutant that a harness or a falsification test must kill.",
    ),
    "GP132": Explanation(
        "An obligation requires a layer on which none of its checks runs, so the gate could never be met.",
        "Add a check on that layer, or do not require it.",
    ),
    "GP133": Explanation(
        "A check that is expected to hold names no mutant. A check that nobody has seen fail does not count.",
        "Name under mutants the bugs that it must refute.",
    ),
    "GP134": Explanation(
        "Warning: the contract has no gate, so nothing can be released on it.",
        "Add qa_gate with checks and pass_criteria.",
    ),
    "GP135": Explanation(
        "The gate requires a certificate, or a second solver, of a strategy that no harness of the contract has.",
        "Correct the strategy under qa_gate.require, or remove it.",
    ),
    "GP136": Explanation(
        "A stub, or a harness of step contracts, names a lemma that there is not, so it would rest on nothing.",
        "Write a name that `python -m gradproof.rounding.lemma_store --list` prints, or a shell pattern of such names.",
    ),
    "GP137": Explanation(
        "`qa_gate` demands or waives something of an obligation that the contract does not have.",
        "Correct the name under `least` or `waivers`, or remove the entry.",
    ),
    "GP201": Explanation(
        "The folder is no workspace: it lacks proofs/, models/ or symbolic/. The packaged reference stands in for one "
        "only where neither the folder nor its project has a part of one, and never in CI (where CI, TF_BUILD, "
        "TEAMCITY_VERSION, JENKINS_URL or CODEBUILD_BUILD_ID is set).",
        "Change to a workspace, or name one with --workspace; to judge the packaged reference in CI, set that empty.",
    ),
    "GP202": Explanation(
        "A harness, subject or registry is not written as module:attribute.",
        "Write it as package.module:name; the subject of a mutant is module:REGISTRY[name].",
    ),
    "GP203": Explanation(
        "A module that the contract names is not in the workspace.", "Correct the name, or add the file."
    ),
    "GP204": Explanation(
        "A module of the workspace has no attribute of the name that the contract gives.",
        "Correct the name; the error lists what the module has.",
    ),
    "GP205": Explanation(
        "A module of the workspace cannot be imported: it has a syntax error, or running it raised an exception.",
        "Correct the module at the line that the error names.",
    ),
    "GP206": Explanation(
        "A package called models or symbolic that belongs to somebody else is already loaded in this process.",
        "Run each workspace in a process of its own.",
    ),
    "GP207": Explanation(
        "The import system found models or symbolic outside the workspace, so another text would be verified.",
        "Take the other folder off PYTHONPATH, and add __init__.py to the workspace's own.",
    ),
    "GP208": Explanation(
        "The workspace has no contract: nothing is claimed, so nothing can be verified.",
        "Write proofs/<name>/contract.yaml.",
    ),
    "GP209": Explanation(
        "A registry has no mutant of this name.", "Correct the mutant's name; the error lists what there is."
    ),
    "GP210": Explanation(
        "Two checks have the same id. Evidence is filed under ids, so one would be taken for the other.",
        "Rename one of them.",
    ),
    "GP211": Explanation(
        "The file is no evidence to believe: it was edited, cut short, moved, or written by something else.",
        "Run the check again; never edit evidence.",
    ),
    "GP212": Explanation(
        "--contract names no contract of the workspace and no file.",
        "Give the name of a folder below proofs/, or a path.",
    ),
    "GP213": Explanation(
        "The evidence records no counterexample to replay.",
        "Name the evidence of a refuted check, or a control with --control.",
    ),
    "GP214": Explanation("The check has no control of this name.", "Give the name of one of its mutants, or empty."),
    "GP215": Explanation(
        "This kind of check leaves no numbers that could be replayed.", "Replay the checks that it ran instead."
    ),
    "GP216": Explanation(
        "The id is no word of gradproof, and nothing in the workspace has it.", "Look at gradproof list."
    ),
    "GP217": Explanation(
        "Two contract files have the same name. The verdict on one would be given by the checks of the other.",
        "Rename the folder of one of them, or name only one with --contract.",
    ),
    "GP218": Explanation(
        "The rounding study asks about the contract's tolerances, and no contract of this installation states them.",
        "Run it from a whole checkout, or install gradproof again from its wheel.",
    ),
    "GP219": Explanation(
        "A file that a study depends on was edited while it ran, so its numbers belong to no one text.",
        "Run it again, and leave src/gradproof, models and symbolic alone meanwhile.",
    ),
    "GP220": Explanation(
        "Contracts build on each other in a circle, so none of them could ever be discharged.",
        "Take one of the names out of depends_on; the error names the circle and the entry that closes it.",
    ),
    "GP301": Explanation(
        "A check names a mutant that the workspace's registry does not have, so nobody could watch the check fail.",
        "Add the mutant to the registry, or take its name out of the contract.",
    ),
    "GP302": Explanation(
        "A stub_float check rests on one stub, so that it is clear which promises the proof uses.",
        "Name exactly one stub; a higher degree contains the lower ones.",
    ),
    "GP303": Explanation(
        "The contract names no empty body for this check's subject, so nobody could watch the check fail on it.",
        "Name one under subjects.empty (subjects.torch_empty for runs).",
    ),
    "GP304": Explanation(
        "A check of step contracts, or a stub, names no lemma, or one that there is not: it would rest on nothing.",
        "Write a name that `python -m gradproof.rounding.lemma_store --list` prints, or a shell pattern of such names.",
    ),
}
