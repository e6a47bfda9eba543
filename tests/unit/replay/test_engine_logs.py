"""The logs of vLLM 0.32 and SGLang 0.5.23. The lines were written by them; ids and texts are shortened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specplug.errors import LogError
from specplug.replay import engine_logs
from specplug.replay.engine_logs import EngineLog, top_level_fields
from specplug.replay.traces import LogFile

D = "(APIServer pid=2350) DEBUG 11-29 23:12:{} [entrypoints/.../utils/request_logger.py:55] "
I = "(APIServer pid=2350) INFO 11-29 23:12:{} [entrypoints/.../utils/request_logger.py:65] "  # noqa: E741
VLLM = [
    "/lib/python3.11/site-packages/torch/_subclasses/functional_tensor.py:362: UserWarning: no NumPy",
    "  cpu = _conversion_method_template(device=torch.device('cpu'))",
    D.format(29) + 'Request bd11 JSON body: {"messages":[{"content":"x","role":"user"}]}',
    D.format(29)
    + r"Request chatcmpl-bd11 details: prompt: '<|im_start|>user\nSay it\'s \"ok\"', "
    + "prompt_token_ids: [1, 9690, 198], prompt_embeds shape: None.",
    I.format(29)
    + "Received request chatcmpl-bd11: params: SamplingParams(n=1, top_p=1.0), lora_request: None.",
    '(APIServer pid=2350) INFO:     127.0.0.1:50002 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    D.format(30) + "Generated response chatcmpl-bd11 details: output_token_ids: [57, 5248, 2]",
    I.format(30) + """Generated response chatcmpl-bd11: output: "I'm ready", finish_reason: stop""",
    D.format(31)
    + "Request resp_b6c1_0 details: prompt: 'Hello', prompt_token_ids: [4], prompt_embeds shape: None.",
    D.format(31) + "Generated response resp_b6c1 details: output_token_ids: (19556, 17)",
    "Traceback (most recent call last):",
    I.format(31) + "Generated response resp_b6c1: output: 'Hello!', finish_reason: stop",
]
STREAM = [
    D.format(40)
    + "Request chatcmpl-b8 details: prompt: 'Count', prompt_token_ids: [1, 2], prompt_embeds shape: None.",
    I.format(40)
    + "Received request chatcmpl-b8: params: SamplingParams(n={}, top_p=1.0), lora_request: None.",
    D.format(41)
    + "Generated response chatcmpl-b8 (streaming delta) details: output_token_ids: [57]",
    I.format(41)
    + "Generated response chatcmpl-b8 (streaming delta): output: 'I', finish_reason: None",
    D.format(41)
    + "Generated response chatcmpl-b8 (streaming delta) details: output_token_ids: [5248, 3]",
    I.format(41)
    + """Generated response chatcmpl-b8 (streaming delta): output: "'m", finish_reason: length""",
    D.format(41)
    + "Generated response chatcmpl-b8 (streaming complete) details: output_token_ids: None",
    I.format(41)
    + """Generated response chatcmpl-b8 (streaming complete): output: "I'm", finish_reason: """
    + "streaming_complete",
]


def read(path: Path, *lines: str, strict: bool = True) -> tuple[LogFile, list[Any]]:
    path.write_text("".join(line + "\n" for line in lines))
    log = LogFile(path, strict=strict)
    return log, list(log)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_a_log_of_vllm(path: Path) -> None:
    log, records = read(path, *VLLM)
    assert [(r.prompt, r.response) for r in records] == [
        ([1, 9690, 198], [57, 5248, 2]),
        ([4], [19556, 17]),
    ]
    assert records[1].arrived - records[0].arrived == 2.0
    assert log.malformed == 0


def test_a_streamed_answer_is_put_together(path: Path) -> None:
    _, [record] = read(path, *(line.replace("{}", "1") for line in STREAM))
    assert (record.prompt, record.response) == ([1, 2], [57, 5248, 3])


def test_mixed_pieces_of_several_answers_are_not_taken_for_one(path: Path) -> None:
    _, [record] = read(path, *(line.replace("{}", "2") for line in STREAM))
    assert (record.prompt, record.response) == ([1, 2], "I'm")


def test_vllm_at_level_info_says_what_is_missing(path: Path) -> None:
    lines = [line for line in VLLM[2:] if "DEBUG" not in line]
    with pytest.raises(LogError, match="VLLM_LOGGING_LEVEL=DEBUG and --enable-log-requests"):
        read(path, *lines, strict=False)


def test_lines_in_the_envelope_of_a_log_shipper(path: Path) -> None:
    _, records = read(path, *(json.dumps({"log": line, "stream": "stdout"}) for line in VLLM[2:]))
    assert len(records) == 2
    bare = [line.partition("] ")[2] for line in VLLM[2:5] + VLLM[6:8]]
    _, records = read(path, *(json.dumps({"message": m, "levelname": "INFO"}) for m in bare))
    assert records[0].response == [57, 5248, 2]


def test_requests_that_never_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_logs, "MOST_WAITING", 2)
    log = EngineLog()
    prompt = (
        D.format("01")
        + "Request r{} details: prompt: 'x', prompt_token_ids: [1], prompt_embeds shape: None."
    )
    for number in range(5):
        log.feed(prompt.replace("{}", str(number)))
    end = I.format("02") + "Generated response r{}: output: 'y', finish_reason: stop"
    assert log.feed(end.replace("{}", "4")) == [
        {"arrived": pytest.approx(1732842001, abs=86400), "prompt": [1], "response": "y"}
    ]
    with pytest.raises(LogError, match="request r0, whose prompt is not in the log"):
        log.feed(end.replace("{}", "0"))


SGLANG_OUT = {"text": " hi, there's", "output_ids": [5, 6], "meta_info": {"id": "abc"}}
PRINTED = (
    "[2026-11-29 23:20:0{}] Finish: obj=GenerateReqInput(rid='abc', text={}, input_ids={}, "
    "sampling_params={{'stop': [']']}}, return_logprob=False), out={}"
)


@pytest.mark.parametrize("ids", [None, [1, 2, 3]])
def test_a_log_of_sglang_as_text(path: Path, ids: Any) -> None:
    text = "Say 'hi', input_ids=[9],\n\"now\" [ok"
    line = PRINTED.format(5, repr(text), ids, repr(SGLANG_OUT))
    _, [record] = read(path, line.replace("Finish", "Receive").partition(", out=")[0], line)
    expected = (text, " hi, there's") if ids is None else ([1, 2, 3], [5, 6])
    assert (record.prompt, record.response) == expected
    assert record.arrived is not None


@pytest.mark.parametrize("prefix", ["[2026-11-29 23:20:05] ", ""])
def test_a_log_of_sglang_as_json(path: Path, prefix: str) -> None:
    event = {
        "timestamp": "2026-11-29T23:20:05.5",
        "event": "request.finished",
        "rid": "abc",
        "obj": {"text": "Say", "input_ids": None},
        "out": SGLANG_OUT,
    }
    received = {**event, "event": "request.received"}
    _, [record] = read(path, prefix + json.dumps(received), prefix + json.dumps(event))
    assert (record.prompt, record.response) == ("Say", " hi, there's")
    assert record.arrived is not None


@pytest.mark.parametrize("given", [{"rid": "abc"}, {"text": "x" * 1024 + "..." + "y" * 1024}])
def test_sglang_at_a_low_level_says_what_is_missing(path: Path, given: Any) -> None:
    event = {"event": "request.finished", "obj": given, "out": {"meta_info": {}}}
    with pytest.raises(LogError, match="--log-requests-level 3"):
        read(path, json.dumps(event), strict=False)


def test_sglang_at_level_two_prints_the_ends_only(path: Path) -> None:
    line = PRINTED.format(5, "'xxx' ... 'yyy'", None, repr(SGLANG_OUT))
    with pytest.raises(LogError, match=r"cut at 2048 characters.*--log-requests-level 3"):
        read(path, line)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "dump.pkl"
    path.write_bytes(b"\x80\x04whatever")
    with pytest.raises(LogError, match="a pickle; reading one runs whatever code is in it"):
        list(LogFile(path))


def test_fields_of_a_printed_object() -> None:
    assert top_level_fields("A(x='a, y=1', z=[1, (2, 3)]), out={'b': {'c': 2}, 'd': \"e'\"}") == {
        "x": "'a, y=1'",
        "z": "[1, (2, 3)]",
        "out": "{'b': {'c': 2}, 'd': \"e'\"}",
    }
