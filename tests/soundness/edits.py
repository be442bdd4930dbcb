"""What a bug does to the lines of a step: other text, other lines, another place, a condition."""

from __future__ import annotations

from collections.abc import Callable

from tests.soundness.compose import Slots

Edit = Callable[[Slots], None]


def replaced(slot: str, *pairs: tuple[str, str]) -> Edit:
    """Other text in a slot."""

    def edit(slots: Slots) -> None:
        for old, new in pairs:
            slots[slot] = [text.replace(old, new) for text in slots[slot]]

    return edit


def put(slot: str, *lines: str) -> Edit:
    """Other lines in a slot."""

    def edit(slots: Slots) -> None:
        slots[slot] = list(lines)

    return edit


def added(slot: str, *lines: str) -> Edit:
    """Further lines in a slot."""

    def edit(slots: Slots) -> None:
        slots[slot] = [*slots[slot], *lines]

    return edit


def begun(*lines: str) -> Edit:
    """Lines before the others of each micro-batch."""

    def edit(slots: Slots) -> None:
        slots["begin"] = [*lines, *slots["begin"]]

    return edit


def moved(names: tuple[str, ...], slot: str, when: str = "", otherwise: str = "", keep: bool = False) -> Edit:
    """The lines of some slots stand in another one as well, or instead, under a condition each."""

    def edit(slots: Slots) -> None:
        lines = [text for name in names for text in slots[name]]
        for name in names:
            slots[name] = slots[name] if keep else [under(otherwise, text) for text in slots[name]] if otherwise else []
        slots[slot] = [*slots[slot], *(under(when, text) if when else text for text in lines)]

    return edit


def under(condition: str, text: str) -> str:
    """Lines under a condition."""
    return f"if {condition}:\n" + "\n".join("    " + line for line in text.splitlines())


def conditional(slot: str, condition: str) -> Edit:
    """The lines of a slot under a condition."""

    def edit(slots: Slots) -> None:
        slots[slot] = [under(condition, text) for text in slots[slot]]

    return edit


def several(*edits: Edit) -> Edit:
    """Some edits after each other."""

    def edit(slots: Slots) -> None:
        for one in edits:
            one(slots)

    return edit


def narrow(kind: str) -> Edit:
    """Buffers of half the bits."""
    zeros, made = ("torch.zeros_like(p)", f"torch.zeros_like(p, dtype=torch.{kind})"), "p.grad = b.to(p.dtype)"
    return several(
        replaced("setup", zeros, ("dtype=run.dtype)\naccumulates", f"dtype=torch.{kind})\naccumulates")),
        replaced("window", zeros),
        replaced("store", ("[p.grad for p in params]", f"[p.grad.to(torch.{kind}) for p in params]"),
                 ("held[name] + p.grad", f"(held[name] + p.grad).to(torch.{kind})")),
        replaced("whole", ("p.grad = b.clone()", made), ("held[name]", "held[name].to(p.dtype)"),
                 ("held[p].clone()", "held[p].to(p.dtype)"), (".view_as(p).clone()", ".view_as(p).to(p.dtype)")),
    )  # fmt: skip
