"""What the contract list is made of: seams, each with the upstream names that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["class", "method", "attribute", "field", "function", "hook"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """One name, why it is used and what would replace it.

    `signature` holds the parameter names without `self`, where they are relied on. An `attribute`
    is set on instances or the class; a `field` is one of a dataclass, struct or named tuple; a
    `hook` is what the class or module looks for on objects of ours, by a string.
    """

    module: str
    qualname: str
    kind: Kind
    signature: tuple[str, ...] | None
    seam: str
    reason: str
    fallback: str


@dataclass(frozen=True, slots=True)
class Seam:
    """One place where the project hooks into vLLM or transformers."""

    name: str
    reason: str
    fallback: str
    names: tuple[Names, ...]

    def symbols(self) -> Iterator[Symbol]:
        for group in self.names:
            yield from group.symbols(self)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one owner, given as `kind name(parameter, …)` or `kind name name …`."""

    module: str
    owner: str  # class, or "" for names of the module itself
    entries: tuple[str, ...]

    def symbols(self, seam: Seam) -> Iterator[Symbol]:
        for entry in self.entries:
            kind, _, rest = entry.partition(" ")
            name, bracket, parameters = rest.rstrip(")").partition("(")
            if bracket:
                signature = tuple(p.strip() for p in parameters.split(",") if p.strip())
                yield self._symbol(seam, kind, name, signature)
            else:
                yield from (self._symbol(seam, kind, name, None) for name in rest.split())

    def _symbol(
        self, seam: Seam, kind: str, name: str, signature: tuple[str, ...] | None
    ) -> Symbol:
        return Symbol(
            module=self.module,
            qualname=f"{self.owner}.{name}" if self.owner else name,
            kind=_kind(kind),
            signature=signature,
            seam=seam.name,
            reason=seam.reason,
            fallback=seam.fallback,
        )


def _kind(word: str) -> Kind:
    match word:
        case "class" | "method" | "attribute" | "field" | "function" | "hook":
            return word
    raise AssertionError(f"unknown kind {word!r}")
