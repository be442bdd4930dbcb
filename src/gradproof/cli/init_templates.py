"""The files that `gradproof init` writes, as templates: `$name` is filled in, `$$` is a dollar sign."""

from __future__ import annotations

from string import Template

CONTRACT = Template("""\
# Written by gradproof init. It is yours now: edit it, and `gradproof verify` holds the loop to what it says.
metadata:
  version: "1.0.0"
  description: "$loop accumulates gradients as its full batch does"
subjects: {torch: "models.loop:loop", torch_empty: "models.loop:empty", torch_mutants: "models.loop:MUTANTS"}
equations:
  accumulated_gradient:
    formula: "G_accum = sum_i (n_i / n) grad L_i = grad L_full"
    domain: "the micro-batches i of a window, with n_i of its n samples each"
    codomain: "the gradient that is handed to the optimizer"
    assumptions: ["the loss of a sample does not depend on the other samples of its micro-batch"]
proof_obligations:
$obligations
step_proofs:
  - id: STEP-LOOP-001
    obligation: GA-EQ-001
    property: "the gradient that $loop hands to its optimizer is that of the full batch, for all weights and inputs"
    harness: "symbolic.loop:harness"
    expect: holds
    bounds:
      - {name: micro_batches, value: $n, reason: "$why_n"}
      - {name: windows, value: 2, reason: "the second window begins with weights and state that the first has moved"}
    params: {nets: [loop], n: [$n], optimizers: [own], micro_batch: $micro_batch, tail: $tail, domains: [real, field]}
    mutants: [$equality]
$note    assumptions:
      - "reals are not floats: what rounding adds is not bounded here"
      - "the micro-batches are the full batch's samples; where they are not, no obligation holds"
    time_limit: $seconds
  - id: STEP-LOOP-002
    obligation: GA-INV-001
    property: "the loss that $loop reports, or differentiates, is the mean of its window"
    harness: "symbolic.loop:harness"
    expect: holds
    bounds:
      - {name: micro_batches, value: $n, reason: "a loss that is lost or counted twice shows in a window of $n"}
      - {name: windows, value: 2, reason: "two, so that a running loss which is not reset shows in the second"}
    params: {nets: [loop], n: [$n], optimizers: [own], micro_batch: $micro_batch, tail: $tail, domains: [field]}
    mutants: [$loss]
    assumptions: ["losses that the function returns as numbers are compared within rounding, on the recorded run"]
    time_limit: $seconds
  - id: STEP-LOOP-003
    obligations: [$protocol]
    property: "$loop zeroes its gradients, sums them in fp32, clips and steps once a window, in this order"
    harness: "symbolic.loop:harness"
    expect: holds
    bounds:
      - {name: micro_batches, value: $n, reason: "a step, clip or zero at a wrong micro-batch shows in a window of $n"}
      - {name: windows, value: 2, reason: "two, so that a gradient that one window leaves behind meets the next"}
    params: {nets: [loop], n: [$n], optimizers: [own], micro_batch: $micro_batch, tail: $tail, domains: [field]}
    mutants: [$protocol_mutants]
    assumptions: ["the events are those of the recorded run; a branch that it did not take is not covered"]
    time_limit: $seconds
qa_gate:
  id: GATE-LOOP-001
  name: "$name"
  checks: [full_batch, window]
  pass_criteria: "every obligation is discharged, and every mutant of the loop is killed"
  falsification: "the first micro-batch of each window counts twice"
  criteria: {full_batch: [GA-EQ-001, GA-INV-001], window: [GA-INV-002, GA-INV-003, GA-INV-004, GA-INV-005]}
  seeded_bug: first_counts_twice
""")

CLIPPED = """\
    note: "the mutant not_divided is left out: this loop clips, and a clip that binds hides a factor of all gradients"
"""

OBLIGATION = Template("""\
  - id: $id
    type: $type
    property: "$property"
    formal: "$formal"
    layers: {ci: [step], release: [step]}""")

OBLIGATIONS: tuple[tuple[str, str, str], ...] = (
    ("GA-EQ-001", "equivalence", "G_accum = G_full"),
    ("GA-INV-001", "invariant", "sum_i (n_i / n) L_i = L_full"),
    ("GA-INV-002", "invariant", "at the first micro-batch of a window, G = 0"),
    ("GA-INV-003", "invariant", "steps = windows, and step k comes after the last micro-batch of window k"),
    ("GA-INV-004", "invariant", "dtype(G) has at least the precision of fp32"),
    ("GA-INV-005", "ordering", "every clip comes after the last micro-batch, and before the step"),
)
"""Id, type and formula of what a recorded loop is held to; the property of each is the verifier's own."""

MODELS = Template('''\
"""The subject: $loop, the loop that really trains; and what must not pass for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gradproof.harness import mutants_of

sys.path.insert(0, str(Path(__file__).parents[1] / $imports))

from $module import $function as loop  # noqa: E402

MUTANTS = mutants_of(loop)


def empty(run: Any) -> None:
    """The empty body: it trains nothing, and every check must refute it."""
''')

SYMBOLIC = '''\
"""The harness: the loop is called as it is, once with micro-batches and once with the full batch."""

from __future__ import annotations

from gradproof.harness import LoopHarness

harness = LoopHarness()
'''

GITHUB = Template("""\
# Written by gradproof init: the gate, on every push and pull request.
name: gradproof
on: [push, pull_request]
permissions:
  contents: read
jobs:
  gate:
    runs-on: ubuntu-latest
    timeout-minutes: 20
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
$install      # Until gradproof is on a package index, its wheel lies beside the code: pip looks there as well.
      - run: python -P -m pip install --find-links . "gradproof==$version"
      - run: |
          mkdir -p gradproof-reports
          gradproof verify --quiet --workspace "$workspace" --format github \\
            --format junit=gradproof-reports/report.junit.xml \\
            --format sarif=gradproof-reports/report.sarif
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: gradproof
          path: gradproof-reports/
""")
GITHUB_INSTALL = "      - run: python -P -m pip install -r requirements.txt\n"

GITLAB = Template("""\
# Written by gradproof init: the gate, on every push and merge request.
gradproof:
  image: python:3.12
  timeout: 20 minutes
  script:
$install    # Until gradproof is on a package index, its wheel lies beside the code: pip looks there as well.
    - python -P -m pip install --find-links . "gradproof==$version"
    - gradproof verify --quiet --workspace "$workspace" --format junit=gradproof.junit.xml
  artifacts:
    when: always
    paths: [gradproof.junit.xml]
    reports:
      junit: gradproof.junit.xml
""")
GITLAB_INSTALL = "    - python -P -m pip install -r requirements.txt\n"

PACKAGE = ""
IGNORED = "# What gradproof generates here is made again by gradproof verify.\n*\n!.gitignore\n"
