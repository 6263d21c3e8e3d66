"""The page of the configuration says what files are checked with."""

from pathlib import Path

from dpjax.config import reference
from dpjax.config.keys import keys_of

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_printed_from_the_schema():
    """Otherwise: python -m dpjax.config.reference > docs/configuration.md."""
    assert PAGE.read_text() == reference.markdown()


def test_every_key_has_a_meaning():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("- `")]
    assert len(lines) > 100
    for line in lines:
        kind, _, meaning = line.partition("): ")[2].partition(". ")
        assert kind and meaning.endswith("."), line


def test_keys_are_read_off_signature_and_docstring():
    def sampler(
        posterior, step_size, *, chance: float | None = None, count: int, x=2.0
    ):
        """A sampler.

        Parameters
        ----------
        posterior, count
            Of two
            lines.
        chance
            One.

        Raises
        ------
        x
            Not this one.
        """

    keys = keys_of(sampler)
    assert list(keys) == ["chance", "count", "x"]
    assert [key.meaning for key in keys.values()] == ["One.", "Of two lines.", ""]
    assert keys["chance"].default is None and keys["x"].default == 2.0
    assert keys["chance"].kind == keys["x"].kind != keys["count"].kind
    assert keys["x"].kind.accepts(3) and not keys["count"].kind.accepts(3.0)
