"""Files and paths that would hang a reader or fill the memory: a sentence, within seconds and in little memory."""

from __future__ import annotations

import gzip
import os
import time
import zipfile
from pathlib import Path

import pytest

from tclab import CellGraph, InputError, readers
from tclab.readers import ReadError

pytestmark = pytest.mark.clock

GENES = ["YAL001C", "YAL002W"]
READERS = {
    "edges.csv": readers.edge_list,
    "aao1729_data_s1.tsv": readers.kuzmin,
    "aao1729_data_s1.xlsx": readers.kuzmin,
    "iMU12.json": readers.bigg_json,
    "yeast-GEM.yml": lambda path: readers.yeast_gem(path, cache=False),
    "orftogene.txt": readers.yeastract_names,
    "4932.protein.links.v12.0.txt": lambda path: readers.string_links(path, GENES),
    "screen.tsv": lambda path: readers.read_perturbations(path, CellGraph.synthetic(0.02, metabolism=False)),
    "": CellGraph.from_folder,
}


@pytest.fixture(autouse=True)
def within_seconds():
    before = time.monotonic()
    yield
    assert time.monotonic() - before < 20  # alone each takes a tenth of it at most


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / (name or "orftogene.txt"))
    with pytest.raises(ReadError, match="is neither a file nor a folder"):
        READERS[name](tmp_path / name)


def test_a_fifo_in_place_of_a_graph_is_refused(tmp_path):
    os.mkfifo(tmp_path / "graph.npz")
    with pytest.raises(InputError, match=r"expected a file that CellGraph\.save wrote"):
        CellGraph.from_file(tmp_path / "graph.npz")


@pytest.mark.parametrize("path", ["no\0path", ""])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_path_is_refused(name, path):
    with pytest.raises(InputError):
        READERS[name](path + (Path(name).suffix if path else ""))


def test_a_gzip_that_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path):
    piece = gzip.compress(b"[[],[],[],[]," * (20 << 10) * 100, 6)  # 26 MB, packed a thousand times
    (tmp_path / "iMU12.json.gz").write_bytes(piece * 40)
    with pytest.raises(ReadError, match=r"unpacks to [\d,]+ times its size or more"):
        readers.bigg_json(tmp_path / "iMU12.json.gz")


def sheet(cells: str) -> dict[str, str]:
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    return {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{kind}.worksheet+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="s" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{cells}</sheetData></worksheet>',
    }


def write_sheet(path: Path, cells: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, text in sheet(cells).items():
            archive.writestr(name, text)
    return path


def text_cell(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def test_one_cell_at_the_end_of_a_sheet_costs_seconds(tmp_path):
    head = text_cell("A1", "Query strain ID") + text_cell("B1", "Array strain ID")
    cells = f'<row r="1">{head}</row><row r="1048576">{text_cell("XFD1048576", "x")}</row>'
    with pytest.raises(ReadError, match="no column"):
        readers.kuzmin(write_sheet(tmp_path / "far.xlsx", cells))
    names = ("Query strain ID", "ORF1", "ORF2", "Mutant type", "Fitness", "St.dev.")
    head = "".join(text_cell(f"{letter}1", name) for letter, name in zip("ABCDEF", names, strict=True))
    cells = f'<row r="1">{head}</row><row r="1048576">{text_cell("XFD1048576", "x")}</row>'
    with pytest.raises(ReadError, match="holds no rows"):
        readers.kuzmin_fitness(write_sheet(tmp_path / "far.xlsx", cells))


def test_a_workbook_that_unpacks_to_gigabytes_is_refused(tmp_path):
    path = write_sheet(tmp_path / "bomb.xlsx", " " * (300 << 20))
    with pytest.raises(ReadError, match=r"unpacks to [\d,]+ times its size"):
        readers.kuzmin(path)
