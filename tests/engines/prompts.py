"""Varied prompts, written for these tests: repetition, code, chat, near-empty and long ones."""

from __future__ import annotations

from typing import Any


def chat(*turns: str) -> list[dict[str, str]]:
    """A conversation; user and assistant take turns, the user begins."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]


FUNCTION = '''def moving_average(values, width):
    """Return the averages of every window of the given width."""
    if width < 1:
        raise ValueError("width must be at least one")
    total = sum(values[:width])
    averages = [total / width]
    for index in range(width, len(values)):
        total += values[index] - values[index - width]
        averages.append(total / width)
    return averages
'''

CLASS = """class Inventory:
    def __init__(self):
        self.items = {}

    def add(self, name, amount):
        self.items[name] = self.items.get(name, 0) + amount

    def remove(self, name, amount):
        if self.items.get(name, 0) < amount:
            raise KeyError(name)
        self.items[name] = self.items[name] - amount

    def total(self):
        return sum(self.items.values())
"""

STORY = (
    "The lighthouse keeper wrote down the weather every morning. On Monday the wind came from the north and the "
    "sea was grey. On Tuesday the wind came from the west and the sea was green. On Wednesday there was no "
    "wind at all, and three fishing boats waited in the bay until noon. "
)

RECORDS = """{"id": 17, "city": "Lisbon", "temperature": 21.5, "unit": "celsius"}
{"id": 18, "city": "Oslo", "temperature": 9.0, "unit": "celsius"}
{"id": 19, "city": "Cairo", "temperature": 33.2, "unit": "celsius"}
"""

#: Long enough for several chunks of a prefill; ends where the model will go on copying.
LONG = STORY * 6 + "The lighthouse keeper wrote down the weather every morning. On Monday"

VARIED: dict[str, Any] = {
    "repeat-words": "red green blue red green blue red green blue red green",
    "repeat-numbers": "1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1,",
    "repeat-line": "All work and no play makes Jack a dull boy.\n" * 5,
    "repeat-story": STORY * 2 + "The lighthouse keeper",
    "code-repeat": FUNCTION + "\n\n" + FUNCTION[:90],
    "code-class": CLASS + "\n    def clear(self):",
    "code-continue": "import os\nimport sys\n\n\ndef main():\n    path = sys.argv[1]\n",
    "code-sql": "SELECT name, price FROM products WHERE price > 10;\nSELECT name, price FROM",
    "code-html": "<ul>\n  <li>apple</li>\n  <li>pear</li>\n  <li>plum</li>\n  <li>",
    "json-records": RECORDS + RECORDS[:40],
    "chat-short": chat("What is the capital of France?"),
    "chat-list": chat("Name five colours, one per line."),
    "chat-copy": chat("Repeat this text word for word:\n" + STORY),
    "chat-code": chat("Copy this function without any change:\n" + FUNCTION),
    "chat-turns": chat("Say: the sky is blue.", "The sky is blue.", "Say that once more."),
    "chat-story": chat("Tell me a short story about a fox and a river."),
    "chat-maths": chat("What is 17 plus 25? Think step by step."),
    "one-token": [2683],
    "one-letter": "a",
    "newline": "\n",
    "punctuation": "!?!?!?!?",
    "unicode": "naïve café, Zürich, 東京, naïve café, Zürich,",
    "long-story": LONG,
    "long-code": (FUNCTION + "\n\n" + CLASS + "\n\n") * 2 + "def moving_average(",
    "prose": "In the beginning of the nineteenth century, the study of electricity",
}

#: Prompts whose answers repeat themselves, for as long as they are let.
REPETITIVE = ["repeat-words", "repeat-numbers", "repeat-line", "repeat-story", "code-repeat"]
