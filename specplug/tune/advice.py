"""The answer of ``specplug tune``: whether, with what, and how sure that is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from specplug import registry
from specplug.replay.report import Column, table
from specplug.tune.costs import StepCosts
from specplug.tune.forecast import Forecast, break_even, forecast
from specplug.tune.search import Bench, Measured, Setting

SCHEMA = "specplug.tune/1"


class Question(NamedTuple):
    """What was asked.

    Attributes:
        costs: of the server, or None: then ``price`` is an assumption.
        price: what one more draft token costs, in plain steps of ``requests`` requests.
        least: speedup below which it is not worth it.
        batches: numbers of requests at a time to report on.
    """

    costs: StepCosts | None
    price: float
    requests: int
    least: float
    batches: Sequence[int]


@dataclass(frozen=True)
class Answer:
    """What came out.

    Attributes:
        speedup: on the test part, at the concurrency that was asked for.
        doubt: standard error of the work saved, in units of the speedup.
        forecasts: by number of requests, with a cost file.
        pays_up_to: the largest batch up to which it always pays; None where it does not, or nobody knows.
        reason: why not; "" if it pays.
    """

    setting: Setting
    measured: Measured
    speedup: float
    doubt: float
    forecasts: Sequence[Forecast]
    pays_up_to: int | None
    reason: str


def advise(question: Question, bench: Bench, best: Setting) -> Answer:
    """Judge the chosen setting by the test part."""
    measured = bench.measured[best]
    test = measured.test
    forecasts: list[Forecast] = []
    pays = None
    speedup = test.speedup(question.price)
    if question.costs is not None:
        batches = sorted({*question.batches, question.requests})
        forecasts = [forecast(test, question.costs, batch) for batch in batches]
        pays = break_even(test, question.costs, batches)
        speedup = next(f.speedup for f in forecasts if f.requests == question.requests)
    doubt = test.doubt(question.price)
    return Answer(
        best, measured, speedup, doubt, forecasts, pays, _reason(question, measured, speedup, doubt)
    )


def _reason(question: Question, measured: Measured, speedup: float, doubt: float) -> str:
    test = measured.test
    if not test.steps:
        return "the part of the log that is kept for judging has no request with two tokens or more; give a longer log"
    if speedup < question.least:
        return (
            f"on requests that played no part in the choice it gives {speedup:.3f}x, less than the {question.least:g}x "
            f"that were asked for: {test.drafted / test.steps:.2f} tokens are drafted per step, "
            f"{test.accepted / max(1, test.drafted):.0%} of them accepted"
        )
    if speedup - 2 * doubt < 1.0:
        return (
            f"{speedup:.3f}x was found, but it varies so much along the log (standard error {doubt:.3f}) that it may "
            "be no gain at all; give a longer log"
        )
    return ""


def vllm_flag(setting: Setting) -> str:
    """What to put behind ``vllm serve MODEL``."""
    body = {
        "method": setting.proposer,
        "num_speculative_tokens": setting.width,
        "specplug": _changed(setting),
    }
    if not body["specplug"]:
        del body["specplug"]
    return f"--speculative-config {shlex.quote(json.dumps(body))}"


def sglang_flag(setting: Setting) -> tuple[str, str]:
    """What to put before and behind ``python -m sglang.launch_server``: environment, arguments."""
    options = _changed(setting)
    before = f"SPECPLUG_SGLANG_OPTIONS={shlex.quote(json.dumps(options))} " if options else ""
    # SGLang counts the last token with the drafts.
    width = setting.width + 1
    return before, (
        f"--speculative-algorithm {setting.proposer} --speculative-num-draft-tokens {width}"
    )


def _changed(setting: Setting) -> dict[str, Any]:
    """Options that differ from their defaults."""
    defaults = registry.check(setting.proposer, {})
    return {k: v for k, v in setting.options if defaults.get(k) != v}


def as_text(answer: Answer, question: Question, bench: Bench) -> str:
    """For a terminal; the last lines are what to do."""
    train, test = answer.measured.train, answer.measured.test
    parts = [
        f"{len(bench.measured)} settings were tried on {train.requests} requests; "
        f"the best is judged by the {test.requests} that follow",
        f"{answer.setting.proposer}, at most {answer.setting.width} draft tokens"
        + "".join(f", {name} {value}" for name, value in answer.setting.options),
        _workloads(answer, question),
    ]
    if question.costs is not None:
        parts.append(_by_batch(answer))
        parts.append(_where_it_pays(answer, question))
    malformed = sum(log.malformed for log in bench.logs)
    if malformed:
        parts.append(f"{malformed} malformed lines were left out; `specplug replay` shows them")
    return "\n\n".join([*parts, _verdict(answer, question)])


def _workloads(answer: Answer, question: Question) -> str:
    columns: list[Column] = [("workload (test part)", 0), ("requests", 0), ("MAL", 3)]
    columns += [("drafted/step", 2), ("accepted", 3), ("work saved", 3), ("+-", 3)]
    rows: list[list[str | float | int | None]] = []
    for name, found in answer.measured.workloads.items():
        doubt = 2 * found.doubt(question.price)
        row: list[str | float | int | None] = [name, found.requests, found.mean_acceptance_length]
        row += [found.drafted / max(1, found.steps), found.accepted / max(1, found.drafted)]
        row += [found.speedup(question.price), doubt if doubt < float("inf") else None]
        rows.append(row)
    price = (
        f"work saved: tokens per unit of work at {question.price:.4f} plain steps per draft token"
    )
    return f"{table(columns, rows, {'MAL', 'work saved'})}\n{price}; +- two standard errors"


def _by_batch(answer: Answer) -> str:
    columns: list[Column] = [("requests at a time", 0), ("tokens/s plain", 1), ("with", 1)]
    columns += [("speedup", 3), ("ms/token plain", 2), ("with ", 2)]
    rows: list[list[str | float | int | None]] = [
        [
            str(f.requests),
            f.plain_tokens_per_second,
            f.tokens_per_second,
            f.speedup,
            f.plain_ms_per_token,
            f.ms_per_token,
        ]
        for f in answer.forecasts
    ]
    return table(columns, rows, set()).rpartition("\n")[0]


def _where_it_pays(answer: Answer, question: Question) -> str:
    if answer.pays_up_to is None:
        return "It pays at no number of requests at a time."
    if answer.pays_up_to >= max(question.batches):
        return f"It pays at every number of requests at a time that was looked at, up to {answer.pays_up_to}."
    return f"It pays up to {answer.pays_up_to} requests at a time, and no longer at the next size in the table."


def _verdict(answer: Answer, question: Question) -> str:
    if answer.reason:
        return f"Do not: {answer.reason}."
    before, behind = sglang_flag(answer.setting)
    assumed = (
        f"if a draft token costs {question.price:g} plain steps to verify; measure it: `specplug calibrate`"
        if question.costs is None
        else f"at {question.requests} request(s) at a time"
    )
    return (
        f"Do it: {answer.speedup:.2f}x, {assumed}.\n\n"
        f"vllm serve MODEL {vllm_flag(answer.setting)}\n"
        f"{before}python -m sglang.launch_server --model-path MODEL {behind}"
    )


def as_json(
    answer: Answer, question: Question, bench: Bench, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything, for scripts. ``advice`` is ``"do"`` or ``"do not"``."""
    return {
        "schema": SCHEMA,
        "provenance": dict(facts),
        "advice": "do not" if answer.reason else "do",
        "reason": answer.reason,
        "speedup": answer.speedup,
        "standard_error": answer.doubt if answer.doubt < float("inf") else None,
        "price": question.price,
        "concurrency": question.requests,
        "cost_file": None if question.costs is None else dict(question.costs.facts),
        "setting": {**asdict(answer.setting), "options": dict(answer.setting.options)},
        "flags": {
            "vllm": vllm_flag(answer.setting),
            "sglang": " ".join(sglang_flag(answer.setting)),
        },
        "pays_up_to": answer.pays_up_to,
        "forecasts": [{**f._asdict(), "speedup": f.speedup} for f in answer.forecasts],
        "tried": [
            {
                "proposer": setting.proposer,
                "options": dict(setting.options),
                "width": setting.width,
                "train_speedup": found.train.speedup(question.price),
                "test_speedup": found.test.speedup(question.price),
            }
            for setting, found in bench.measured.items()
        ],
    }
