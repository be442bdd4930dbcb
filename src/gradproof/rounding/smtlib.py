"""Step contracts as SMT-LIB 2 text in the theory of IEEE floats. Text only: no solver is loaded here.

Each text asks for a counterexample, so `unsat` proves the contract. Two encodings of the error e = t - (s + x):

- residual: a = t - s and x - a in the same format, under |s| >= |x|. That both are exact is a lemma of its own
  (Fast2Sum, Dekker 1971), asked through directed roundings: a result is exact iff it rounds up and down to one number.
- wide: s + x enclosed by the two directed roundings in fp64, and t - (s + x) again. Sound whether or not exact.

"c <= |s + x|" for a number c of the format is asked as c <= |RTZ(s + x)|, which is the same. `halved` weakens
nothing: it asks for half the bound, a contract that is wrong on purpose (for tests). Multiplying e by 2^p is exact:
it cannot overflow where |e| is at most u times a finite number, and 2^p e is normal or zero.
Source: IEEE 754-2019, section 4.3; Barrett et al., the SMT-LIB theory FloatingPoint.
"""

from __future__ import annotations

from gradproof.arith.formats import FORMATS, Format

MOST_DIFFERENCE = 25


def sort(f: Format) -> str:
    """The sort of a format."""
    return f"(_ FloatingPoint {f.bits - f.p} {f.p})"


def power(f: Format, k: int, negative: bool = False) -> str:
    """The literal 2^k, subnormal where it must be. Raises ValueError outside of the format."""
    exponent = f.bits - f.p
    if not f.emin - f.p + 1 <= k <= f.emax:
        raise ValueError(f"2^{k} is no number of {f.name}")
    field, rest = (k - f.emin + 1, 0) if k >= f.emin else (0, 1 << (k - f.emin + f.p - 1))
    return f"(fp #b{int(negative)} #b{field:0{exponent}b} #b{rest:0{f.p - 1}b})"


def _head(f: Format, names: str) -> list[str]:
    lines = ["(set-logic QF_BVFP)"]
    lines += [f"(declare-const {name} {sort(f)})" for name in names.split()]
    lines.append(f"(define-fun fin ((v {sort(f)})) Bool (not (or (fp.isInfinite v) (fp.isNaN v))))")
    return lines


def _ask(lines: list[str], claim: str) -> str:
    return "\n".join([*lines, f"(assert (not {claim}))", "(check-sat)", ""])


def _addition(f: Format) -> list[str]:
    return [*_head(f, "s x"), f"(define-fun t () {sort(f)} (fp.add RNE s x))", "(assert (and (fin s) (fin x) (fin t)))"]


def _residual(f: Format) -> list[str]:
    lines = [*_addition(f), "(assert (fp.leq (fp.abs x) (fp.abs s)))"]
    lines.append(f"(define-fun a () {sort(f)} (fp.sub RNE t s))")
    return [*lines, f"(define-fun e () {sort(f)} (fp.abs (fp.sub RNE x a)))"]


def _exact(operation: str, *terms: str) -> str:
    up, down = (f"({operation} {mode} {' '.join(terms)})" for mode in ("RTP", "RTN"))
    return f"(fp.eq {up} {down})"


def add_error_representable(f: Format) -> str:
    """t - s is exact and x - (t - s) is exact: Fast2Sum, where |s| >= |x| and t is finite."""
    return _ask(_residual(f), f"(and {_exact('fp.sub', 't', 's')} {_exact('fp.sub', 'x', 'a')})")


def add_at_most_terms(f: Format, halved: int = 0) -> str:
    """|e| <= |x| where |x| <= |s|; with `halved` > 0, 2^halved |e| <= |x|, which is wrong."""
    e = f"(fp.mul RNE {power(f, halved)} e)" if halved else "e"
    return _ask(_residual(f), f"(fp.leq {e} (fp.abs x))")


def add_grid(f: Format) -> str:
    """-B <= s + x <= B, B a number of the format, gives |t| <= B."""
    lines = [*_head(f, "s x B"), "(assert (and (fin s) (fin x) (fin B)))"]
    lines.append("(assert (and (fp.leq (fp.add RTP s x) B) (fp.geq (fp.add RTN s x) (fp.neg B))))")
    return _ask(lines, "(fp.leq (fp.abs (fp.add RNE s x)) B)")


def add_exact(f: Format) -> str:
    """s + x a number of the format: then RNE gives it."""
    lines = [*_addition(f), f"(assert {_exact('fp.add', 's', 'x')})"]
    return _ask(lines, "(fp.eq t (fp.add RTN s x))")


def add_subnormal(f: Format) -> str:
    """|s + x| <= 2^emin: then s + x is a number of the format, and t is it."""
    lines = [*_addition(f), f"(assert (fp.leq (fp.abs (fp.add RTZ s x)) {power(f, f.emin)}))"]
    lines.append(f"(assert (fp.leq (fp.abs t) {power(f, f.emin)}))")
    return _ask(lines, f"(and {_exact('fp.add', 's', 'x')} (fp.eq t (fp.add RTZ s x)))")


def add_ftz(f: Format) -> str:
    """Where t or s + x is below 2^emin, |s + x| <= 2^emin: what a flush to zero costs at most."""
    least = power(f, f.emin)
    lines = [*_addition(f), f"(assert (or (fp.lt (fp.abs t) {least}) (fp.lt (fp.abs (fp.add RTZ s x)) {least})))"]
    return _ask(lines, f"(and (fp.leq (fp.add RTP s x) {least}) (fp.geq (fp.add RTN s x) (fp.neg {least})))")


def _any_binade(f: Format, wide: Format, name: str, halved: int) -> list[str]:
    """`name` = 2^(k+1) for every k from emin to emax, and h = u 2^k, in the wide format through its exponent field."""
    e, rest, bias = wide.bits - wide.p, f"#b{0:0{wide.p - 1}b}", wide.emax
    low, high, down = bias + f.emin + 1, bias + f.emax + 1, f.p + 1 + halved
    return [
        f"(declare-const k (_ BitVec {e}))",
        f"(assert (and (bvuge k #b{low:0{e}b}) (bvule k #b{high:0{e}b})))",
        f"(define-fun {name} () {sort(wide)} (fp #b0 k {rest}))",
        f"(define-fun h () {sort(wide)} (fp #b0 (bvsub k #b{down:0{e}b}) {rest}))",
    ]


def _widen(f: Format, wide: Format) -> str:
    return f"(define-fun up ((v {sort(f)})) {sort(wide)} ((_ to_fp {wide.bits - wide.p} {wide.p}) RNE v))"


def add_half_ulp_wide(f: Format, halved: int = 0) -> str:
    """|s + x| <= 2^(k+1) gives |e| <= u 2^k, for every k >= emin at once, through fp64."""
    wide = FORMATS["fp64"]
    lines = [*_addition(f), _widen(f, wide), "(assert (fp.leq (fp.abs x) (fp.abs s)))"]
    for name, mode in (("zl", "RTN"), ("zh", "RTP")):
        lines.append(f"(define-fun {name} () {sort(wide)} (fp.add {mode} (up s) (up x)))")
    lines += [*_any_binade(f, wide, "B", halved), "(assert (and (fp.leq zh B) (fp.geq zl (fp.neg B))))"]
    return _ask(lines, "(and (fp.leq (fp.sub RTP (up t) zl) h) (fp.geq (fp.sub RTN (up t) zh) (fp.neg h)))")


def add_half_ulp_split(f: Format, difference: int, opposite: bool, halved: int = 0) -> str:
    """The same for s in [1, 2) and x of either sign in [2^-d, 2^(1-d)), |x| <= s: one query a difference d and a sign.

    2^j <= |s + x| < 2^(j+1) gives |e| <= u 2^j for j = 1, 0, ..., -p. Raises ValueError where x would be subnormal.
    """
    if -difference < f.emin:
        raise ValueError(f"x would be subnormal in {f.name}")
    exponent, bias = f.bits - f.p, f.emax
    lines = [
        "(set-logic QF_BVFP)",
        f"(declare-const m (_ BitVec {f.p - 1}))",
        f"(declare-const w (_ BitVec {f.p - 1}))",
    ]
    lines.append(f"(define-fun s () {sort(f)} (fp #b0 #b{bias:0{exponent}b} m))")
    lines.append(f"(define-fun x () {sort(f)} (fp #b{int(opposite)} #b{bias - difference:0{exponent}b} w))")
    lines.append("(assert (fp.leq (fp.abs x) s))")
    lines.append(f"(define-fun t () {sort(f)} (fp.add RNE s x))")
    lines.append(f"(define-fun a () {sort(f)} (fp.sub RNE t s))")
    lines.append(f"(define-fun e () {sort(f)} (fp.abs (fp.sub RNE x a)))")
    lines.append(f"(define-fun z () {sort(f)} (fp.abs (fp.add RTZ s x)))")
    zero = f"(fp #b0 #b{0:0{exponent}b} #b{0:0{f.p - 1}b})"
    kept = []
    for j in range(1, -f.p - 1, -1):
        down = j - f.p - halved
        h = power(f, down) if down >= f.emin - f.p + 1 else zero
        kept.append(f"(or (fp.geq z {power(f, j + 1)}) (fp.leq e {h}))")
    return _ask(lines, f"(and {' '.join(kept)})")


def _rounding(f: Format) -> list[str]:
    """t = the fp64 number z rounded to f; err >= |t - z| (an upward rounding), a = |z|."""
    wide = FORMATS["fp64"]
    lines = [*_head(f, "B"), f"(declare-const z {sort(wide)})", _widen(f, wide)]
    lines += [f"(define-fun t () {sort(f)} ((_ to_fp {f.bits - f.p} {f.p}) RNE z))"]
    lines += ["(assert (not (fp.isNaN z)))", "(assert (fin t))", "(assert (fin B))"]
    lines.append(f"(define-fun err () {sort(wide)} (fp.sub RTP (fp.max (up t) z) (fp.min (up t) z)))")
    return [*lines, f"(define-fun a () {sort(wide)} (fp.abs z))"]


def round_text(f: Format, form: str, halved: int = 0) -> str:
    """One form of the rounding of any fp64 number to f. Raises KeyError for a form that has no text."""
    wide, lines = FORMATS["fp64"], _rounding(f)
    least, unit = power(wide, f.emin), power(wide, f.p + halved)
    if form == "half-ulp":
        return _ask([*lines, *_any_binade(f, wide, "top", halved), "(assert (fp.leq a top))"], "(fp.leq err h)")
    claims = {
        "relative": (f"(fp.geq a {least})", f"(fp.leq (fp.mul RTP {unit} err) a)"),
        "subnormal": (f"(fp.leq a {least})", f"(fp.leq err {power(wide, f.emin - f.p - halved)})"),
        "grid": ("true", "(and (=> (fp.leq z (up B)) (fp.leq t B)) (=> (fp.geq z (up B)) (fp.geq t B)))"),
        "exact": ("(fp.eq z (up B))", "(fp.eq (up t) z)"),
        "ftz": (f"(or (fp.lt (fp.abs (up t)) {least}) (fp.lt a {least}))", f"(fp.leq a {least})"),
    }
    given, claim = claims[form]
    return _ask([*lines, f"(assert {given})"], claim)


def split_texts(f: Format, halved: int = 0) -> tuple[str, ...]:
    """Every query of the split encoding: differences 0 to 25 (fewer where x would be subnormal), both signs."""
    most = min(MOST_DIFFERENCE, -f.emin)
    pairs = [(d, opposite) for d in range(most + 1) for opposite in (False, True)]
    return tuple(add_half_ulp_split(f, d, opposite, halved) for d, opposite in pairs)
