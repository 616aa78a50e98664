"""What an exposition in Prometheus' text format says, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from antiphon.observe.families import Family


class Exposed:
    """The series of one exposition."""

    def __init__(self, text: bytes | str) -> None:
        text = text.decode() if isinstance(text, bytes) else text
        self.families = list(text_string_to_metric_families(text))
        self.series = [
            (sample.name, dict(sample.labels), sample.value)
            for family in self.families
            for sample in family.samples
        ]

    def names(self) -> set[str]:
        """Of the families, as they were declared."""
        return {family.name for family in self.families}

    def find(self, name: str, **labels: str) -> list[float]:
        """The values of all series with this name and these labels."""
        return [v for n, own, v in self.series if n == name and own.items() >= labels.items()]

    def value(self, name: str, **labels: str) -> float:
        """Their sum; there has to be one."""
        found = self.find(name, **labels)
        assert found, f"{name} {labels} is not there"
        return sum(found)

    def check(self) -> None:
        """No family is told twice, and no series."""
        names = [family.name for family in self.families]
        assert len(names) == len(set(names)), names
        series = [(name, tuple(sorted(labels.items()))) for name, labels, _ in self.series]
        assert len(series) == len(set(series))


def as_text(families: Iterable[Family]) -> bytes:
    """Families in the text format."""
    from prometheus_client.exposition import generate_latest

    from antiphon.observe.exposition import Exposition

    exposition = Exposition()
    exposition.add(families)
    return generate_latest(exposition)  # type: ignore[arg-type]
