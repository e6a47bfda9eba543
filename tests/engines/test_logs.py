"""A traceback of the engine's own is not taken for a fault of ours; one that runs through our files is."""

from __future__ import annotations

from .logs import _FRAMES_OF_OURS, our_faults

# SGLang asks its own server to freeze the garbage collector, sometimes before it listens.
OF_THE_ENGINE = """[2026-11-30 02:02:54] gc failed
Traceback (most recent call last):
  File "lib/python3.11/site-packages/requests/adapters.py", line 696, in send
    resp = conn.urlopen(
ConnectionRefusedError: [Errno 111] Connection refused
"""


def test_a_traceback_of_the_engine_is_not_ours() -> None:
    assert our_faults(OF_THE_ENGINE) == []


def test_a_frame_of_ours_is_found_behind_a_prefix_of_the_engine() -> None:
    for frame in _FRAMES_OF_OURS:
        line = f'(EngineCore pid=7) ERROR 11-30 02:02:54   {frame}module.py", line 3, in propose'
        assert our_faults(OF_THE_ENGINE + line) == [line]


def test_what_we_say_of_a_fault_is_found() -> None:
    line = "specplug: propose() failed; answers are not affected, this step gets no drafts"
    assert our_faults(OF_THE_ENGINE + line + "\nserved") == [line]
