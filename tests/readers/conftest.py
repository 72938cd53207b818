import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def public() -> Callable[[str], Path]:
    """Return the path of a public file, or skip with the reason where it is not there."""

    def path(name: str) -> Path:
        if not (PUBLIC / name).exists():
            pytest.skip(f"the public file {name} is not in ../shared/data")
        return PUBLIC / name

    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a small file, gzipped where its name ends in .gz."""

    def written(name: str, text: str | bytes) -> Path:
        content = text.encode() if isinstance(text, str) else text
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return written
