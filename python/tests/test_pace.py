"""Which steps are measured, by how long they are."""

import pytest

from pitcrew_torch import hook, pace, steps

MS = 1_000_000


@pytest.mark.parametrize(
    "took, every", [(1, 256), (4, 256), (6, 64), (19, 64), (21, 16), (79, 16), (100, 4), (200, 4), (400, 1)]
)
def test_long_steps_are_measured_often_and_short_ones_seldom(took, every):
    p = pace.Pace()
    assert p.next(1) == 1
    for step in (1, 2):
        p.measured(step, step * took * MS)
    assert p.every == every
    assert p.next(130) == -(-130 // every) * every


def test_measured_steps_are_never_further_apart_than_the_next_longer_ones_are():
    for took in range(1, 400):
        p = pace.Pace()
        for step in (1, 2):
            p.measured(step, step * took * MS)
        assert p.every == 1 or p.every * took * MS <= pace.ABOUT


def test_at_five_steps_a_second_there_is_a_round_a_second():
    p = pace.Pace()
    for step in (1, 2):
        p.measured(step, step * 200 * MS)
    assert p.every * 0.2 <= 1.0


def test_every_choice_contains_the_sparser_ones():
    for sparse, dense in zip(pace.CHOICES, pace.CHOICES[1:]):
        assert sparse % dense == 0
    assert pace.CHOICES[-1] == 1


def test_a_word_of_the_user_holds_whatever_steps_take():
    p = pace.Pace(3)
    for step in (1, 2, 3):
        p.measured(step, step * MS)
    assert [p.next(n) for n in (1, 3, 4)] == [3, 3, 6]


class Probes:
    """What Steps asks of phases.Phases, with nothing to measure."""

    def __init__(self):
        self.on, self.pace, self.measured = True, pace.Pace(), []

    def turn(self, done, sequence, now):
        if self.on:
            self.measured.append(done)
            self.pace.measured(sequence, now)
        following = self.pace.next(done + 1)
        self.on = following == done + 1
        return following if self.on else following - 1


@pytest.fixture
def rank(monkeypatch):
    clock = [1]
    monkeypatch.setattr(steps, "_now", lambda: clock[0])
    h = hook.Hook(environ={})
    h.steps.probes = probes = Probes()

    def run(took, **given):
        clock[0] += int(took * MS)
        h.step(0.5, **given)

    yield h, probes, run
    h.close()


def test_the_choice_follows_the_steps_as_they_get_shorter_and_longer(rank):
    _, probes, run = rank
    for _ in range(12):
        run(200)
    assert probes.measured == [1, 2, 4, 8, 12]
    for _ in range(12, 160):
        run(6)
    assert probes.measured[5:] == [16, 64, 128]
    for _ in range(160, 200):
        run(600)
    assert probes.measured[8:] == [192, 196, 197, 198, 199, 200]


def test_a_step_number_that_jumps_is_followed_both_ways(rank):
    h, probes, run = rank
    for _ in range(200):
        run(6)
    run(6, step=1000)
    for _ in range(30):
        run(6)
    assert probes.measured[-1] == 1024
    run(6, step=300)
    for _ in range(20):
        run(6)
    assert probes.measured[-1] == 320
    h.resume()  # nothing to load: from step 0
    for _ in range(64):
        run(6)
    assert probes.measured[-1] == 64
