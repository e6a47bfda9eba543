"""The launcher check: load the plugin as a server would, and say what came of it."""

from __future__ import annotations

from specplug.adapters.sglang_srt import options
from specplug.adapters.sglang_srt.report import report
from specplug.errors import SettingsError
from specplug.registry import PREFIX


def check() -> tuple[list[str], list[str]]:
    """Problems (empty if all is well) and findings, one sentence each."""
    facts = report()
    if facts.version is None:
        return ["SGLang is not installed here"], []
    lines = [f"SGLang {facts.version} (tested: {', '.join(facts.tested)})"]
    if not facts.active:
        return [facts.reason], lines
    if facts.reason:
        lines.append(facts.reason)
    try:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    except Exception as error:  # noqa: BLE001  whatever keeps SGLang from loading is what the user wants to read
        return [f"SGLang cannot be imported: {type(error).__name__}: {error}"], lines

    from specplug.adapters.sglang_srt.install import algorithm_names

    problems: list[str] = []
    refusals: list[str] = []
    taken = 0
    try:
        given = bool(options.read())
    except SettingsError as error:
        return [str(error)], lines
    for upper, name in algorithm_names().items():
        try:
            SpeculativeAlgorithm.from_string(upper)
            settings = options.checked(name).options
        except SettingsError as error:
            # Options are for one proposer; that others do not have them is no problem.
            (refusals if given else problems).append(f"{PREFIX}{name}: {error}")
            continue
        except Exception as error:  # noqa: BLE001  a third party's proposer fails in its own way; name it
            problems.append(f"{PREFIX}{name}: {type(error).__name__}: {error}")
            continue
        taken += 1
        lines.append(f"--speculative-algorithm {PREFIX}{name}, options {settings}")
    if taken:
        lines += [f"not with these options: {refusal}" for refusal in refusals]
    else:
        problems += refusals
    return problems, lines
