# timeout: 60
"""nanotron_tools.ledger: to which class seconds of a run belong, start by start."""

import conftest  # noqa: F401  (finds nanotron_tools)

from nanotron_tools import ledger

NAN = float("nan")


def start(number, begin, last, resumed, steps, **more):
    return {"start": number, "begin": begin, "last": last, "submitted": NAN, "job_began": NAN, "resumed_step": resumed,
            "last_step": steps, "lowest_step": resumed, "training_seconds": 0.0, "checkpoint_seconds": 0.0,
            "left_out_seconds": 0.0, "end": 0} | more


def seconds(made):
    return [{name: value for name, value in s.seconds.items() if value} for s in made.starts]


def test_a_killed_start_keeps_what_its_last_checkpoint_has():
    made = ledger.made_of([start(1, 100, 200, 0, 90, training_seconds=80.0, checkpoint_seconds=5.0),
                           start(2, 230, 300, 60, 100, training_seconds=50.0, end=1)], {(1, 30): 25.0, (1, 60): 55.0}, {})
    assert seconds(made) == [{"useful": 55.0, "lost": 25.0, "checkpoint": 5.0, "restart": 15.0},
                             {"useful": 50.0, "restart": 20.0, "waiting": 30.0}]
    assert made.wall_seconds == 200 and made.goodput == 105 / 200
    assert [s.end for s in made.starts] == ["killed", "finished"] and [s.kept for s in made.starts] == [60, 100]


def test_a_step_without_a_checkpoint_is_between_those_that_have_one():
    after = start(2, 230, 300, 75, 100, training_seconds=50.0, end=1)  # from copies on the hosts
    first = start(1, 100, 200, 0, 90, training_seconds=85.0)
    made = ledger.made_of([first, after], {(1, 30): 25.0, (1, 60): 55.0}, {})
    assert [s.seconds["useful"] for s in made.starts] == [70.0, 50.0] and made.starts[0].seconds["lost"] == 15.0
    made = ledger.made_of([first, after], {}, {})
    assert [s.seconds["useful"] for s in made.starts] == [85.0 * 75 / 90, 50.0]


def test_a_damaged_checkpoint_costs_an_earlier_start_too():
    made = ledger.made_of([start(1, 0, 10, 0, 40, training_seconds=8.0), start(2, 10, 20, 40, 80, training_seconds=9.0),
                           start(3, 20, 30, 20, 100, training_seconds=7.0)], {(1, 20): 3.0, (1, 40): 8.0, (2, 60): 5.0}, {})
    assert [s["useful"] for s in seconds(made) if "useful" in s] == [3.0, 7.0]
    assert [s.seconds["lost"] for s in made.starts] == [5.0, 9.0, 0.0]


def test_steps_that_training_went_back_from_are_lost():
    made = ledger.made_of([start(1, 0, 50, 0, 100, training_seconds=40.0, left_out_seconds=12.0, end=1)], {}, {})
    assert seconds(made) == [{"useful": 28.0, "lost": 12.0, "restart": 10.0}]
    made = ledger.made_of([start(1, 0, 50, 0, 40, training_seconds=40.0),
                           start(2, 50, 90, 40, 100, training_seconds=30.0, lowest_step=20)], {(1, 20): 19.0}, {})
    assert [s.seconds["useful"] for s in made.starts] == [19.0, 30.0]


def test_a_start_that_went_back_below_where_it_began_keeps_what_it_did_from_there():
    made = ledger.made_of([start(1, 0, 10, 0, 1000, training_seconds=9.0),
                           start(2, 10, 400, 1000, 850, training_seconds=370.0, left_out_seconds=10.0, lowest_step=500),
                           start(3, 400, 500, 800, 1000, training_seconds=90.0, end=1)],
                          {(1, 500): 4.0, (2, 800): 300.0}, {})
    assert [s.seconds["useful"] for s in made.starts] == [4.0, 300.0, 90.0]
    assert [s.seconds["lost"] for s in made.starts] == [5.0, 70.0, 0.0]
    told = ledger.facts_of(made)["starts"]
    assert [s["steps_kept"] for s in told] == [500, 300, 200] and [s["steps_lost"] for s in told] == [500, 50, 0]


def test_time_in_the_queue_is_that_in_which_no_start_was_alive():
    made = ledger.made_of([start(1, 100, 150, 0, 10, submitted=40.0, job_began=90.0),
                           start(2, 200, 250, 10, 20, submitted=120.0, job_began=180.0),
                           start(3, 300, 310, 20, 30)], {}, {})
    assert [s.seconds["queued"] for s in made.starts] == [50.0, 30.0, 0.0]
    assert [s.seconds["waiting"] for s in made.starts] == [10.0, 20.0, 50.0]
    assert made.wall_seconds == 310 - 40
