"""The texts of the demo: five rounds, each with its own prompts, so that no engine is asked anything twice.

``COPY_HEAVY`` holds work whose answer repeats much of the prompt: changing code, quoting, reformatting records.
``CHAT`` holds free questions, whose answers repeat little.
"""

from __future__ import annotations

Chat = list[dict[str, str]]


def _ask(text: str) -> Chat:
    return [{"role": "user", "content": text}]


_CODE = [
    '''def moving_average(values, width):
    """Return the averages of every window of the given width."""
    if width < 1:
        raise ValueError("width must be at least one")
    total = sum(values[:width])
    averages = [total / width]
    for index in range(width, len(values)):
        total += values[index] - values[index - width]
        averages.append(total / width)
    return averages
''',
    """class Inventory:
    def __init__(self):
        self.items = {}

    def add(self, name, amount):
        self.items[name] = self.items.get(name, 0) + amount

    def remove(self, name, amount):
        if self.items.get(name, 0) < amount:
            raise KeyError(name)
        self.items[name] = self.items[name] - amount
""",
    """def read_settings(path):
    settings = {}
    with open(path) as lines:
        for number, line in enumerate(lines, start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, separator, value = line.partition("=")
            if not separator:
                raise ValueError(f"line {number}: expected name=value")
            settings[name.strip()] = value.strip()
    return settings
""",
    """def merge_sorted(left, right):
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    merged.extend(left[i:])
    merged.extend(right[j:])
    return merged
""",
    """class Timer:
    def __init__(self, clock):
        self.clock = clock
        self.started = None
        self.total = 0.0

    def start(self):
        if self.started is not None:
            raise RuntimeError("the timer is running")
        self.started = self.clock()

    def stop(self):
        self.total += self.clock() - self.started
        self.started = None
""",
]

_TEXTS = [
    "The lighthouse keeper wrote down the weather every morning. On Monday the wind came from the north and the "
    "sea was grey. On Tuesday the wind came from the west and the sea was green. On Wednesday there was no wind "
    "at all, and three fishing boats waited in the bay until noon.",
    "The new bridge over the river Alder is 412 metres long and carries two lanes of traffic, a tram line and a "
    "path for cyclists. Work on it began in the spring of 2019 and took three years and five months. The old "
    "bridge, which was built in 1931, will be kept for pedestrians.",
    "Our garden has three beds. In the first bed we grow carrots, onions and leeks. In the second bed we grow beans "
    "and peas, because they leave the soil richer than they found it. The third bed rests for a year and is "
    "covered with straw, so that worms and beetles can do their work.",
    "The committee met on Thursday and decided three things. First, the library will open on Sundays from ten "
    "until four. Second, the reading room on the upper floor will get new lamps. Third, nobody will have to pay "
    "a fee for books that come back late, as long as they come back within a month.",
    "A violin is made of more than seventy pieces of wood. The belly is made of spruce, the back and the ribs are "
    "made of maple, and the fingerboard is made of ebony. The maker carves the scroll by hand and varnishes the "
    "instrument in many thin layers, each of which has to dry for days.",
]

_RECORDS = [
    [
        ("Lisbon", 21.5, "sunny"),
        ("Oslo", 9.0, "rain"),
        ("Cairo", 33.2, "sunny"),
        ("Lima", 18.4, "fog"),
    ],
    [
        ("hammer", 12.5, "tools"),
        ("saw", 19.9, "tools"),
        ("nails", 3.2, "parts"),
        ("glue", 4.8, "parts"),
    ],
    [
        ("Anna", 41.0, "sales"),
        ("Boris", 29.0, "stock"),
        ("Chen", 35.0, "sales"),
        ("Dora", 52.0, "office"),
    ],
    [
        ("apple", 52.0, "fruit"),
        ("bread", 265.0, "grain"),
        ("pear", 57.0, "fruit"),
        ("oats", 389.0, "grain"),
    ],
    [
        ("north", 7.4, "open"),
        ("south", 6.1, "closed"),
        ("east", 8.8, "open"),
        ("west", 5.5, "open"),
    ],
]


def _json_lines(records: list[tuple[str, float, str]]) -> str:
    lines = [
        f'{{"id": {i}, "name": "{name}", "value": {value}, "group": "{group}"}}'
        for i, (name, value, group) in enumerate(records, start=1)
    ]
    return "\n".join(lines)


def _copy_heavy(i: int) -> list[Chat]:
    return [
        _ask(
            f"Add a comment above every function and print the whole code again:\n```python\n{_CODE[i]}```"
        ),
        _ask(f"Answer by quoting: repeat this text word for word.\n\n{_TEXTS[i]}"),
        _ask(f"Print these records again as one JSON list:\n{_json_lines(_RECORDS[i])}"),
    ]


_QUESTIONS = [
    ["Why is the sky blue?", "Tell me a short story about a fox.", "How do I make pancakes?"],
    ["What is a black hole?", "Give me tips for better sleep.", "Write a poem about the sea."],
    [
        "How does a bicycle stay upright?",
        "What should I pack for a hike?",
        "Describe a busy market.",
    ],
    ["Why do leaves fall in autumn?", "How can I learn to cook?", "Tell me about the moon."],
    ["What makes music sad?", "How do bees find flowers?", "Write a letter to an old friend."],
]

#: Per round, the prompts of each workload.
WORKLOADS: dict[str, list[list[Chat]]] = {
    "copy-heavy": [_copy_heavy(i) for i in range(len(_CODE))],
    "free chat": [[_ask(question) for question in questions] for questions in _QUESTIONS],
}

#: Served first and not counted: first requests touch memory for the first time.
WARM_UP = _ask("Count from one to twenty: one, two, three, four, five, six,")
