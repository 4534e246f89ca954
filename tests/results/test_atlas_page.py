"""The page of the atlas: its own logic, held against Python's; its size; hostile texts; a real browser."""

from __future__ import annotations

import html
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import parse_tokens
from autotune.results.atlas_views import pack, render_atlas
from autotune.results.pages import render
from autotune.settings.atlas import Atlas, AtlasRow
from autotune.settings.catalog import load_catalog
from autotune.settings.check import find_settings
from autotune.settings.known import is_default
from tests.atlas_tables import big, row, small

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
SCHEDULE = "xla_gpu_enable_latency_hiding_scheduler"
PLACE = "dense-fsdp@8xh100-sxm"


def ask(expression: str, given: Any = None, atlas: Atlas | None = None) -> Any:
    """What the page's logic makes of `given`, by a JavaScript engine without a page; `model` is the table."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    data = json.dumps([given, pack(atlas or small())])
    script = f"{render('atlas_logic.js.j2')}\nconst [given, data] = {data};\nconst model = unpack(data);\n"
    script += "const cell = (j, p) => model.cells.find((c) => c.jaxlib === j && c.place === p);\n"
    script += f"process.stdout.write(JSON.stringify({expression}))"
    done = subprocess.run([node, "-"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---------------------------------------------------------------------- what it reads


def test_flags_are_split_as_python_and_so_xla_splits_them() -> None:
    chance = random.Random(5)
    pieces = ["--", "-", "xla_a", "=", '"', "'", "\\", " ", "\t", "\n", "b c", "1", "–", "$X", ",", ""]  # noqa: RUF001
    texts = ["".join(chance.choices(pieces, k=chance.randrange(1, 14))) for _ in range(3000)]
    texts += ['--xla_a="b \'c\' \\" d" --xla_e=\'f "g"\' --xla_h= --xla_i', '--xla_a="open --xla_b=1']
    found = ask("given.map(parseFlags)", texts)
    for text, parts in zip(texts, found, strict=True):
        told = [(t.name, t.value, t.is_flag) for t in parse_tokens(text)]
        assert [(p["name"], p["value"], p["isFlag"]) for p in parts] == told, text
        is_over = False
        for part in parts:  # XLA stops at the first token that is no flag
            is_over = is_over or not part["isFlag"]
            assert part["isRead"] != is_over


SCRIPTS = [
    'export XLA_FLAGS="--xla_gpu_graph_level=0 \\\n  --xla_gpu_autotune_level=2"\nexport NCCL_PROTO=LL128\nLR=3\n',
    "XLA_FLAGS='--xla_gpu_graph_level=0' JAX_X=1 python train.py\n",
    'os.environ["XLA_FLAGS"] = (\n  "--xla_gpu_graph_level=0 "\n  \'--xla_a=b\'\n)\n',
    "ENV NCCL_PROTO='simple'\nJAX_ENABLE_X64=true\n  XLA_FLAGS=--xla_gpu_autotune_level=$LEVEL\n",
    'XLA_FLAGS="${XLA_FLAGS} --xla_backend_extra_options=a=\\"b c\\""\n',
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_read_as_flags_check_reads_it(script: str) -> None:
    catalog = load_catalog()
    told = [(f.name, f.value) for f in find_settings(script, catalog)]
    assert told
    found = ask(f"parseBlock(given, (name) => {json.dumps([*catalog])}.includes(name))", script)
    assert [(p["name"], p["value"]) for p in found] == told


def test_values_are_equal_where_python_says_so() -> None:
    values = [
        "", "true", "TRUE", "1", "0", "false", "17", "+17", "017", "1e3", "1000", "1000.0", "0x10", "b,a", "a,b", "A",
    ]  # fmt: skip
    for kind in ("bool", "int64", "float", "enum", "string"):
        normal = dict(zip(values, ask(f"given.map((v) => normal(v, '{kind}'))", values), strict=True))
        for one in values:
            for other in values:
                assert (normal[one] == normal[other]) == is_default(one, other, kind, {}), (kind, one, other)


# ---------------------------------------------------------------------- what it answers


def test_parts_of_a_block_in_one_cell() -> None:
    text = (
        f"--{COMBINE}=+1073741824 --{SCHEDULE} --xla_gpu_autotune_level=4 --xla_gpu_autotune_level=0 "
        "--xla_gpu_enable_async_collectives=false --xla_gpu_graph_level=7 --xla_gpu_grph_level=2 "
        "stray --xla_gpu_graph_level=2"
    )
    of = f"parseBlock(given, () => false).map((p) => judge(model, p, cell('{{}}', '{PLACE}')))"
    old, new = (ask(of.format(j), text) for j in ("0.10.2", "0.12.0.1"))
    verdicts = ["changes", "changes", "default", "unseen", "same", "", "", "rejected", "rejected"]
    assert [p["verdict"] for p in old[:4]] == verdicts[:4]
    assert old[4]["words"] == "this value was not tried here; of others, true: same"
    assert old[6]["near"] == ["xla_gpu_graph_level"]
    assert [p["verdict"] for p in old[5:]] == verdicts[5:]
    assert "no flag" in old[7]["words"]
    assert "does not read it" in old[8]["words"]
    assert [p["verdict"] for p in new[:5]] == ["same", "default", "default", "unseen", "rejected"]
    assert new[4]["row"]["message"] == "0.12.0.1 does not have it"


def test_what_changed_between_two_releases() -> None:
    found = ask(
        "compareReleases(model, '0.10.2', '0.12.0.1').map((k) => [k.entry.name, k.value, k.before && k.before.verdict,"
        " k.after && k.after.verdict, k.places, k.of])"
    )
    moe = "moe@8xh200"
    assert found == [
        [COMBINE, "1073741824", "changes", "same", [PLACE], 2],
        ["xla_gpu_enable_async_collectives", "true", "same", "rejected", [PLACE, moe], 2],
        [SCHEDULE, "true", "changes", "default", [PLACE, moe], 2],
        ["xla_gpu_graph_level", "2", "fails", None, [moe], 2],
    ]
    mine = "compareReleases(model, '0.10.2', '0.12.0.1', new Map(given)).map((k) => k.entry.name)"
    assert ask(mine, [[SCHEDULE, ["true"]], [COMBINE, ["5"]]]) == [SCHEDULE]
    assert ask("compareReleases(model, '0.10.2', '0.10.2')") == []


def test_every_row_of_a_big_table_comes_out_of_the_page_as_it_went_in() -> None:
    table = big(jaxlibs=("0.10.2", "0.12.0.1"), most=40, seed=7)
    told = ask(
        "model.settings.flatMap((e) => e.values.flatMap((v) => model.cells.map((c) =>"
        " [c, rowAt(v, c)]).filter(([, r]) => r && r.where >= 0).map(([c, r]) => [c.jaxlib, c.place, e.name, v.value,"
        " r.verdict, r.tried, r.changes, r.program, r.peak, r.message])))",
        atlas=table,
    )
    rows = [r for r in table if r.kind != "cell" and r.workload]

    def shown(r: AtlasRow) -> list[Any]:
        place = f"{r.workload}@{r.gpus}x{r.target}"
        figures = [r.program, r.peak_bytes, r.message]
        return [r.jaxlib, place, r.name, r.value, str(r.verdict), r.tried, list(r.changes), *figures]

    assert sorted(told, key=str) == sorted(map(shown, rows), key=str)


# ---------------------------------------------------------------------- the page


HOSTILE = [
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "<!--<script>",
    "]]>\u2028\u202e'\"`${document.title='taken'}",
]


def hostile_table() -> Atlas:
    """Every field that is text holds what would be a script."""
    cells = [("0.10.2", "dense-fsdp", "h100-sxm", 8), (HOSTILE[0], HOSTILE[1], HOSTILE[2], 8)]
    rows = [row(c, "", "", "default", kind="cell", program=HOSTILE[3]) for c in cells]
    for text in HOSTILE:
        more = {"message": text, "changes": (text,), "needs": (text,), "program": text, "tried": text}
        rows += [row(c, name, text, "changes", **more) for c in cells for name in (COMBINE, text)]
    return Atlas(rows)


def test_no_text_of_the_table_ends_the_script_that_holds_it() -> None:
    page = render_atlas(hostile_table())
    assert len(re.findall(r"<script", page)) == 2
    assert len(re.findall(r"</script", page)) == 2
    data = re.search(r'<script type="application/json" id="table">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&") & set(data[1])
    assert HOSTILE[0] in json.loads(data[1])["words"]
    assert "\u202e" not in json.dumps(json.loads(data[1]), ensure_ascii=False)
    assert "innerHTML" not in page
    assert "http:" not in page.replace("http-equiv", "")


def test_an_empty_table_makes_a_page_that_says_how_to_build_one() -> None:
    assert "autotune atlas build" in render_atlas(Atlas([]))


def browse(folder: Path, page: str, address: str = "", *, width: int = 1200) -> str:
    """The text of a page after its script has run, in a real browser, in a window of that width."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    (folder / "page.html").write_text(page, encoding="utf-8")
    frame = folder / "frame.html"
    look = (
        "const d = this.contentDocument; document.title = JSON.stringify([d.documentElement.scrollWidth, d.title,"
        " d.body.innerText, [...d.querySelectorAll('td.v')].map((c) => c.getAttribute('aria-label'))])"
    )
    frame.write_text(
        f'<iframe src="page.html{html.escape(address)}" width="{width}" height="800" style="border:0"'
        f' onload="{look}"></iframe>'
    )
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = "--disable-component-update --disable-sync --allow-file-access-from-files --virtual-time-budget=5000"
    command = [chromium, *flags.split(), *more.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=100, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr
    scroll_width, name, text, labels = json.loads(html.unescape(title[1]))
    assert scroll_width <= width
    assert name == "Atlas of XLA settings · autotune"  # a hostile text would have changed it
    return "\n".join([text, *labels])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "",
            [
                "all_gather_combine_threshold_bytes",
                "On jaxlib 0.12.0.1, 2 cells",
                "changes: Dense, fully sharded (FSDP), h100-sxm",
            ],
        ),
        ("#jaxlib=0.10.2&s=xla_gpu_graph_level&c=moe@8xh200", ["crash: <script>alert(1)</script>", "fails"]),
        (f"#jaxlib=0.10.2&s={SCHEDULE}", ["does nothing alone; acts with", "in 1 of 3: moe@8xh200"]),
        ("#v=releases", ["4 differences between 0.10.2 and 0.12.0.1", "rejected"]),
        (
            f"#v=check&flags=--{COMBINE}=1073741824+stray&place={PLACE}&jaxlib=0.10.2",
            ["all-gather: 226 -> 33", "no flag"],
        ),
        (
            "#v=about",
            [
                "compiled with all others that change nothing",
            ],
        ),
    ],
)
def test_each_view_shows_its_answers_in_a_browser(tmp_path: Path, address: str, words: list[str]) -> None:
    text = browse(tmp_path, render_atlas(small()), address)
    assert [w for w in words if w not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("address", ["", "#v=releases", f"#s={COMBINE}&jaxlib=0.10.2&c={PLACE}"])
def test_hostile_texts_are_shown_and_not_obeyed_even_on_a_phone(tmp_path: Path, address: str) -> None:
    assert browse(tmp_path, render_atlas(hostile_table()), address, width=360)
