"""Every stable error code: what it means and how to mend it. `gradproof explain CODE` prints a row.

GP1xx: contracts. GP2xx: command line, workspace and store. GP3xx: backends and models. GP4xx and GP5xx: commands, in
gradproof.explanations_commands. A code is never reused.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradproof.explanations_commands import COMMANDS, Explanation

EXPLANATIONS: Mapping[str, Explanation] = {
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
        "A value is none of the words that are allowed in its place.",
        "Use one of the words that the error lists.",
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
        "The contract is too large or nested too deeply to be read safely.",
        "Split it into several contracts.",
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
        "Warning: a bound has no name and no reason.",
        "Add bounds with a name, a value and a reason.",
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
        "Write a name that `python -m gradproof.rounding.lemmas --list` prints, or a shell pattern of such names.",
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
        "A module that the contract names is not in the workspace.",
        "Correct the name, or add the file.",
    ),
    "GP204": Explanation(
        "A module of the workspace has no attribute of the name that the contract gives.",
        "Correct the name; the error lists what the module has.",
    ),
    "GP205": Explanation(
        "A module of the workspace cannot be imported: it has a syntax error, or running it raised an exception.",
        "Mend the module at the line that the error names.",
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
        "A registry has no mutant of this name.",
        "Correct the mutant's name; the error lists what there is.",
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
    "GP214": Explanation(
        "The check has no control of this name.",
        "Give the name of one of its mutants, or empty.",
    ),
    "GP215": Explanation(
        "This kind of check leaves no numbers that could be replayed.",
        "Replay the checks that it ran instead.",
    ),
    "GP216": Explanation(
        "The id is no word of gradproof, and nothing in the workspace has it.",
        "Look at gradproof list.",
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
        "Write a name that `python -m gradproof.rounding.lemmas --list` prints, or a shell pattern of such names.",
    ),
    **COMMANDS,
}
