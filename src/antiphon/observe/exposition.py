"""From Prometheus registries to families that can be sent, and from those to one exposition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric

from antiphon.observe.families import Family, Sample

_CREATED = "_created"  # when a series began: as many series again, which nobody asks for


def families_of(registry: CollectorRegistry) -> list[Family]:
    """Everything that a registry has now."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [
                Sample(sample.name, sample.labels, sample.value)
                for sample in metric.samples
                if not sample.name.endswith(_CREATED)
            ],
        )
        for metric in registry.collect()
    ]


class Exposition:
    """Families of several origins as one: a Prometheus collector that is made for one scrape.

    The samples of families with one name stand together, as the format wants it.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, families: Iterable[Family], labels: Mapping[str, str] | None = None) -> None:
        """Take families in, with `labels` on each sample.

        What has a label of its own by one of these names keeps it as `exported_NAME`, which is
        Prometheus's own way with such conflicts.
        """
        given = labels or {}
        for family in families:
            metric = self._metrics.get(family.name)
            if metric is None:
                metric = Metric(family.name, family.help, family.kind)
                self._metrics[family.name] = metric
            for sample in family.samples:
                metric.add_sample(sample.name, _labelled(sample.labels, given), sample.value)

    def collect(self) -> Iterable[Metric]:
        return self._metrics.values()


def _labelled(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    kept = {f"exported_{name}" if name in given else name: own[name] for name in own}
    return {**kept, **given}
