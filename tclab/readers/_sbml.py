"""Metabolic models in SBML, any level that cobra reads, `<model>.xml[.gz]`; needs the extra `sbml`.

https://sbml.org; cobra also reads the rules that older models have as text (`GENE_ASSOCIATION:`) in their notes.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from functools import partial
from pathlib import Path

from tclab.errors import InputError
from tclab.readers._metabolic_model import MetabolicModel, Reaction, cached
from tclab.readers._old_source import LIMIT_BYTES, bad_file, not_utf8

SBML_FILE = re.compile(r"(i[A-Z]{2,}\w*|yeast-GEM)\.(xml|sbml)(\.gz)?")

_ENCODING = re.compile(rb"<\?xml[^>]*encoding\s*=\s*[\"']([\w.-]+)[\"']")


def sbml(path: str | Path, *, cache: bool | str | Path = True, limit_bytes: int = LIMIT_BYTES) -> MetabolicModel:
    """Return the model of an SBML file as cobra reads it, in seconds to a minute; from the cache at once.

    The exchange reactions that cobra adds for species on the boundary are left out, since the file does not have
    them. A document type declaration is refused, since SBML has none and its entities can grow without end; so is any
    encoding but UTF-8, in which one could be hidden.

    **Arguments:**

    - `cache`: see `tclab.readers._metabolic_model.cached`.

    **Raises:** `ReadError` for a file that is not SBML; `InputError` where cobra is missing.
    """
    return cached(path, partial(_from_sbml, path), reader="sbml-1", cache=cache, limit_bytes=limit_bytes)


def _from_sbml(path: str | Path, content: bytes) -> MetabolicModel:
    encoding = _ENCODING.match(content.removeprefix(b"\xef\xbb\xbf"))
    if encoding and encoding[1].lower() not in (b"utf-8", b"us-ascii", b"ascii"):
        raise bad_file(path, f"is encoded in {encoding[1].decode()}, expected UTF-8", line=1)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path, content, error) from None
    for word in ("<!DOCTYPE", "<!ENTITY"):
        if word in text:
            line = text.count("\n", 0, text.index(word)) + 1
            raise bad_file(path, f"holds {word}, which no SBML has", line=line)
    if "<sbml" not in text[:100_000]:
        raise bad_file(path, "has no <sbml> element, expected an SBML model")
    try:
        from cobra.io import read_sbml_model
    except ImportError:
        raise InputError(f"{path}: SBML needs cobra: pip install 'tclab[sbml]'") from None
    logger = logging.getLogger("cobra.io.sbml")  # thousands of messages about published models
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = read_sbml_model(text)
    except Exception as error:  # cobra and libsbml raise anything: KeyError, AttributeError, CobraSBMLError
        reason = str(error).strip().splitlines()
        raise bad_file(path, f"is not SBML that cobra can read: {reason[0] if reason else error!r}") from None
    finally:
        logger.setLevel(level)
    for warning in caught:
        if "alformed gene_reaction_rule" in str(warning.message):  # cobra continues without the rule
            raise bad_file(path, f"holds a rule that cannot be read: {str(warning.message).splitlines()[0]}")
    reactions = tuple(
        Reaction(
            reaction.id,
            reaction.gene_reaction_rule,
            float(reaction.lower_bound),
            float(reaction.upper_bound),
            {metabolite.id: float(value) for metabolite, value in reaction.metabolites.items()},
        )
        for reaction in model.reactions
        if _in_file(text, reaction.id)
    )
    if not reactions:
        raise bad_file(path, "has no reactions")
    for reaction in reactions:
        if not all(map(math.isfinite, reaction.coefficients.values())):
            raise bad_file(path, f"reaction {reaction.name} has a coefficient that is not a finite number")
    return MetabolicModel(str(path), reactions, tuple(metabolite.id for metabolite in model.metabolites))


def _in_file(text: str, reaction: str) -> bool:
    """Return whether the file itself has a reaction: cobra adds `EX_<species>`."""
    return not reaction.startswith("EX_") or f'"R_{reaction}"' in text or f'"{reaction}"' in text
