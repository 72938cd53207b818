"""Findings as sentences, and figures as words."""

NOT_ENOUGH = "Not enough in this trace to say"


class Finding(str):
    """A sentence; with it what it is about, its figure, the figure's unit, and where in the run it holds."""

    topic: str
    figure: float | None
    unit: str
    place: str

    def __new__(
        cls, sentence: str, topic: str, figure: float | None = None, unit: str = "", place: str = ""
    ) -> "Finding":
        """As `str`, with the sentence."""
        finding = super().__new__(cls, sentence)
        finding.topic, finding.figure, finding.unit, finding.place = topic, figure, unit, place
        return finding


def not_enough(topic: str, about: str, why: str, place: str) -> Finding:
    """The honest answer, with what it would take."""
    return Finding(f"{NOT_ENOUGH} {about} ({place}): {why}.", topic, place=place)


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {many or noun + 's'}"


def short(name: object) -> str:
    """A name cut to 60 characters."""
    text = str(name)
    return text if len(text) <= 60 else text[:57] + "…"


def time_of(us: float) -> str:
    """Microseconds in the unit that reads best."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(us) >= size:
            return f"{us / size:.4g} {unit}"
    return f"{us:.4g} µs"


def size_of(count: float) -> str:
    """Bytes in the unit that reads best, powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} B"
