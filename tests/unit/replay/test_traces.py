"""Reading logs: forms of a line, compression, and everything that can be wrong with either."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from specplug.errors import LogError
from specplug.replay.traces import SHOWN, Choice, LogFile, Record, parse_line, render_chat

GOOD = {"prompt": "a question", "response": "an answer"}


def parse(entry: Any, **options: Any) -> Record:
    [record] = parse_line(json.dumps(entry).encode(), 1, "log", Choice(**options))
    return record


def test_prompt_and_response() -> None:
    record = parse({**GOOD, "model": "m", "timestamp": 1.8e12})
    assert record == Record("a question", "an answer", 1, "log", 1.8e9, "m")


def test_plain_text_has_no_prompt() -> None:
    record = parse({"text": "all of it"})
    assert (record.prompt, record.response) == ("", "all of it")


def test_the_last_message_of_a_chat_is_the_response() -> None:
    record = parse(
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}],
                },
                {"role": "assistant", "content": "hello"},
            ]
        }
    )
    assert record.response == "hello"
    assert record.prompt == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_response_beside_the_messages_wins() -> None:
    record = parse({"messages": [{"role": "user", "content": "hi"}], "response": "hello"})
    assert record.response == "hello"
    assert record.prompt == render_chat([{"role": "user", "content": "hi"}])


def test_tool_calls_are_part_of_what_was_said() -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": "{}"}}
    record = parse({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]})
    assert record.response == '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def test_a_tag_names_the_workload() -> None:
    assert parse({**GOOD, "team": "search"}, tag="team").workload == "search"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"[1, 2]", "a JSON object is expected, got [1, 2]"),
        (b"7", "a JSON object is expected, got 7"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair at character 0"),
        (b'{"question": "x"}', "found: question"),
        (b"{}", "found: none"),
        (b'{"prompt": "x"}', "field 'response' must be a string, got no such field"),
        (b'{"prompt": "x", "response": 3}', "field 'response' must be a string, got 3"),
        (b'{"messages": []}', "must be a list of messages, got []"),
        (b'{"messages": ["x"]}', "must be an object with a 'role', got 'x'"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "must be the assistant's"),
        (b'{"messages": [{"role": "assistant", "content": 5}]}', "must be text, got 5"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_malformed_line_says_what_is_wrong(line: bytes, message: str) -> None:
    with pytest.raises(LogError) as caught:
        parse_line(line, 1, "log")
    assert message in str(caught.value)


def test_a_missing_tag_is_malformed() -> None:
    with pytest.raises(LogError, match=r"field 'team' \(the tag\) must be a string, got None"):
        parse(GOOD, tag="team")


def test_malformed_lines_are_counted_and_the_first_few_kept(write_log: Any) -> None:
    log = LogFile(write_log(GOOD, *["nonsense"] * 9, "", GOOD))
    assert [r.line for r in log] == [1, 12]
    assert (log.records, log.malformed, len(log.problems)) == (2, 9, SHOWN)
    assert log.problems[0].startswith(f"{log.path}:2: not JSON")


def test_strict_stops_at_the_first_malformed_line(write_log: Any) -> None:
    log = LogFile(write_log(GOOD, GOOD, "nonsense", GOOD), strict=True)
    read = []
    with pytest.raises(LogError, match=r"log\.jsonl:3: not JSON"):
        read.extend(log)
    assert len(read) == 2


def test_the_limit_is_of_records(write_log: Any) -> None:
    log = LogFile(write_log(GOOD, "nonsense", GOOD, GOOD, GOOD), choice=Choice(limit=3))
    assert len(list(log)) == 3
    assert log.position <= log.size


@pytest.mark.parametrize("content", ["", "\n\n", "nonsense\n"])
def test_a_log_without_records_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(LogError, match="no record in") as caught:
        list(LogFile(path))
    assert ("First problem" in str(caught.value)) == ("nonsense" in content)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(LogError, match="no such file"):
            list(LogFile(path))


def _compressed(path: Path, kind: str) -> Path:
    content = path.read_bytes()
    target = path.with_name(f"log.jsonl.{kind}")
    if kind == "gz":
        target.write_bytes(gzip.compress(content[:60]) + gzip.compress(content[60:]))
    else:
        pack = zstandard.ZstdCompressor().compress
        target.write_bytes(pack(content[:60]) + pack(content[60:]))
    return target


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_logs_of_several_members(write_log: Any, kind: str) -> None:
    log = LogFile(_compressed(write_log(*[GOOD] * 40), kind))
    assert len(list(log)) == 40
    assert log.name == "log"
    assert log.position == log.size


def test_compression_is_told_by_the_content(write_log: Any, tmp_path: Path) -> None:
    packed = _compressed(write_log(GOOD), "gz")
    plain_name = packed.rename(tmp_path / "plain.jsonl")
    assert len(list(LogFile(plain_name))) == 1


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_truncated_log_is_an_error_not_a_shorter_log(write_log: Any, kind: str) -> None:
    entries = [{"text": f"{i} {i * i} {i * 7919}"} for i in range(4000)]
    packed = _compressed(write_log(*entries), kind)
    packed.write_bytes(packed.read_bytes()[:-2000])
    with pytest.raises(LogError, match="is the file complete"):
        list(LogFile(packed))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_damaged_log_is_an_error(write_log: Any, kind: str) -> None:
    entries = [{"text": f"{i} {i * i} {i * 7919}"} for i in range(4000)]
    packed = _compressed(write_log(*entries), kind)
    content = bytearray(packed.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 400] = bytes(400)
    packed.write_bytes(content)
    with pytest.raises(LogError):
        list(LogFile(packed, strict=True))


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a.jsonl.gz", "a"), ("a.b.jsonl", "a.b"), ("a", "a"), (".jsonl", ".jsonl"), ("x.log", "x")],
)
def test_a_log_is_called_by_its_stem(name: str, shown: str) -> None:
    assert LogFile(Path("folder") / name).name == shown
