"""The plan as a value and as a file: ids, canonical bytes, damage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_family import BUCKETS, SHAPES, Own, Vendor
from hypothesis import given
from hypothesis import strategies as st

from samebits.contract.base import TEXT_VERSION
from samebits.engines.schedule import ScheduleKey
from samebits.errors import PlanError
from samebits.plan import document
from samebits.plan.builder import keys_of
from samebits.plan.document import Choice, Entry, Plan, Struck
from samebits.plan.keys import contract_at
from samebits.plan.stack import Stack

pytestmark = pytest.mark.usefixtures("fake")
replace = msgspec.structs.replace


def entry(key: ScheduleKey, tile: int = 64, us: float = 12.5) -> Entry:
    own = Own(tile=tile)
    choice = Choice(
        schedule=Vendor(algorithm=66), us=us, runner_up=own, runner_up_us=2 * us, own=own,
        own_us=2 * us,
    )  # fmt: skip
    return Entry(
        key=key,
        contract=contract_at(key).text,
        choices=(choice,) * len(BUCKETS) + (Choice(schedule=own),),
        stock_us=(us,) * len(BUCKETS),
        struck=(Struck(m=8, schedule=Own(tile=1), why="3 of 9 elements differ"),),
    )


@pytest.fixture
def plan(keys: list[ScheduleKey], stack: Stack) -> Plan:
    return Plan.of([entry(key) for key in keys], stack, samebits="1.0", tuned="2026-11-29")


def test_a_file_gives_the_plan_back(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    assert document.read(tmp_path / "plan.json") == plan


def test_the_file_is_canonical(plan: Plan, keys: list[ScheduleKey], stack: Stack) -> None:
    turned = Plan.of(
        [entry(key) for key in reversed(keys)], stack, samebits="1.0", tuned="2026-11-29"
    )
    assert document.write(turned) == document.write(plan)
    assert document.write(document.parse(document.write(plan))) == document.write(plan)


@given(order=st.permutations(range(3)))
def test_ids_do_not_depend_on_an_order(order: list[int]) -> None:

    stack = Stack(device_class="sm_90")
    entries = [entry(key) for key in keys_of(SHAPES, device="sm_90")]
    a, b = Plan.of(entries, stack), Plan.of([entries[i] for i in order], stack)
    assert (a.id, a.schedules_id) == (b.id, b.schedules_id)


def test_ids_are_the_same_in_every_process(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from samebits.plan import document, families;"
        "families.FAMILIES['linear'] = ('fake_family',); p = document.read(sys.argv[1]);"
        "print(p.id, p.schedules_id)"
    )
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "plan.json"), str(Path(__file__).parent)],
            env={**__import__("os").environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert run.stdout.split() == [plan.id, plan.schedules_id]


def test_the_id_holds_bits_and_nothing_else(plan: Plan, keys: list[ScheduleKey]) -> None:
    other = replace(plan.stack, torch="9", device="another", cublaslt="14")
    same = Plan.of([entry(key, tile=128, us=7.0) for key in keys], other, tuned="2030-01-01")
    assert same.id == plan.id
    assert same.schedules_id != plan.schedules_id
    fewer = Plan.of(plan.entries[1:], plan.stack)
    assert fewer.id != plan.id
    tree = [replace(key, tree="segment(512)") for key in keys[:1]] + keys[1:]
    assert Plan.of([entry(key) for key in tree], plan.stack).id != plan.id


def test_measured_times_do_not_change_the_ids_of_schedules(plan: Plan) -> None:
    slower = Plan.of([entry(e.key, us=99.0) for e in plan.entries], plan.stack)
    assert (slower.id, slower.schedules_id) == (plan.id, plan.schedules_id)


def test_every_contract_comes_with_its_text_and_id(plan: Plan) -> None:
    raw = json.loads(document.write(plan))
    assert {e["contract"] for e in raw["entries"]} == set(raw["contracts"])
    for e in plan.entries:
        contract = contract_at(e.key)
        assert raw["contracts"][contract.id] == contract.text
        assert contract.text.startswith(f"samebits {TEXT_VERSION} ")


def edited(plan: Plan, edit: Any) -> bytes:
    raw = json.loads(document.write(plan))
    edit(raw)
    return json.dumps(raw).encode()


def set_at(*path: Any) -> Any:
    *way, last, value = path

    def edit(raw: Any) -> None:
        for step in way:
            raw = raw[step]
        raw[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (set_at("schedules", 2, "tile", 32), "damaged or edited"),
        (set_at("entries", 0, "choices", 3, 1, 0.1), "damaged or edited"),
        (set_at("stack", "torch", "9.9"), "damaged or edited"),
        (set_at("entries", 0, "key", "n", 17), "damaged or edited"),
        (set_at("id", "0" * 16), "damaged or edited"),
        (set_at("checksum", "0" * 16), "damaged or edited"),
        (set_at("format", 99), "format 99"),
        (set_at("extra", 1), "no plan"),
        (set_at("entries", 5), "no plan"),
        (set_at("entries", 0, "choices", 3, 1, -0.1), "no plan"),
        (set_at("entries", 0, "stock_us", 2, None), "no plan"),
        (set_at("entries", 0, "stock_us", 2, float("nan")), "no plan"),
    ],
)
def test_an_edited_file_is_refused(plan: Plan, edit: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        document.parse(edited(plan, edit))


def resealed(plan: Plan, edit: Any) -> bytes:
    """An edited file with a checksum to match: only its meaning can give it away."""
    file = msgspec.json.decode(edited(plan, edit), type=document._File)
    return document.encode(replace(file, checksum=file.sum()))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (set_at("schedules", 2, "tile", 32), "not those of its content"),
        (set_at("id", "0" * 16), "not those of its content"),
        (set_at("schedules", 0, "kind", "nobody.knows"), "not known to this release"),
        (set_at("schedules", 0, "kind", ["test.own"]), "not known to this release"),
        (set_at("schedules", 2, "tile", "wide"), "tile"),
        (set_at("entries", 0, "choices", 0, 0, 99), "does not hold"),
        (set_at("entries", 0, "choices", 0, 0, -1), "does not hold"),
        (set_at("entries", 0, "contract", "0" * 12), "does not hold"),
        (set_at("entries", 0, "choices", []), "not those of its content"),
        (set_at("entries", 0, "stock_us", [1.0]), "1 times"),
        (set_at("entries", 0, "key", "tree", "ring(3)"), "no such contract"),
        (set_at("entries", 0, "key", "op", "sorcery"), "sorcery"),
        (set_at("entries", 0, "key", "n", -8), "negative"),
        (set_at("entries", 0, "key", "device", "cpu"), "no such contract"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(plan: Plan, edit: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        document.parse(resealed(plan, edit))


def test_a_promise_of_other_bits_is_refused(plan: Plan) -> None:
    def edit(raw: Any) -> None:
        name, text = next(iter(raw["contracts"].items()))
        raw["contracts"][name] = text.replace("fraction=25", "fraction=24")

    with pytest.raises(PlanError, match="other bits"):
        document.parse(resealed(plan, edit))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"format": "one"}',
        b'{"schedules":[{"kind":' + b"[" * 10**5 + b"]" * 10**5 + b"}]}",
    ],
    ids=range(7),
)  # fmt: skip
def test_what_is_no_plan_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(PlanError, match=r"p\.json: .*no plan"):
        document.read(tmp_path / "p.json")


@given(cut=st.integers(0, 1000), byte=st.integers(0, 255))
def test_one_changed_byte_never_passes_for_another_plan(cut: int, byte: int) -> None:

    made = Plan.of(
        [entry(key) for key in keys_of(SHAPES, device="sm_90")], Stack(device_class="sm_90")
    )
    data = bytearray(document.write(made))
    data[cut * len(data) // 1001] = byte
    try:
        found = document.parse(bytes(data))
    except PlanError:
        return
    assert found == made


def test_a_key_is_in_a_plan_once(keys: list[ScheduleKey], stack: Stack) -> None:
    with pytest.raises(PlanError, match="twice"):
        Plan.of([entry(keys[0]), entry(keys[0])], stack)


def test_a_plan_without_a_bucket_is_refused(keys: list[ScheduleKey]) -> None:
    with pytest.raises(PlanError, match="buckets"):
        Entry(key=keys[0], contract="", choices=(Choice(schedule=Own(tile=1)),))


def test_merging(plan: Plan, stack: Stack) -> None:
    a, b = Plan.of(plan.entries[:1], stack), Plan.of(plan.entries[1:], stack)
    assert document.merged([b, a], "sm_90").entries == plan.entries
    assert document.merged([], "sm_90").entries == ()
    with pytest.raises(PlanError, match="twice"):
        document.merged([a, a], "sm_90")
    other = Plan.of(plan.entries[1:], replace(stack, cublaslt="14.0.0"))
    with pytest.raises(PlanError, match="two stacks"):
        document.merged([a, other], "sm_90")


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: json.dumps(json.loads(text), indent=1),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + "\n",
        lambda text: text.replace('"tuned":', '"tuned":"2020-01-01",\n"tuned":'),
        lambda text: text.replace('"device_class":', '"noise":1,"device_class":'),
        lambda text: text.replace("12.5", "12.50"),
    ],
    ids=["pretty", "line ends", "an empty line", "a name twice", "an unknown name", "a number"],
)
def test_the_same_content_in_other_bytes_is_refused(plan: Plan, rewrite: Any) -> None:
    data = rewrite(document.write(plan).decode()).encode()
    assert data != document.write(plan)
    with pytest.raises(PlanError, match="not the canonical ones"):
        document.parse(data)


def test_a_plan_is_for_one_device_class(plan: Plan, keys: list[ScheduleKey]) -> None:
    with pytest.raises(PlanError, match="does not belong into a plan for sm_80"):
        document.parse(resealed(plan, set_at("stack", "device_class", "sm_80")))
