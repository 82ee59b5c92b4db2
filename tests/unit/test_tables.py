"""Tables for a terminal: nothing without its interval, nothing twice, nothing wider than 80 columns."""

from __future__ import annotations

from trial_records import trial

from orchestrator.tables import trials
from search_spaces.configuration import Configuration
from trackers.records import Estimate

SHARED = {"max_num_batched_tokens": 2048, "attention_backend": "a_name_that_is_long"}


def shown(*depths: int) -> list[str]:
    estimate = Estimate(value=49.97, half_width=13.2, launches=2, windows=8, ending="stable")
    names = ("edit", "structured", "generate")
    records = [
        trial(
            number=number,
            role="incumbent",
            configuration=Configuration(values={"drafter": "ngram", "k": k, **SHARED}),
            estimates={f"{name}/decode_tok_s": estimate for name in names},
        )
        for number, k in enumerate(depths)
    ]
    return trials(records, "decode_tok_s", names).splitlines()


def test_a_row_is_one_line_with_every_number_beside_its_interval() -> None:
    lines = shown(2, 16)
    assert len(lines) == 4
    assert all(line.count("49.97 ± 13") == 3 and len(line) <= 80 for line in lines[1:3])


def test_what_all_configurations_share_is_said_once() -> None:
    lines = shown(2, 16)
    assert ["ngram k=2 " in lines[1], "ngram k=16 " in lines[2]] == [True, True]
    assert lines[3] == "all of them: attention_backend=a_name_that_is_long, max_num_batched_tokens=2048"


def test_no_trials_make_no_rows() -> None:
    assert len(shown()) == 1
