"""Figures for scrapers, in Prometheus' text format (version 0.0.4); needs no library."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(slots=True)
class _Family:
    """A metric with all its series."""

    kind: str
    help: str
    values: dict[Labels, float] = field(default_factory=dict)
    reads: dict[Labels, Callable[[], float | None]] = field(default_factory=dict)


class Metrics:
    """Thread-safe. Counters are added to, gauges are asked when somebody scrapes."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._lock = threading.Lock()

    def add(self, name: str, explanation: str, amount: float = 1.0, **labels: str) -> None:
        """Counts; names of counters end in ``_total``."""
        with self._lock:
            family = self._families.setdefault(name, _Family("counter", explanation))
            key = tuple(sorted(labels.items()))
            family.values[key] = family.values.get(key, 0.0) + amount

    def gauge(self, name: str, explanation: str, read: Callable[[], float | None], **labels: str) -> None:
        """A figure that ``read`` knows at any moment, without asking a server; None: not known, and left out."""
        with self._lock:
            family = self._families.setdefault(name, _Family("gauge", explanation))
            family.reads[tuple(sorted(labels.items()))] = read

    def text(self) -> str:
        """Everything, as it is now."""
        with self._lock:
            families = {
                name: (it.kind, it.help, dict(it.values), dict(it.reads)) for name, it in self._families.items()
            }
        lines: list[str] = []
        for name, (kind, explanation, values, reads) in sorted(families.items()):
            lines += [f"# HELP {name} {explanation}", f"# TYPE {name} {kind}"]
            lines += _series(name, values | _asked(reads))
        return "\n".join(lines) + "\n"


def _asked(reads: Mapping[Labels, Callable[[], float | None]]) -> dict[Labels, float]:
    found = {labels: read() for labels, read in reads.items()}
    return {labels: value for labels, value in found.items() if value is not None}


def _series(name: str, values: Mapping[Labels, float]) -> Iterable[str]:
    for labels, value in sorted(values.items()):
        pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels)
        yield f"{name}{{{pairs}}} {value:g}" if pairs else f"{name} {value:g}"
