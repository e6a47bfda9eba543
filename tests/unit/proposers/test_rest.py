"""The datastore proposer and the hybrid as a session sees them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.datastore.writer import Writer
from specplug.errors import SettingsError
from specplug.index.datastore import FILE
from specplug.proposers.rest import folders
from specplug.protocols import Proposer
from specplug.session import Session
from specplug.types import Capabilities, Context, Request

CONTEXT = Context(vocab_size=1000, max_length=4000, max_draft=8, max_requests=4)
WORDS = list(range(100, 140))
OTHER = list(range(300, 340))


def publish(folder: Path, documents: list[list[int]], vocab_size: int = 1000) -> str:
    with Writer(folder, vocab_size) as writer:
        for document in documents:
            writer.add(np.array(document, np.int32))
        writer.publish({})
    return str(folder)


@pytest.fixture
def docs(tmp_path: Path) -> str:
    return publish(tmp_path / "docs", [WORDS])


def new_session(name: str, **options: Any) -> Session:
    options.setdefault("verify_cost", 0.0)
    return Session(registry.build(name, CONTEXT, options), CONTEXT, on_fault="raise")


def step(session: Session, name: str, text: list[int]) -> list[int]:
    out = session.step([name], [np.array(text, np.int32)])
    return out.tokens[0, : out.lengths[0]].tolist()


def begin(session: Session, request: Request, text: list[int]) -> None:
    session.begin(request, np.array(text, np.int32))


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_a_request_continues_what_the_corpus_says(name: str, docs: str) -> None:
    session = new_session(name, datastore=docs)
    assert step(session, "a", WORDS[3:6]) == WORDS[6:14]
    assert step(session, "a", WORDS[3:20]) == WORDS[20:28]
    assert step(session, "a", [*WORDS[3:20], 999]) == []
    assert session.stats.accepted == 8


def test_what_they_declare(docs: str) -> None:
    rest = registry.build("rest", CONTEXT, {"datastore": docs})
    assert isinstance(rest, Proposer)
    assert rest.capabilities == Capabilities()
    tree = registry.build("rest", CONTEXT, {"datastore": docs, "tree": True})
    assert tree.capabilities == Capabilities(trees=True)
    hybrid = registry.build("hybrid", CONTEXT, {"datastore": docs})
    assert hybrid.capabilities == Capabilities(shares_requests=True)


def test_the_option_names_one_or_more_folders() -> None:
    assert folders("") == folders(" , ") == []
    assert folders("a, n=b ,/c") == [(None, "a"), ("n", "b"), (None, "/c")]


@pytest.mark.parametrize("options", [{}, {"datastore": " "}])
def test_without_a_datastore_rest_says_what_is_missing(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="'datastore' must name a folder"):
        registry.build("rest", CONTEXT, options)


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_a_datastore_that_is_not_there_is_an_error_at_once(name: str, tmp_path: Path) -> None:
    options = {"datastore": str(tmp_path)}
    with pytest.raises(ValueError, match=r"no datastore at .*`specplug datastore build"):
        registry.build(name, CONTEXT, options)
    with pytest.raises(SettingsError, match=f"specplug.{name}: option 'datastore': no datastore"):
        registry.preflight(name, options)


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_a_datastore_for_another_vocabulary_is_an_error_at_once(name: str, tmp_path: Path) -> None:
    options = {"datastore": publish(tmp_path, [WORDS], 2000)}
    with pytest.raises(ValueError, match="2000 token ids, the model has 1000"):
        registry.build(name, CONTEXT, options)
    registry.preflight(name, options)
    registry.preflight(name, options, lambda: 2000)
    with pytest.raises(SettingsError, match="2000 token ids, the model has 1000"):
        registry.preflight(name, options, lambda: 1000)


def test_the_tokenizer_is_loaded_only_where_a_datastore_names_one(
    tmp_path: Path, docs: str
) -> None:
    asked: list[str] = []

    def digest() -> str:
        asked.append("asked")
        return "bbbb"

    registry.preflight("hybrid", {"datastore": docs}, lambda: 1000, digest)
    registry.preflight("suffix", {}, lambda: 1 // 0, digest)
    registry.preflight("rest", {"datastore": "/nowhere/{namespace}"}, lambda: 1000, digest)
    assert asked == []
    for folder in ("one", "two"):
        with Writer(tmp_path / folder, 1000, "aaaa") as writer:
            writer.add(np.array(WORDS, np.int32))
            writer.publish({})
    both = f"{tmp_path / 'one'},x={tmp_path / 'two'}"
    with pytest.raises(SettingsError, match=r"another tokenizer \(vocabulary aaaa.*bbbb"):
        registry.preflight("rest", {"datastore": both}, lambda: 1000, digest)
    registry.preflight("rest", {"datastore": both}, lambda: 1000, lambda: "aaaa")
    assert asked == ["asked"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"GGUF" + data[4:], "is no datastore: it begins with b'GGUF"),
        (lambda data: data[:8] + b"\x09" + data[9:], "format version 9, .* upgrade specplug"),
        (lambda data: data[:-8], "it was cut or is still being copied"),
        (lambda data: data[:40] + b"\xff" + data[41:], "header is damaged"),
    ],
)
def test_a_damaged_datastore_is_an_error_before_a_model_loads(
    damage: Any, message: str, tmp_path: Path
) -> None:
    publish(tmp_path, [WORDS])
    (tmp_path / FILE).write_bytes(damage((tmp_path / FILE).read_bytes()))
    with pytest.raises(SettingsError, match=f"option 'datastore': .*{message}"):
        registry.preflight("rest", {"datastore": str(tmp_path)})


def test_a_datastore_of_another_tokenizer_is_an_error_at_once(tmp_path: Path) -> None:
    with Writer(tmp_path, 1000, "aaaa") as writer:
        writer.add(np.array(WORDS, np.int32))
        writer.publish({})
    context = replace(CONTEXT, tokenizer=lambda: "bbbb")
    with pytest.raises(ValueError, match="another tokenizer"):
        registry.build("hybrid", context, {"datastore": str(tmp_path)})
    registry.build("rest", replace(CONTEXT, tokenizer=lambda: ""), {"datastore": str(tmp_path)})


def test_trees_come_from_one_datastore(tmp_path: Path, docs: str) -> None:
    with pytest.raises(SettingsError, match="'tree' goes with one datastore, got 2"):
        registry.build("rest", CONTEXT, {"datastore": f"{docs},{docs}", "tree": True})


def test_a_tree_holds_both_continuations(tmp_path: Path) -> None:
    folder = publish(tmp_path, [[5, 6, 1, 2], [5, 6, 3, 4], [5, 6, 1, 7]])
    session = new_session("rest", datastore=folder, tree=True)
    out = session.step(["a"], [np.array([5, 6], np.int32)])
    assert out.parents is not None
    n = int(out.lengths[0])
    tokens, parents = out.tokens[0, :n].tolist(), out.parents[0, :n].tolist()
    paths = set()
    for node in range(n):
        path, at = [], node
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        paths.add(tuple(path))
    assert {(1, 2), (1, 7), (3, 4)} <= paths
    assert tokens[0] == 1, "two of three say so"


def test_several_datastores_serve_together(tmp_path: Path, docs: str) -> None:
    other = publish(tmp_path / "other", [OTHER])
    session = new_session("rest", datastore=f"{docs},{other}")
    assert step(session, "a", WORDS[3:6]) == WORDS[6:14]
    assert step(session, "b", OTHER[3:6]) == OTHER[6:14]


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_a_datastore_of_a_namespace_serves_no_other(name: str, tmp_path: Path, docs: str) -> None:
    other = publish(tmp_path / "other", [OTHER])
    session = new_session(name, datastore=f"{docs},acme={other}")
    # The adapter of vLLM writes "namespace=" before what a client asked for.
    for number, (namespace, expected) in enumerate(
        [("", []), ("acme", OTHER[6:14]), ("namespace=acme", OTHER[6:14]), ("salt=acme", [])]
    ):
        begin(session, Request(str(number), 0, namespace=namespace), [])
        assert step(session, str(number), OTHER[3:6]) == expected, namespace
        assert step(session, str(number), [*OTHER[3:6], *WORDS[:3]]) == WORDS[3:11]


def test_every_namespace_has_its_own_datastore(tmp_path: Path) -> None:
    publish(tmp_path / "a", [WORDS])
    publish(tmp_path / "b%2Fc", [OTHER])
    session = new_session("rest", datastore=str(tmp_path / "{namespace}"))
    batch = ["a", "b/c", "none", "../a"]
    for name in batch:
        begin(session, Request(name, 0, namespace=name), [])
    text = [np.array([*WORDS[:3], *OTHER[:3]], np.int32), *[np.array(OTHER[:3], np.int32)] * 3]
    out = session.step(batch, text)
    assert out.lengths.tolist() == [0, 8, 0, 0]
    assert out.tokens[1].tolist() == OTHER[3:11]
    out = session.step(batch, [np.array([*t, *WORDS[:3]], np.int32) for t in text])
    assert out.lengths.tolist() == [8, 0, 0, 0]


def test_a_new_version_is_taken_up_by_a_running_session(tmp_path: Path) -> None:
    folder = publish(tmp_path, [WORDS])
    session = new_session("rest", datastore=folder, refresh_s=0.0)
    assert step(session, "a", OTHER[:3]) == []
    publish(tmp_path, [OTHER])
    assert step(session, "a", OTHER[:4]) == OTHER[4:12]


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_a_datastore_cut_in_mid_flight_costs_its_drafts_only(name: str, tmp_path: Path) -> None:
    folder = publish(tmp_path, [WORDS])
    session = new_session(name, datastore=folder, refresh_s=0.0)
    assert step(session, "a", WORDS[:4]) == WORDS[4:12]
    with (tmp_path / FILE).open("r+b") as file:
        file.truncate(4200)
    expected = [] if name == "rest" else [7, *WORDS[:4], 7, *WORDS[:2]]
    assert step(session, "a", [*WORDS[:4], 7, *WORDS[:4], 7, *WORDS[:4]])[:8] == expected
    publish(tmp_path, [WORDS])
    assert step(session, "b", WORDS[:6]) == WORDS[6:14]
    assert session.stats.faults == 0


def test_hybrid_without_a_datastore_is_suffix() -> None:
    session = new_session("hybrid")
    begin(session, Request("a", 43), [*WORDS, 7, *WORDS[:2]])
    assert step(session, "a", [*WORDS, 7, *WORDS[:3]]) == WORDS[3:11]


def test_hybrid_copies_the_request_where_the_corpus_is_silent(docs: str) -> None:
    session = new_session("hybrid", datastore=docs)
    begin(session, Request("a", 43), [*OTHER, 7, *OTHER[:2]])
    assert step(session, "a", [*OTHER, 7, *OTHER[:3]]) == OTHER[3:11]


def test_rows_do_not_depend_on_their_neighbours(docs: str) -> None:
    rows = [WORDS[:5], OTHER[:5], WORDS[10:15], [1, 2, 3]]
    together = new_session("hybrid", datastore=docs)
    names = [str(i) for i in range(4)]
    out = together.step(names, [np.array(row, np.int32) for row in rows])
    for i, row in enumerate(rows):
        alone = step(new_session("hybrid", datastore=docs), "x", row)
        assert out.tokens[i, : out.lengths[i]].tolist() == alone


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_looking_up_the_options_compiles_nothing(name: str, docs: str) -> None:
    code = (
        "import sys\n"
        "from specplug import registry\n"
        f"registry.check({name!r}, {{'datastore': 'x'}})\n"
        f"registry.preflight({name!r}, {{'datastore': {docs!r}}}, lambda: 1000)\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]


def test_the_store_of_a_hybrid_outlives_a_restart(tmp_path: Path, docs: str) -> None:
    options = {"datastore": docs, "store_path": str(tmp_path / "outputs")}
    session = new_session("hybrid", **options)
    begin(session, Request("a", 1), [1])
    step(session, "a", [1, *OTHER])
    session.finish("a")
    session.close()
    assert step(new_session("hybrid", **options), "b", OTHER[5:8]) == OTHER[8:16]


@pytest.mark.parametrize("name", ["rest", "hybrid"])
def test_the_cost_may_change_while_it_runs(name: str, docs: str) -> None:
    proposer = registry.build(name, CONTEXT, {"datastore": docs})
    session = Session(proposer, CONTEXT, on_fault="raise")
    assert step(session, "a", WORDS[:4]) == WORDS[4:12]
    proposer.set_verify_cost(10.0)  # type: ignore[attr-defined]
    assert step(session, "b", WORDS[:4]) == []
    assert (
        proposer.state_digest()
        != registry.build(  # type: ignore[attr-defined]
            name, CONTEXT, {"datastore": docs}
        ).state_digest()
    )
