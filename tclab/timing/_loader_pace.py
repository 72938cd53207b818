"""The arithmetic of a loader's workers: how often they can give a batch, and what a step must then wait."""

from __future__ import annotations

from dataclasses import dataclass

from tclab._display import seconds_text

_CLOSE = 0.1  # share of a step by which waiting may differ from the arithmetic: costs vary, sending is not in them


@dataclass(frozen=True)
class LoaderPace:
    """What the workers of a loader can give, and what the rest of a step takes."""

    workers: int  # at least 1
    batch_seconds: float  # mean time in which one of them makes a batch
    step_seconds: float  # the mean step
    waiting: float  # share of it in which it waits for a batch

    @property
    def every_seconds(self) -> float:
        """The time in which all workers together make one batch."""
        return self.batch_seconds / self.workers

    @property
    def rest_seconds(self) -> float:
        """The mean step without its wait."""
        return self.step_seconds * (1 - self.waiting)

    @property
    def expected_waiting(self) -> float:
        """The share of a step that waits where workers make batches without pause and steps take each at once."""
        return max(0.0, 1 - self.rest_seconds / self.every_seconds) if self.every_seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.workers} worker{'s' * (self.workers > 1)} that take{'s' * (self.workers == 1)} "
            f"{seconds_text(self.batch_seconds)} a batch can give one every {seconds_text(self.every_seconds)}, and "
            f"the rest of a step takes {seconds_text(self.rest_seconds)}"
        )

    def impossible(self) -> str:
        """Return why steps cannot go on so, as batches are not made so fast; empty where they can."""
        if self.step_seconds >= (1 - _CLOSE) * self.every_seconds:
            return ""
        return (
            f"{self.workers} worker{'s' * (self.workers > 1)} cannot give a batch more often than every "
            f"{seconds_text(self.every_seconds)}: steps of {seconds_text(self.step_seconds)} used batches that were "
            "made before them"
        )

    def refusal(self, beside: float = 0.0, most: float = 0.5) -> str:
        """Return why a verdict on whether waiting takes most of a step is refused; empty where it is not.

        `beside` is the share of a step that counts with the waiting: the transfer.
        """
        if text := self.impossible():
            return text
        expected, seen = self.expected_waiting + beside, self.waiting + beside
        if (expected > most) != (seen > most) and abs(expected - seen) > _CLOSE:
            return f"{self}: waiting would be {self.expected_waiting:.0%} of a step, and it is {self.waiting:.0%}"
        return ""
