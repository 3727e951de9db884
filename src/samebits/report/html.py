"""The report as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from html import escape
from itertools import groupby
from pathlib import Path

from samebits.check.promises import PROMISES, TESTS
from samebits.check.result import Case, Divergence, Noise, Outcome, Report, Test, Text
from samebits.report import explanation, svg
from samebits.report.summary import UNTESTED, headline, noise_sentence, sentence, tiles

WORDS = {"same": "same bits", "differs": "bits differ", "error": "could not run"}
SIDES = (("stock", "stock PyTorch"), ("switched", "samebits"))


def render(report: Report) -> str:
    """The page's text."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    parts = [
        _head(report),
        _promises(report),
        _which_batches(report),
        _where(report),
        _noise(report),
        _distances(report),
        _texts(report),
        _costs(report),
        _environment(report),
        _all_cases(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>samebits: {escape(report.target)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _badge(outcome: Outcome | None) -> str:
    if outcome is None:
        return '<span class="badge none">not tested</span>'
    return f'<span class="badge {outcome.verdict}">{WORDS[outcome.verdict]}</span>'


def _head(report: Report) -> str:
    boxes = "".join(
        f'<div class="tile {tile.mood}"><b>{escape(tile.value)}</b><span>{escape(tile.what)}</span>'
        "</div>"
        for tile in tiles(report)
    )
    when = escape(report.created.replace("T", " ").replace("+00:00", " UTC"))
    return (
        '<div class="top"><span class="brand">same<i>bits</i> check</span>'
        f'<span class="soft">{when}</span></div>'
        f"<h1>{escape(headline(report))}</h1>"
        f'<p class="lead soft">{escape(sentence(report))}</p><div class="tiles">{boxes}</div>'
    )


def _promises(report: Report) -> str:
    rows = []
    for promise, tests in groupby(report.tests, key=lambda test: test.promise):
        rows.append(
            f'<tr class="group"><td colspan="4">{escape(promise)} '
            f"<span>{escape(PROMISES[promise])}</span></td></tr>"
        )
        rows += [_test_row(test) for test in tests]
    return (
        "<section><h2>Promises, one by one</h2>"
        '<p class="note">Each square is one case, compared over all elements with a reference. A '
        "promise holds when every case has the same bits. Nothing is assumed about stock PyTorch: "
        "what it does right is shown as right.</p>"
        '<div class="scroll"><table><tr><th>test</th><th>compared</th><th>stock PyTorch</th>'
        f"<th>samebits</th></tr>{''.join(rows)}</table></div>"
        f"{_key()}</section>"
    )


def _test_row(test: Test) -> str:
    kind = TESTS[test.name]
    if test.skipped is not None:
        return (
            f"<tr><td>{escape(kind.title)}</td><td>{escape(kind.what)}</td>"
            f'<td colspan="2" class="soft">does not apply: {escape(test.skipped)}</td></tr>'
        )
    columns = "".join(
        f"<td>{_badge(outcome)}{_counts(outcome)}{svg.cells(outcome) if outcome else ''}</td>"
        for outcome in (test.stock, test.switched)
    )
    return f"<tr><td>{escape(kind.title)}</td><td>{escape(kind.what)}</td>{columns}</tr>"


def _counts(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    if outcome.verdict == "error":
        return f"<small>{escape(outcome.error or '')}</small>"
    bad = sum(case.differing > 0 for case in outcome.cases)
    text = f"{bad} of {len(outcome.cases)} cases" if bad else f"all {len(outcome.cases)} cases"
    if bad:
        worst = outcome.worst
        share = 100 * worst.differing / worst.elements
        text += f"; worst {worst.label}: {share:.3g} % of elements"
    return f"<small>{escape(text)}</small>"


def _key() -> str:
    swatches = [
        ("same", "same bits"),
        ("d1", "under 0.1 % of elements differ"),
        ("d2", "under 1 %"),
        ("d3", "under 10 %"),
        ("d4", "under half"),
        ("d5", "more than half"),
    ]
    items = "".join(
        f'<span><svg width="11" height="11"><rect width="11" height="11" class="{kind}"/></svg>'
        f"{name}</span>"
        for kind, name in swatches
    )
    return f'<div class="key">{items}<span>hover over a square for its numbers</span></div>'


def _which_batches(report: Report) -> str:
    test = next((test for test in report.tests if test.name == "rows" and not test.skipped), None)
    if test is None or test.stock is None:
        return ""
    groups: list[str] = list(dict.fromkeys(case.group for case in test.stock.cases))
    blocks = []
    for group in groups:
        columns = []
        for (side, name), outcome in zip(SIDES, (test.stock, test.switched), strict=True):
            cases = _sound(outcome, group)
            picture = svg.batch_map(cases, f"batch sizes, {name}") if cases else "could not run"
            kind = "sb" if side == "switched" else "stock"
            columns.append(f'<div><div class="side {kind}">{name}</div>{picture}</div>')
        title = f"<h3>{escape(group)}</h3>" if group else ""
        blocks.append(f'{title}<div class="pair">{"".join(columns)}</div>')
    return (
        "<section><h2>Which batch sizes change a request</h2>"
        '<p class="note">A column is a batch of M requests, a cell is one of them. Each is '
        "compared with the same request alone. Orange: its bits depend on the company it keeps.</p>"
        f"{''.join(blocks)}{_key()}</section>"
    )


def _sound(outcome: Outcome | None, group: str) -> list[Case]:
    cases = outcome.cases if outcome else ()
    return [case for case in cases if case.group == group and not case.error and case.rows]


def _where(report: Report) -> str:
    found = [
        (test, name, outcome.divergence, outcome.explanation)
        for test in report.tests
        for (_, name), outcome in zip(SIDES, (test.stock, test.switched), strict=True)
        if outcome and outcome.divergence
    ]
    if not found:
        return ""
    blocks = []
    for test, name, divergence, explained in found:
        steps = divergence.layers
        picture = svg.layers(steps, f"modules, {test.title}") if len(steps) > 1 else ""
        why = explanation.section(explained) if explained else ""
        blocks.append(
            f"<h3>{escape(test.title)}, {escape(name)}: {escape(divergence.case)}</h3>"
            f"{_first(divergence)}{picture}{why}"
        )
    return (
        "<section><h2>Where the bits part first</h2>"
        '<p class="note">The first differing case of each test, run again and recorded step by '
        "step for one request. A bar is the share of a module's output that differs, in the order "
        f"of execution.</p>{''.join(blocks[:3])}"
        + (
            f"<details><summary>{len(blocks) - 3} more</summary>{''.join(blocks[3:])}</details>"
            if len(blocks) > 3
            else ""
        )
        + "</section>"
    )


def _first(found: Divergence) -> str:
    if found.op is None:
        text = f"First module: <code>{escape(found.module or 'none')}</code>."
    else:
        place = f" in <code>{escape(found.op_module)}</code>" if found.op_module else ""
        text = (
            f"First operation: <code>{escape(found.op.removesuffix('.default'))}</code>{place}, "
            f"{found.differing:,} of {found.elements:,} elements, up to {found.max_ulp:,} ulp."
        )
        if found.shapes != found.reference_shapes:
            text += (
                f" It ran on {escape(_shapes(found.shapes))}; the reference on "
                f"{escape(_shapes(found.reference_shapes))}."
            )
    if not found.faithful:
        text += " (Recording changed the bits, so take this as a hint.)"
    return f"<p>{text}</p>"


def _noise(report: Report) -> str:
    """Differences against what other orders of summation give, once an operation."""
    found: dict[str, tuple[str, Noise]] = {}
    for test in report.tests:
        divergence = test.stock.divergence if test.stock else None
        if divergence is not None and divergence.noise is not None:
            noise = divergence.noise
            worse = found.get(noise.op)
            if worse is None or noise.outside > worse[1].outside:
                found[noise.op] = test.title, noise
    if not found:
        return ""
    blocks = []
    for title, noise in found.values():
        sides = [("stock", "stock PyTorch", noise.stock, "d4")]
        if noise.switched is not None:
            sides.append(("sb", "samebits", noise.switched, "sbbar"))
        pictures = "".join(
            f'<div><div class="side {side}">{name}</div>'
            f"{svg.noise(noise, counts, kind, f'noise of {noise.op}, {name}')}</div>"
            for side, name, counts, kind in sides
        )
        blocks.append(
            f"<h3><code>{escape(noise.op)}</code> ({escape(title)}): {noise.verdict}</h3>"
            f'<p>{escape(noise_sentence(noise))}</p><div class="pair">{pictures}</div>'
        )
    return (
        "<section><h2>Noise, predicted and observed</h2>"
        '<p class="note">The first operation that differs, taken out of both calls. The line: how '
        "far apart other orders of the same sums are, computed from the contract. The bars: what "
        "was observed. Every order stays inside a certified interval; what is outside is a defect, "
        f"not noise.</p>{''.join(blocks)}"
        '<div class="key"><span><svg width="22" height="11"><path d="M1 9h7V3h7v6h6" '
        'class="outline"/></svg>predicted: other orders</span></div></section>'
    )


def _shapes(shapes: tuple[str, ...]) -> str:
    return ", ".join(shape.replace(", ", "×").replace(",)", ")") for shape in shapes)


def _distances(report: Report) -> str:
    columns = []
    for (side, name), outcomes in zip(SIDES, _outcomes(report), strict=True):
        cases = [case for outcome in outcomes for case in outcome.cases]
        picture = svg.distances(cases, f"distances, {name}")
        total = sum(case.elements for case in cases)
        none = f'<p class="soft">None of {total:,} elements differs.</p>'
        kind = "sb" if side == "switched" else "stock"
        columns.append(f'<div><div class="side {kind}">{name}</div>{picture or none}</div>')
    return (
        "<section><h2>How far apart</h2>"
        '<p class="note">Differing elements of all tests by their distance in units in the last '
        "place (ulp). Near zero one rounding error spans many ulps.</p>"
        f'<div class="pair">{"".join(columns)}</div></section>'
    )


def _outcomes(report: Report) -> tuple[list[Outcome], list[Outcome]]:
    return (
        [test.stock for test in report.tests if test.stock],
        [test.switched for test in report.tests if test.switched],
    )


def _texts(report: Report) -> str:
    if not report.texts:
        return ""
    stock = [text for text in report.texts if text.side == "stock"]
    switched = {text.prompt: text for text in report.texts if text.side == "switched"}
    # Texts that part come first; most keep their words although their numbers differ.
    stock.sort(key=lambda text: (text.first_token is None, -text.differing_steps))
    blocks = [
        '<div class="pair">'
        + "".join(
            f'<div><div class="side {kind}">{name}</div>{_text(text)}</div>'
            for kind, name, text in (
                ("stock", "stock PyTorch", before),
                ("sb", "samebits", switched[before.prompt]),
            )
        )
        + "</div>"
        for before in stock
        if before.prompt in switched
    ]
    if not blocks:
        return ""
    more = (
        f"<details><summary>{len(blocks) - 1} more prompts</summary>{''.join(blocks[1:])}</details>"
    )
    return (
        "<section><h2>Text, alone and in company</h2>"
        '<p class="note">Greedy text from one prompt: alone in the batch, then with others beside '
        f"it.</p>{blocks[0]}{more if len(blocks) > 1 else ''}</section>"
    )


def _text(text: Text) -> str:
    prompt = f"<u>{escape(text.prompt)}</u>"
    if text.alone == text.together:
        body = f"<pre>{prompt}{escape(text.alone)}</pre>"
    else:
        same = next(
            (i for i, (a, b) in enumerate(zip(text.alone, text.together, strict=False)) if a != b),
            min(len(text.alone), len(text.together)),
        )
        body = "".join(
            f'<small class="soft">{name}</small><pre>{prompt}{escape(words[:same])}'
            f"<mark>{escape(words[same:])}</mark></pre>"
            for name, words in (
                ("alone", text.alone),
                (f"with {text.company} others", text.together),
            )
        )
    if text.differing_steps:
        verdict = (
            f"Logits differ at {text.differing_steps} of {text.steps} steps, first at step "
            f"{(text.first_logits or 0) + 1}"
        )
        words = (
            f"another token at step {text.first_token + 1}"
            if text.first_token is not None
            else "the words came out the same"
        )
        return f'{body}<p class="note">{verdict}; {words}.</p>'
    return (
        f'{body}<p class="note">The same text and the same logits, bit for bit, at all '
        f"{text.steps} steps, alone and with {text.company} others.</p>"
    )


def _costs(report: Report) -> str:
    if not report.speed:
        return ""
    return (
        "<section><h2>What it costs</h2>"
        '<p class="note">Medians, measured in turns in this run. Shorter bars are faster; the '
        "number on the right is how many times as fast as stock.</p>"
        f'<div class="key"><span class="side stock">stock PyTorch</span>'
        f'<span class="side sb">samebits</span></div>'
        f'<div class="scroll">{svg.costs(report.speed)}</div></section>'
    )


def _environment(report: Report) -> str:
    lines = "".join(
        f"<div><span>{escape(key)}</span><b>{escape(value)}</b></div>"
        for key, value in {**report.environment, "check took": f"{report.seconds:.1f} s"}.items()
    )
    return (
        f'<section><h2>Measured on</h2><div class="env">{lines}</div><p class="note" '
        'style="margin-top:14px">Not tested here: '
        f"{UNTESTED}.</p></section>"
    )


def _all_cases(report: Report) -> str:
    rows = []
    for test in report.tests:
        for (_, name), outcome in zip(SIDES, (test.stock, test.switched), strict=True):
            rows += [
                f"<tr><td>{escape(test.title)}</td><td>{name}</td><td>{escape(case.label)}</td>"
                f"<td>{case.differing:,} of {case.elements:,}</td>"
                f"<td>{case.differing_rows} of {len(case.rows)}</td><td>{case.max_ulp:,}</td>"
                f"<td>{escape(case.error or '')}</td></tr>"
                for case in (outcome.cases if outcome else ())
            ]
    return (
        f"<section><h2>All cases</h2><details><summary>{len(rows)} cases</summary>"
        '<div class="scroll"><table><tr><th>test</th><th>side</th><th>case</th>'
        "<th>elements that differ</th><th>requests</th><th>max ulp</th><th>error</th></tr>"
        f"{''.join(rows)}</table></div></details></section>"
    )
