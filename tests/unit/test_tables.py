"""Tables for a terminal: nothing without its interval, nothing twice, nothing wider than 80 columns."""

from __future__ import annotations

import two_engines as two
from trial_records import trial

from orchestrator.candidates import Candidate, Target, noise_of
from orchestrator.peak import declare_peak
from orchestrator.shift import judge_shift
from orchestrator.tables import closing, trials
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


def test_between_the_engines_a_verdict_that_cannot_be_told_says_of_what_and_what_would_tell() -> None:
    one, target = two.configuration("mtp", 2), Target(name="fast", metric="decode_tok_s", workloads=("fast",))
    old, new = [Candidate(configuration=one, fresh=(100.0, 101.0))], [Candidate(configuration=one, searched=(140.0,))]
    shift = judge_shift(old, new, one, target, noise_of([*old, *new], 0.01), 0.01)
    text = " ".join(closing({}, [shift], {}, {}).split())
    assert "fast: cannot tell where the best settings are now; the new engine runs at 1.39x" in text
    assert text.endswith("launched twice on the new stack would decide")


def test_an_engine_that_was_measured_and_has_no_peak_yet_is_not_said_to_have_nothing() -> None:
    one, target = two.configuration("mtp", 2), Target(name="fast", metric="decode_tok_s", workloads=("fast",))
    field = [Candidate(configuration=one, fresh=(100.0, 101.0))]
    peak = declare_peak(field, target, noise_of(field, 0.01), 0.01)
    assert peak is not None
    stacks = {name: two.stack(name) for name in (two.OLD, two.NEW)}
    text = closing({two.OLD: {"fast": peak}, two.NEW: {}}, [], stacks, {two.NEW: "it was asked to stop"})
    (row,) = [line for line in text.splitlines() if line.startswith(two.NEW) and ":" not in line]
    assert row.split()[1:3] == ["no", "peak"]


def test_no_trials_make_no_rows() -> None:
    assert len(shown()) == 1
