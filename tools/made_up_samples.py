"""Small made-up files in each public format, for newcomers and tests; no row is copied.

    python tools/made_up_samples.py data_samples/cell

writes the folder of the repository; `CellGraph.from_folder("data_samples/cell")` reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tclab.errors import InputError

NUM_GENES = 40
_SEED = 20
_CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
_BOUND = 1000


def sample_files() -> dict[str, str]:
    """Return the samples as file name → text, always the same.

    Genes are called `YZA001W` …, which no yeast has (its chromosomes are A to P).
    """
    rng = np.random.default_rng(_SEED)
    orfs = [f"YZ{'AB'[place % 2]}{place:03d}{'WC'[place % 3 == 0]}" for place in range(1, NUM_GENES + 1)]
    names = [f"MAD{place}" for place in range(1, NUM_GENES + 1)]
    files = {
        "yeast_string_genes.txt": "\n".join(orfs),
        "SGDgeneNames.tsv": _table([("Systematic_name", "Standard_name"), *zip(orfs, names, strict=True)]),
        "SGD_features.tab": _features(orfs, names),
    }
    for channel in _CHANNELS:
        rows = []
        for one, other in _pairs(rng, 30):
            score = f"{rng.uniform(0.05, 0.95):.3f}000"
            rows += [(one + 1, other + 1, score), (other + 1, one + 1, score)]
        files[f"yeast_string_{channel}_adjacency.txt"] = _table(rows)
    files["4932.protein.links.detailed.v12.0.txt"] = _links(orfs, rng)
    files["4932.protein.links.full.v10.5.txt"] = _links_full(orfs, rng)
    files["BIOGRID-ORGANISM-Made_up-0.0.0.tab3.txt"] = _biogrid(orfs, names, rng)
    files |= _regulation(orfs, names, rng)
    files["yeast-GEM.yml"] = _model(orfs, rng)
    files |= _screens(orfs, names, rng)
    files["edge_list.csv"] = _table(
        [
            ("source", "target", "weight"),
            *((orfs[a], orfs[b], f"{rng.uniform():.2f}") for a, b in _pairs(rng, 20)),
        ],
        ",",
    )
    return files


def write_samples(path: str | Path) -> None:
    """Write the samples into a folder, replacing those that exist.

    **Raises:** `InputError` where the folder cannot be written.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        for name, text in sample_files().items():
            Path(path, name).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def _table(rows: Sequence[tuple[object, ...]], separator: str = "\t") -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def _pairs(rng: np.random.Generator, number: int, *, sources: int = NUM_GENES) -> list[tuple[int, int]]:
    """Return distinct pairs of different genes, the first below the second unless there are few sources."""
    every = [(a, b) for a in range(sources) for b in range(0 if sources < NUM_GENES else a + 1, NUM_GENES) if a != b]
    return [every[place] for place in sorted(rng.choice(len(every), number, replace=False).tolist())]


def _features(orfs: list[str], names: list[str]) -> str:
    rows: list[tuple[object, ...]] = []
    for place, (orf, name) in enumerate(zip(orfs, names, strict=True)):
        alias = "made up" if place in (3, 4) else f"OLD{place}"
        kind = ("Verified", "Uncharacterized", "Dubious")[place % 3]
        at = 1000 * place
        start = ("chromosome 1", "", 1, at + 1, at + 900, "W", "", "2000-01-01", "2000-01-01", "Made up")
        rows.append((f"S{place:09d}", "ORF", kind, orf, name, alias, *start))
        rows.append((f"S{place + 500:09d}", "CDS", "", "", "", "", orf, *start[1:-1], ""))
    return _table(rows)


def _links(orfs: list[str], rng: np.random.Generator) -> str:
    rows: list[tuple[object, ...]] = [("protein1", "protein2", *_CHANNELS, "textmining", "combined_score")]
    for a, b in _pairs(rng, 60):
        scores = np.where(rng.random(8) < 0.5, rng.integers(1, 1000, 8), 0).tolist()
        rows += [
            (f"4932.{orfs[a]}", f"4932.{orfs[b]}", *scores),
            (f"4932.{orfs[b]}", f"4932.{orfs[a]}", *scores),
        ]
    return _table(rows, " ")


def _links_full(orfs: list[str], rng: np.random.Generator) -> str:
    columns = (
        "protein1 protein2 neighborhood neighborhood_transferred fusion cooccurence homology coexpression "
        "coexpression_transferred experiments experiments_transferred database database_transferred "
        "textmining textmining_transferred combined_score"
    )
    rows: list[tuple[object, ...]] = [tuple(columns.split())]
    for a, b in _pairs(rng, 20):
        scores = np.where(rng.random(14) < 0.5, rng.integers(42, 1000, 14), 0).tolist()
        rows += [
            (f"4932.{orfs[a]}", f"4932.{orfs[b]}", *scores),
            (f"4932.{orfs[b]}", f"4932.{orfs[a]}", *scores),
        ]
    return _table(rows, " ")


def _biogrid(orfs: list[str], names: list[str], rng: np.random.Generator) -> str:
    columns = (
        "#BioGRID Interaction ID",
        "Systematic Name Interactor A",
        "Systematic Name Interactor B",
        "Official Symbol Interactor A",
        "Official Symbol Interactor B",
        "Experimental System",
        "Experimental System Type",
        "Organism ID Interactor A",
        "Organism ID Interactor B",
    )
    rows: list[tuple[object, ...]] = [columns]
    for number, (a, b) in enumerate(_pairs(rng, 40)):
        system = ("Two-hybrid", "physical") if number % 4 else ("Synthetic Lethality", "genetic")
        rows.append((number, orfs[a], orfs[b], names[a], names[b], *system, 559292, 559292))
    return _table(rows)


def _regulation(orfs: list[str], names: list[str], rng: np.random.Generator) -> dict[str, str]:
    simple: list[tuple[object, ...]] = [
        ("UniprotID.TF", "UniprotID.Target", "Name.TF", "Name.Target", "Organism", "Small-scale.evidence")
    ]
    targets: list[tuple[object, ...]] = [("UniprotID.Target", "Name.Target", "Organism", "Small-scale.evidence")]
    sgd: list[tuple[object, ...]] = [
        ("Regulator", "Regulator Systematic Name", "Target", "Target Systematic Name", "Direction")
    ]
    yeast = "Saccharomyces cerevisiae"
    for a, b in _pairs(rng, 40, sources=6):
        evidence = "Yes" if rng.random() < 0.3 else "No"
        simple.append((f"P{a:05d}", f"P{b:05d}", names[a], names[b], yeast, evidence))
        sgd.append((names[a], orfs[a], names[b], orfs[b], ("positive", "negative")[b % 2]))
        if a == 0:
            targets.append((f"P{b:05d}", names[b], yeast, evidence))
    return {
        "TFLink_made_up_simpleFormat_v1.0.tsv": _table(simple),
        "targets_of_P00000.tsv": _table(targets),
        "sgd_regulation.tsv": "! Made up\n" + _table(sgd),
    }


def _model(orfs: list[str], rng: np.random.Generator) -> str:
    metabolites = [f"s_{place:04d}" for place in range(1, 13)]
    rules = ["", "{0}", "{0} or {1}", "{0} and {1}", "({0} and {1}) or {2}", "({0} or {1}) and ({2} or {3})"]
    reactions = []
    for place in range(12):
        genes = [orfs[gene] for gene in rng.choice(NUM_GENES, 4, replace=False)]
        used, made = rng.choice(metabolites, 2, replace=False).tolist()
        number = int(rng.integers(1, 4))
        lower = -_BOUND * int(place % 3 == 0)
        reactions.append((f"r_{place:04d}", rules[place % 6].format(*genes), lower, {used: -number, made: 1}))
    yml = ["---", "!!omap", "- metaData:", '    id: "made_up"', "- metabolites:"]
    for name in metabolites:
        yml += [
            "    - !!omap",
            f'      - id: "{name}"',
            f'      - name: "{name}"',
            '      - compartment: "c"',
        ]
    yml.append("- reactions:")
    for name, rule, lower, parts in reactions:
        yml += ["    - !!omap", f'      - id: "{name}"', "      - metabolites: !!omap"]
        yml += [f"          - {metabolite}: {value}" for metabolite, value in parts.items()]
        yml += [f"      - lower_bound: {lower}", f"      - upper_bound: {_BOUND}"]
        yml += [f'      - gene_reaction_rule: "{rule}"'] if rule else []
    return "\n".join(yml) + "\n"


def _screens(orfs: list[str], names: list[str], rng: np.random.Generator) -> dict[str, str]:
    fitness = "Double/triple mutant fitness"
    score = "Adjusted genetic interaction score (epsilon or tau)"
    strains = ("Query strain ID", "Query allele name", "Array strain ID", "Array allele name")
    sheet: list[tuple[object, ...]] = [
        (*strains, "Combined mutant type", "Raw genetic interaction score (epsilon)", score, "P-value",
         "Query single/double mutant fitness", "Array single mutant fitness", fitness,
         f"{fitness} standard deviation")
    ]  # fmt: skip
    costanzo: list[tuple[object, ...]] = [
        (*strains, "Arraytype/Temp", "Genetic interaction score (ε)", "P-value",
         "Query single mutant fitness (SMF)", "Array SMF", "Double mutant fitness",
         "Double mutant fitness standard deviation")
    ]  # fmt: skip
    trigenic: list[tuple[object, ...]] = [
        ("Query Strain ID", "Array Strain ID", score, "P-value", fitness, f"{fitness} standard deviation")
    ]
    for number in range(1, 31):
        a, b, c = rng.choice(NUM_GENES, 3, replace=False).tolist()
        control = number % 3 == 0
        other = "YDL227C" if control else orfs[b]
        pair = (other, orfs[a]) if number % 2 else (orfs[a], other)
        query, array = f"{'+'.join(pair)}_tm{number}", f"{orfs[c]}_{'tsa' if number % 5 == 0 else 'dma'}{c}"
        alleles = "+".join("hoΔ" if orf == "YDL227C" else f"{names[orfs.index(orf)].lower()}Δ" for orf in pair)
        array_allele = f"{names[c].lower()}{'-1' if number % 5 == 0 else 'Δ'}"
        value, p, mutant, sd = (f"{x:.4f}" for x in (rng.normal(0, 0.1), rng.random(), rng.random(), 0.02))
        kind = "digenic" if control else "trigenic"
        sheet.append((query, alleles, array, array_allele, kind, value, value, p, "", "0.9", mutant, sd))
        trigenic.append((query, array, value, p, mutant, sd))
        alone = (f"{orfs[a]}_sn{a}", names[a].lower(), array, names[c].lower())
        costanzo.append((*alone, "DMA30", value, p, "0.9", "0.9", mutant, sd))
    return {
        "aao1729_data_s1.tsv": _table(sheet),
        "SGA_NxN.txt": _table(costanzo),
        "scored_made_up_trigenic.txt": _table(trigenic),
    }


if __name__ == "__main__":
    write_samples(sys.argv[1] if len(sys.argv) > 1 else "data_samples/cell")
