"""rounds.jsonl: a line for each round, in order, also after a crash; losses with the round they were opened after."""

import json
import stat

from dresfl.coding import CodeParameters
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, RoundRecord, Session, Task, Training
from dresfl.storage.checkpoint import RunFolder
from dresfl.storage.round_log import RoundLog
from dresfl.storage.run_folder import RunRecorder

SESSION = Session(mlp((3, 2), input_bits=4, weight_bits=10), CodeParameters(3), client_rows=(5, 4, 6), seed=0)


def lines(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def write(folder, numbers, **more):
    log = RoundLog(folder, SESSION, messages=True, private=False)
    for number in numbers:
        log.write(RoundRecord(number, "stepped", (0, 2), gradient_norm=1.5, **more), 2, 0.25)
    log.close()


def test_a_line_says_who_answered_how_much_moved_and_how_long_it_took(tmp_path):
    write(tmp_path, [0, 1], liars=(1,))
    first, second = lines(tmp_path)
    size = len(Answer(0, 0, SESSION.field.embed(SESSION.network.initial_weights(SESSION.stream))).encode(SESSION))
    task = len(Task(0, SESSION.network.initial_weights(SESSION.stream)).encode(SESSION))
    assert second == {
        "round": 1,
        "outcome": "stepped",
        "answers": 2,
        "survivors": [0, 2],
        "liars": [1],
        "gradient_norm": 1.5,
        "loss": None,
        "bytes": {"sharing": 0, "weights": 3 * task, "answers": 2 * size},
        "seconds": 0.25,
    }
    assert first["bytes"]["sharing"] == 2 * 15 * 5 * len(SESSION.field.moduli) * SESSION.field.residue_bytes


def test_rounds_that_are_played_again_take_the_place_of_the_old_ones(tmp_path):
    write(tmp_path, range(6))
    with open(tmp_path / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 6, "out')  # killed here
    write(tmp_path, [4, 5, 6])
    assert [line["round"] for line in lines(tmp_path)] == list(range(7))
    (tmp_path / "rounds.jsonl").write_text("something else\n")
    write(tmp_path, [7])
    assert [line["round"] for line in lines(tmp_path)] == [7]


def test_a_loss_may_come_before_or_after_its_round(tmp_path):
    log = RoundLog(tmp_path, SESSION, messages=False, private=True)
    log.loss(0, 0.5)
    log.write(RoundRecord(0, "stepped", ()), 3, 0.1)
    log.write(RoundRecord(1, "stepped", ()), 3, 0.1)
    log.loss(1, 0.25)
    log.close()
    assert [line["loss"] for line in lines(tmp_path)] == [0.5, 0.25]
    assert [line["bytes"] for line in lines(tmp_path)] == [{"sharing": 0, "weights": 0, "answers": 0}] * 2
    assert stat.S_IMODE((tmp_path / "rounds.jsonl").stat().st_mode) == 0o600


def test_a_resumed_run_has_every_round_once(tmp_path):
    def play(rounds):
        training = Training(SESSION, Optimizer(), 6)
        with RunRecorder(training, accuracy=None, evaluate_every=9, folder=RunFolder(tmp_path)) as recorder:
            for number in range(rounds):
                record = RoundRecord(training.round_number, "skipped", ())
                training.close(record)
                recorder.count(record, 1)
                if number == 2:
                    recorder.checkpoint()

    play(5)  # the rounds 3 and 4 are after the checkpoint
    play(3)
    assert [line["round"] for line in lines(tmp_path)] == list(range(6))
